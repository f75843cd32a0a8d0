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


def draw(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> int:
    """The next token; without noise the likeliest."""
    if noise is None:
        return int(logits.argmax())
    scores = logits + sampling.temperature * noise
    if sampling.top_p < 1:
        share, order = (logits / sampling.temperature).softmax(-1).sort(descending=True, stable=True)
        out = share.cumsum(-1) - share >= sampling.top_p
        out[0] = False
        scores[order[out]] = -float("inf")
    return int(scores.argmax())


def settled(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> int | None:
    """What `draw` gives for these logits and all others within rounding of them; `None` if that is not one token."""
    scores = logits if noise is None else logits + sampling.temperature * noise
    certain: Tensor | None = None
    if noise is not None and sampling.top_p < 1:
        possible, certain = _nucleus(logits / sampling.temperature, sampling.top_p, MARGIN / sampling.temperature)
        scores = scores.masked_fill(~possible, -float("inf"))
    best = scores.topk(min(2, len(scores)))
    token = int(best.indices[0])
    if bool((best.values[0] - best.values[1:] <= MARGIN).any()) or (certain is not None and not certain[token]):
        return None
    return token


def gumbel(size: int, generator: Generator) -> Tensor:
    import torch

    # 64 bits: in 32 the rarest draws would be too common over a large vocabulary
    uniform = torch.rand(size, generator=generator, dtype=torch.float64)
    return -(-uniform.log()).log()


def _nucleus(logits: Tensor, top_p: float, margin: float) -> tuple[Tensor, Tensor]:
    """Tokens that may be among the likeliest and tokens that are, with each logit off by less than half the margin."""
    import torch

    falling, order = logits.sort(descending=True, stable=True)
    share = falling.softmax(-1)
    held = torch.cat([share.new_zeros(1), share.cumsum(-1)])
    surely_before = held[torch.searchsorted(-falling, -falling - margin)]
    maybe_before = held[torch.searchsorted(-falling, -falling + margin)] - share
    alone = maybe_before <= 0  # the likeliest is in, however little is asked for
    possible = surely_before < top_p + margin
    certain = (maybe_before < top_p - margin) | alone
    back = order.argsort()
    return possible[back], certain[back]
