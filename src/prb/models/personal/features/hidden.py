"""Hidden states of a causal LLM over an answer, after the question and, if shown, the posts."""

from __future__ import annotations

from typing import Literal

from prb.engine.load import DEFAULT_LOADING, Loading
from prb.models.personal.features import FEATURES, Features, Shifted


@FEATURES.register("hidden")
def hidden(
    lm: str,
    layer: int = -1,
    pool: Literal["mean", "last"] = "mean",
    shift: bool = False,
    loading: Loading = DEFAULT_LOADING,
) -> Features:
    """Hidden states of an LLM (lm=folder, hub id or pulled name), pooled over the answer's tokens.

    shift: the states without the posts, and beside them what the posts change.
    """
    from prb.engine.hidden import HiddenStates
    from prb.engine.load import load_shared

    states = HiddenStates(load_shared(lm, "causal", loading), layer, pool)
    return Shifted(states) if shift else states
