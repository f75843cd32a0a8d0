"""The arithmetic of PPO over answer tokens: pure functions of tensors [answers, tokens], with a mask of real tokens.

Losses are per token. The caller averages, so that a batch in pieces (gradient accumulation, several processes) gives
the gradient of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-8
MAX_KL_ERROR = 0.2
"""How far one batch may move the KL penalty coefficient, as in Ziegler et al."""


def token_rewards(scores: Tensor, logp: Tensor, reference: Tensor, mask: Tensor, *, kl: float) -> Tensor:
    """The reward on the last token, and the KL penalty on every token (Ziegler et al. 2019, arXiv 1909.08593)."""
    rewards = -kl * (logp - reference) * mask
    last = mask.sum(1).long() - 1
    answered = last >= 0  # an answer without a reward has no tokens left to put it on
    rewards[answered, last[answered]] += scores[answered]
    return rewards


def advantages(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2015, arXiv 1506.02438); the value after the last token is
    0."""
    values = values * mask
    result = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        next_value = values[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(following)
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = (delta + gamma * lam * following) * mask[:, t]
        result[:, t] = following
    return result


def policy_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, *, clip: float) -> Tensor:
    """The clipped surrogate (Schulman et al. 2017, arXiv 1707.06347)."""
    ratio = (logp - old_logp).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error; with a clip, the larger of it and that of a value clipped around the old one."""
    error = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error


def clipped(logp: Tensor, old_logp: Tensor, *, clip: float) -> Tensor:
    """1 where the probability ratio is outside the clip range."""
    return ((logp - old_logp).exp() - 1).abs().gt(clip).float()


def update_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Estimated KL between the policy that sampled and the updated one: r − 1 − log r, never negative."""
    log_ratio = logp - old_logp
    return log_ratio.exp() - 1 - log_ratio


def moments(values: Tensor, mask: Tensor) -> Tensor:
    """Count, sum and sum of squares: what whitening needs, and what several processes can add up."""
    kept = values[mask.bool()].double()
    return torch.stack([torch.tensor(float(len(kept)), device=kept.device).double(), kept.sum(), kept.square().sum()])


def whiten(values: Tensor, mask: Tensor, sums: Tensor) -> Tensor:
    """Mean 0 and variance 1 over everything that `sums` (see `moments`) covers."""
    count, total, squares = sums.tolist()
    mean = total / max(count, 1)
    variance = max(squares / max(count, 1) - mean * mean, 0.0)
    return values.sub(mean).div(variance**0.5 + EPSILON).mul(mask)


def next_kl(kl: float, measured: float, *, target: float, samples: int, horizon: int) -> float:
    """The proportional controller of Ziegler et al. 2019 (arXiv 1909.08593): the coefficient grows while answers are
    further than `target` from the reference, and shrinks while they are nearer."""
    error = min(max(measured / target - 1, -MAX_KL_ERROR), MAX_KL_ERROR)
    return kl * (1 + error * samples / horizon)
