"""Drawing the next token so that the last digits of the logits do not matter.

A token is the largest of logit + temperature × Gumbel noise, which is a draw from the softmax at that temperature; at
temperature 0 it is the likeliest. The noise belongs to the request alone. Batching and padding change logits by no more
than rounding. So a token that leads by more than rounding is the one however the logits were computed; where `settled`
finds two of them too close, the caller computes the logits again for this request by itself and asks `draw`.

Top-p is the usual one: after temperature, the likeliest tokens until they hold this much probability together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prb.llm import Sampling

if TYPE_CHECKING:
    from torch import Generator, Tensor

MARGIN = 2e-3
"""Logits nearer to each other than this are not told apart; rounding in 32 bits is far below."""
NEVER = -float("inf")


def draw(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> int:
    """The next token; without noise the likeliest."""
    if noise is None:
        return int(logits.argmax())
    scores = logits + sampling.temperature * noise
    if sampling.top_p >= 1:
        return int(scores.argmax())
    _, share, tokens = _likeliest(logits / sampling.temperature, sampling.top_p)
    before = share.cumsum(-1) - share
    return int(tokens[scores[tokens].masked_fill((before >= sampling.top_p) & (before > 0), NEVER).argmax()])


def settled(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> int | None:
    """What `draw` gives for these logits and all others within rounding of them; `None` if that is not one token."""
    scores = logits if noise is None else logits + sampling.temperature * noise
    if noise is None or sampling.top_p >= 1:
        return _leader(scores)
    margin = MARGIN / sampling.temperature
    falling, share, tokens = _likeliest(logits / sampling.temperature, sampling.top_p + 2 * margin)
    surely_before, maybe_before = _before(falling, share, margin)
    possible = surely_before < sampling.top_p + margin
    if possible[-1] and len(tokens) < len(logits):
        return None
    won = _leader(scores[tokens].masked_fill(~possible, NEVER))
    if won is None or (maybe_before[won] >= sampling.top_p - margin and maybe_before[won] > 0):
        return None
    return int(tokens[won])


def gumbel(size: int, generator: Generator) -> Tensor:
    import torch

    # 64 bits: in 32 the rarest draws would be too common over a large vocabulary
    uniform = torch.rand(size, generator=generator, dtype=torch.float64)
    return -(-uniform.log()).log()


def _leader(scores: Tensor) -> int | None:
    best = scores.topk(min(2, len(scores)))
    near = best.values[0] - best.values[1:] <= MARGIN
    return None if bool(near.any()) else int(best.indices[0])


def _likeliest(logits: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, shares and numbers of enough tokens to hold this much, likeliest first. Sorting all would take longer
    than running a small model."""
    total, size = logits.logsumexp(-1), 256
    while True:
        falling, tokens = logits.topk(min(size, len(logits)))
        share = (falling - total).exp()
        if len(tokens) == len(logits) or float(share[:-1].sum()) >= top_p:
            return falling, share, tokens
        size *= 8


def _before(falling: Tensor, share: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Probability of tokens that are likelier than each, by more than the margin, and by more than minus the margin."""
    import torch

    held = torch.cat([share.new_zeros(1), share.cumsum(-1)])
    surely = held[torch.searchsorted(-falling, -falling - margin)]
    return surely, held[torch.searchsorted(-falling, -falling + margin)] - share
