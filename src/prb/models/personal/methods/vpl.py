"""VPL: variational preference learning (Poddar et al., arXiv 2408.10075).

A user is a latent z with a standard normal prior, inferred from labeled pairs by a permutation-invariant encoder; the
reward of an answer depends on z. Two choices differ from the published code: a pair's own label is left out of the set
its latent is inferred from, so that training matches testing, and the decoder is linear in z, which needs far fewer
pairs than a network on [answer; z].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from prb.config import Count, NonNegative, Share
from prb.models.personal.method import (
    METHODS,
    Array,
    Floats,
    Method,
    Pairs,
    Params,
    Step,
    View,
    bradley_terry,
    normal,
)

GAIN = 3
"""Puts the mean of a few pairs into the bend of tanh, and posterior means beyond the prior's one standard deviation."""
ACTIVE = 0.01
"""Variance between users above which a latent dimension counts as used (Burda et al., arXiv 1509.00519)."""


def gaussian_kl(mean: Array, log_variance: Array) -> Array:
    """KL(N(mean, variance) ‖ N(0, 1)), summed over the last axis."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def warm_up(progress: float, share: float) -> float:
    """0 → 1 over the first `share` of training, so that the latent is useful before it costs anything."""
    return 1.0 if share <= 0 else min(1.0, progress / share)


def active_units(means: Array) -> int:
    """Latent dimensions whose mean varies between users; 0 is posterior collapse."""
    return int((means.var(dim=0) > ACTIVE).sum()) if len(means) > 1 else 0


@dataclass(frozen=True)
class Vpl(Method):
    latent: int
    hidden: int
    beta: float
    warm: float

    grid: ClassVar = {"beta": (0.01, 0.1, 1.0)}
    needs_pairs = True

    @property
    def code_size(self) -> int:  # type: ignore[override]
        return self.latent

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            "look": normal(rng, size, self.hidden),
            "mix": normal(rng, self.hidden, self.hidden),
            "mean": normal(rng, self.hidden, self.latent),
            "spread": np.zeros((self.hidden, self.latent)),
            "taste": np.zeros(size),
            "decode": normal(rng, size, self.latent),
        }

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return answer @ params["taste"] + ((answer @ params["decode"]) * view.code).sum(-1)

    def loss(self, params: Params, pairs: Pairs, step: Step) -> Array:
        """−ELBO per pair: each pair is scored with a latent drawn from a random part of the user's other pairs."""
        import torch

        users = int(pairs.user.max()) + 1
        share = torch.rand(users, generator=step.noise)[pairs.user]
        shown = (torch.rand(len(share), generator=step.noise) < share).to(pairs.chosen.dtype)[:, None]
        encoded = self._encode(params, pairs) * shown
        total, count = _sums(encoded, pairs.user, users), _sums(shown, pairs.user, users)
        mean, log_variance = self._posterior(params, total[pairs.user] - encoded, count[pairs.user] - shown)
        drawn = torch.randn(mean.shape, generator=step.noise, dtype=mean.dtype)
        code = mean + drawn * (log_variance / 2).exp()
        fit = bradley_terry(self.margins(params, pairs._replace(view=pairs.view._replace(code=code))))
        pairs_per_user = _sums(torch.ones_like(shown), pairs.user, users)[pairs.user, 0]
        kl = (gaussian_kl(mean, log_variance) / pairs_per_user).mean()
        return fit + self.beta * warm_up(step.progress, self.warm) * kl

    def infer(self, params: Params, pairs: Pairs, users: int, nobody: Array) -> Array:  # noqa: ARG002
        encoded = self._encode(params, pairs)
        count = _sums(encoded[:, :1] * 0 + 1, pairs.user, users)
        return self._posterior(params, _sums(encoded, pairs.user, users), count)[0]

    def report(self, params: Params, pairs: Pairs, users: int) -> dict[str, Any]:
        return {"active_units": active_units(self.infer(params, pairs, users, None)), "latent": self.latent}

    def _encode(self, params: Params, pairs: Pairs) -> Array:
        """Each labeled pair by itself."""
        return ((pairs.chosen - pairs.rejected) @ params["look"]).tanh()

    def _posterior(self, params: Params, total: Array, count: Array) -> tuple[Array, Array]:
        """Mean and log-variance; without any pair exactly the prior. The tanh lets few pairs settle on a kind."""
        seen = (total / (count + 1) @ params["mix"] * GAIN).tanh()
        return (seen @ params["mean"]) * GAIN, (seen @ params["spread"]) - (count + 1).log()


def _sums(rows: Array, user: Array, users: int) -> Array:
    return rows.new_zeros((users, rows.shape[1])).index_add(0, user, rows)


@METHODS.register("vpl")
def vpl(latent: Count = 4, hidden: Count = 32, beta: NonNegative = 0.1, warm: Share = 0.3) -> Method:
    """VPL: a latent user inferred from labeled pairs, with KL warm-up (arXiv 2408.10075)."""
    return Vpl(latent, hidden, beta, warm)
