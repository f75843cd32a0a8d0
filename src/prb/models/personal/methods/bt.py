"""Pooled Bradley-Terry: one taste for everybody (Bradley & Terry 1952, doi:10.1093/biomet/39.3-4.324)."""

from __future__ import annotations

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View


class BradleyTerry(Method):
    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:  # noqa: ARG002
        return {"taste": np.zeros(size)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:  # noqa: ARG002
        return answer @ params["taste"]


class WithProfile(BradleyTerry):
    """The same linear head, on answers that were read after the person's posts."""

    joint = True


@METHODS.register("bt")
def bt() -> Method:
    """Pooled Bradley-Terry, user-blind: the baseline everything else has to beat."""
    return BradleyTerry()


@METHODS.register("bt-profile")
def bt_profile() -> Method:
    """Pooled Bradley-Terry on answers read with the person's posts in the prompt (for features=hidden)."""
    return WithProfile()
