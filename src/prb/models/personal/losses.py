"""The losses of all methods: small, pure, over torch tensors."""

from __future__ import annotations

from typing import Any

Tensor = Any


def bradley_terry(margins: Tensor) -> Tensor:
    """Mean −log σ(margin): how surprised the model is by the person's choices."""
    from torch.nn.functional import softplus

    return softplus(-margins).mean()


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) ‖ N(0, 1)), summed over the last axis: never negative, 0 for the prior itself."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def warm_up(progress: float, share: float) -> float:
    """0 → 1 over the first `share` of training, so that a latent is worth using before it costs anything."""
    return 1.0 if share <= 0 else min(1.0, progress / share)


def active_units(means: Tensor, threshold: float = 0.01) -> int:
    """Latent dimensions whose mean varies between persons (Burda et al., arXiv 1509.00519); 0 is a collapse."""
    if len(means) < 2:
        return 0
    return int((means.var(dim=0) > threshold).sum())


def squared(params: dict[str, Tensor], free: frozenset[str]) -> Tensor:
    """Σ w² over the penalised parameters."""
    return sum(value.square().sum() for name, value in params.items() if name not in free)
