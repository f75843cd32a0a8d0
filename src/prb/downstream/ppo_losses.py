"""The arithmetic of PPO over answer tokens: pure functions of tensors [answers, tokens], a mask where a token is real.

Losses are one number a token; who averages decides over what, so that a batch cut into pieces (gradient accumulation,
several processes) gives the gradient of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8


def token_rewards(scores: Tensor, logp: Tensor, reference: Tensor, mask: Tensor, *, kl: float) -> Tensor:
    """The reward model's word on the last token; on every token what leaving the reference costs
    (Ziegler et al. 2019, arXiv 1909.08593)."""
    rewards = -kl * (logp - reference) * mask
    last = mask.sum(1).long() - 1
    there = last >= 0  # an answer without a reward has no tokens left to put it on
    rewards[there, last[there]] += scores[there]
    return rewards


def advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2015, arXiv 1506.02438); after the last token there is
    nothing, so its next value is 0."""
    values = values * mask
    found = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        next_value = values[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(following)
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = (delta + gamma * lam * following) * mask[:, t]
        found[:, t] = following
    return found


def policy_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """The clipped surrogate (Schulman et al. 2017, arXiv 1707.06347)."""
    ratio = (logp - old_logp).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error; with a clip, the worse of it and of one that may move only so far from the old value."""
    error = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error


def clipped(logp: Tensor, old_logp: Tensor, *, clip: float) -> Tensor:
    """1 where the ratio has left the range in which it may still be pushed."""
    return ((logp - old_logp).exp() - 1).abs().gt(clip).float()


def update_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """How far the update has moved from where the answers were sampled: r − 1 − log r, never negative."""
    log_ratio = logp - old_logp
    return log_ratio.exp() - 1 - log_ratio


def moments(values: Tensor, mask: Tensor) -> Tensor:
    """Count, sum and sum of squares: what whitening needs, and what several processes can add up."""
    kept = values[mask.bool()].double()
    return torch.stack([torch.tensor(float(len(kept)), device=kept.device).double(), kept.sum(), kept.square().sum()])


def whiten(values: Tensor, mask: Tensor, sums: Tensor) -> Tensor:
    """Mean 0 and variance 1 over all that `sums` (see `moments`) were taken of."""
    count, total, squares = sums.tolist()
    mean = total / max(count, 1)
    variance = max(squares / max(count, 1) - mean * mean, 0.0)
    return values.sub(mean).div(variance**0.5 + EPSILON).mul(mask)


def next_kl(kl: float, seen: float, *, target: float, samples: int, horizon: int) -> float:
    """The proportional controller of Ziegler et al. 2019 (arXiv 1909.08593): dearer when too far, cheaper when near."""
    error = min(max(seen / target - 1, -0.2), 0.2)
    return kl * (1 + error * samples / horizon)
