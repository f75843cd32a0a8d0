"""Attention to a part of the keys, with the log-sum-exp of its scores, so that parts merge exactly.

torch's own attention does not return the log-sum-exp; the kernels below it do, but they are private. Each is therefore
tried on a few numbers first and used only if it agrees with plain matrix products, which are what remains otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

SCORES = 2**24
"""Most scores that plain attention holds at once."""


class Partial(NamedTuple):
    out: Tensor
    """batch × heads × queries × size, in the model's dtype."""
    lse: Tensor
    """batch × heads × queries, in fp32."""


Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], Partial]
"""(query, key, value, scale, causal); keys may have fewer heads than queries."""


def attend(query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool = False) -> Partial:
    """All queries to all keys; `causal`: as many of both, and a query sees the keys up to its own."""
    groups = query.shape[1] // key.shape[1]
    kernel: Kernel = _kernel(query.device, query.dtype, key.shape[3], value.shape[3], groups, causal)
    return kernel(query, key, value, scale, causal)


def attend_folded(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Partial:
    """As `attend` without a mask, with the heads that share a key folded into its rows: keys are never repeated."""
    batch, heads, rows, size = query.shape
    shared = key.shape[1]
    out, lse = attend(query.reshape(batch, shared, -1, size), key, value, scale=scale)
    return Partial(out.reshape(batch, heads, rows, -1), lse.reshape(batch, heads, rows))


def merge(one: Partial, other: Partial) -> Tensor:
    """Attention to the keys of both, in fp32."""
    weight = torch.sigmoid(other.lse - one.lse).unsqueeze(-1)
    return torch.lerp(one.out.float(), other.out.float(), weight)


def plain(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Partial:
    key, value = (_repeated(part, query.shape[1]).float() for part in (key, value))
    batch, heads, rows, _ = query.shape
    step = max(1, SCORES // (batch * heads * key.shape[2]))
    outs, sums = [], []
    for start in range(0, rows, step):
        scores = query[:, :, start : start + step].float() @ key.transpose(2, 3) * scale
        if causal:
            hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device).triu(start + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        sums.append(scores.logsumexp(dim=-1))
        outs.append(torch.exp(scores - sums[-1].unsqueeze(-1)) @ value)
    return Partial(torch.cat(outs, dim=2).to(query.dtype), torch.cat(sums, dim=2))


def _cpu_flash(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Partial:
    flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = flash(query, key, value, 0.0, causal, scale=scale)
    return Partial(out, lse)


def _gpu_flash(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Partial:
    flash: Any = torch.ops.aten._scaled_dot_product_flash_attention
    out, lse, *_ = flash(query, key, value, 0.0, causal, False, scale=scale)
    return Partial(out, lse[:, :, : query.shape[2]].float())


def _gpu_efficient(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Partial:
    efficient: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    out, lse, *_ = efficient(query, key, value, None, True, 0.0, causal, scale=scale)
    return Partial(out, lse[:, :, : query.shape[2]].float())  # rows are rounded up to a multiple of 32


def _with_repeated_keys(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool
) -> Partial:
    heads = query.shape[1]
    return kernel(query, _repeated(key, heads), _repeated(value, heads), scale, causal)


def _repeated(part: Tensor, heads: int) -> Tensor:
    return part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], dim=1)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "cpu": (_cpu_flash, partial(_with_repeated_keys, _cpu_flash)),
    "cuda": tuple(partial(_with_repeated_keys, kernel) for kernel in (_gpu_flash, _gpu_efficient)),
}
"""By device, the fastest first."""


@cache
def _kernel(
    device: torch.device, dtype: torch.dtype, key_size: int, value_size: int, groups: int, causal: bool
) -> Kernel:
    """The fastest kernel that gives what plain matrix products give."""
    random = torch.Generator().manual_seed(0)

    def numbers(heads: int, rows: int, size: int) -> Tensor:
        return torch.randn(2, rows, heads, size, generator=random).to(device, dtype).transpose(1, 2)

    example = numbers(2 * groups, 37, key_size), numbers(2, 37, key_size), numbers(2, 37, value_size)
    expected = plain(*example, key_size**-0.5, causal)
    tolerance = 5e-3 if dtype == torch.float32 else 3e-2
    for kernel in KERNELS.get(device.type, ()):
        try:
            found = kernel(*example, key_size**-0.5, causal)
        except (RuntimeError, AttributeError, TypeError, ValueError, NotImplementedError):
            continue
        if all(torch.allclose(a.float(), b.float(), atol=tolerance) for a, b in zip(found, expected, strict=True)):
            return kernel
    return plain
