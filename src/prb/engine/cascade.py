"""Cascade attention: many answers and the query they share in one row, without padding and without copies.

A row is a sequence of bundles: a prefix and the suffixes that follow it. The linear layers see a single text. Attention
is computed in parts: each piece causally to itself, pieces of similar length together, and all suffixes of a prefix to
its keys and values in one call; the parts are merged by their log-sum-exp.

The attention function is registered with transformers and switched on for the forward pass only. It replaces causal
attention without window, softcap or sinks; whatever else a model asks for is refused, and padded batches take over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask

from prb.engine.chat import Tokens, gathered


class Unsuited(Exception):
    """This model's attention is not what a cascade computes."""


class Partial(NamedTuple):
    out: Tensor
    """batch × heads × queries × size, in the model's dtype."""
    lse: Tensor
    """batch × heads × queries, in fp32."""


Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, ...]]
"""(query, key, value, scale, causal) → output and log-sum-exp first; keys may have fewer heads than queries."""


def attend(query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool = False) -> Partial:
    """All queries to all keys; `causal`: as many of both, and a query sees the keys up to its own."""
    groups = query.shape[1] // key.shape[1]
    kernel: Kernel = _kernel(query.device, query.dtype, key.shape[3], value.shape[3], groups, causal)
    out, lse, *_ = kernel(query, key, value, scale, causal)
    return Partial(out, lse[:, :, : query.shape[2]].float())  # some kernels round the number of rows up


def merge(one: Partial, other: Partial) -> Tensor:
    """Attention to the keys of both, in fp32."""
    weight = torch.sigmoid(other.lse - one.lse).unsqueeze(-1)
    return torch.lerp(one.out.float(), other.out.float(), weight)


def plain(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Partial:
    """Matrix products, by which a kernel is checked."""
    key, value = (part.float() for part in _repeated(key, value, query.shape[1]))
    scores = query.float() @ key.transpose(2, 3) * scale
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(dim=-1)
    return Partial((torch.exp(scores - lse.unsqueeze(-1)) @ value).to(query.dtype), lse)


def _repeated(key: Tensor, value: Tensor, heads: int) -> list[Tensor]:
    parts = (key, value)
    return [part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], dim=1) for part in parts]


ATEN: Any = torch.ops.aten
KERNELS: dict[str, tuple[Kernel, ...]] = {
    "cpu": (lambda q, k, v, s, c: ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, c, scale=s),),
    "cuda": (
        lambda q, k, v, s, c: ATEN._scaled_dot_product_flash_attention(
            q, *_repeated(k, v, q.shape[1]), 0.0, c, False, scale=s
        ),
        lambda q, k, v, s, c: ATEN._scaled_dot_product_efficient_attention(
            q, *_repeated(k, v, q.shape[1]), None, True, 0.0, c, scale=s
        ),
    ),
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
            out, lse, *_ = kernel(*example, key_size**-0.5, causal)
        except (RuntimeError, AttributeError, TypeError, ValueError, NotImplementedError):
            continue
        pairs = ((out, expected.out), (lse[:, :, :37], expected.lse))
        if all(torch.allclose(a.float(), b.float(), atol=tolerance) for a, b in pairs):
            return kernel
    raise Unsuited(f"no kernel for {dtype} on {device.type} gives attention with its log-sum-exp")


NAME = "prb_cascade"
SIMILAR = 0.75
"""Pieces whose lengths differ by at most this factor attend to themselves in one padded call."""
CHANGES = ("softcap", "s_aux", "position_bias", "head_mask")
"""Options by which models change plain attention."""


class Bundle(NamedTuple):
    """Token sequences that begin alike: a prefix, which may be empty, and the suffixes that follow it."""

    prefix: Tokens
    suffixes: Sequence[Tokens]

    @property
    def size(self) -> int:
        """Tokens, those of the prefix once."""
        return len(self.prefix) + sum(map(len, self.suffixes))


class Row:
    """One forward pass: where its pieces stand, and the attention among them."""

    def __init__(self, bundles: Sequence[Bundle], device: torch.device) -> None:
        ids: list[int] = []
        positions: list[int] = []
        self.spans: list[tuple[int, int]] = []
        """From where to where each piece stands: of each bundle the prefix, then the suffixes."""
        self._bundles: list[tuple[int, int, int]] = []
        """Where the prefix begins, where it ends, and where the suffixes that follow it end."""
        for prefix, suffixes in bundles:
            begin = len(ids)
            for tokens, before in [(prefix, 0), *((suffix, len(prefix)) for suffix in suffixes)]:
                self.spans.append((len(ids), len(ids) + len(tokens)))
                ids += tokens
                positions += range(before, before + len(tokens))
            self._bundles.append((begin, begin + len(prefix), len(ids)))
        self.ids = torch.tensor([ids], device=device)
        self.positions = torch.tensor([positions], device=device)
        self.longest = max(positions) + 1
        self.calls = 0
        self._groups: list[tuple[Tensor, tuple[Tensor, Tensor]]] = []
        """Pieces that attend to themselves in one call, padded on the right, which causal attention does not see:
        where in the row each token stands (pieces × longest), and which of these places are not padding."""
        lengths = [end - start for start, end in self.spans]
        falling = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: (-lengths[i], i))
        for group in gathered(falling, lambda group, i: lengths[i] >= SIMILAR * lengths[group[0]]):
            first, last = (torch.tensor([self.spans[i][side] for i in group])[:, None] for side in (0, 1))
            places = first + torch.arange(int((last - first).max()))
            row, column = (places < last).nonzero(as_tuple=True)
            self._groups.append((places.clamp(max=len(ids) - 1).to(device), (row.to(device), column.to(device))))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """1 × heads × tokens × size each → 1 × tokens × heads × size."""
        heads, tokens = query.shape[1], query.shape[2]
        self.calls += 1
        out = query.new_empty(tokens, heads, value.shape[3])
        lse = torch.empty(tokens, heads, device=query.device)
        by_token = [part[0].transpose(0, 1) for part in (query, key, value)]
        for on_first_device, real_on_first in self._groups:  # the layers of a large model may be on several devices
            places, real = on_first_device.to(query.device), tuple(index.to(query.device) for index in real_on_first)
            within = attend(*(part[places].transpose(1, 2) for part in by_token), scale=scale, causal=True)
            out[places[real]] = within.out.transpose(1, 2)[real]
            lse[places[real]] = within.lse.transpose(1, 2)[real]
        for begin, start, end in self._bundles:
            if not begin < start < end:  # without a prefix, or nothing follows it
                continue
            # the heads that share a key are folded into its rows, so that keys are never repeated
            folded = query[:, :, start:end].reshape(1, key.shape[1], -1, query.shape[3])
            shared = attend(folded, key[:, :, begin:start], value[:, :, begin:start], scale=scale)
            shared = Partial(*(part.reshape(1, heads, end - start, *part.shape[3:]) for part in shared))
            within = Partial(out[None, start:end].transpose(1, 2), lse[None, start:end].transpose(1, 2))
            out[start:end] = merge(within, shared)[0].transpose(0, 1)
        return out[None]


_ROW: ContextVar[Row | None] = ContextVar("row", default=None)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    row = _ROW.get()
    if row is None:  # another thread runs the same model meanwhile
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    changes = [name for name in CHANGES if options.get(name) is not None]
    window = options.get("sliding_window")
    causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise Unsuited("attention is not causal")
    if changes or attention_mask is not None or (window and row.longest > window):
        raise Unsuited(f"attention has {', '.join(changes) or 'a window or mask'}")
    if not query.shape[2] == key.shape[2] == value.shape[2] == row.spans[-1][1]:
        raise Unsuited("attention is not to the text itself")
    scale = options.get("scaling")
    return row.attend(query, key, value, query.shape[3] ** -0.5 if scale is None else scale), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, lambda **options: None if _ROW.get() else eager_mask(**options))


def input_device(model: Any) -> torch.device:
    """Where inputs go: a model on several devices begins with its embeddings."""
    device: torch.device = model.get_input_embeddings().weight.device
    return device


class Cascade:
    """A model body that reads rows of bundles."""

    def __init__(self, body: Any) -> None:
        """`Unsuited` for models that compute attention in their own way or take no positions."""
        model = next((m for m in body.modules() if isinstance(m, PreTrainedModel)), None)
        if model is None or not getattr(model, "_supports_attention_backend", False):
            raise Unsuited
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        plain = kinds <= {"full_attention", "sliding_attention"} and not getattr(config, "attn_logit_softcapping", None)
        if not plain or "position_ids" not in inspect.signature(model.forward).parameters:
            raise Unsuited
        self._body, self._model = body, model
        self._configs = {id(m.config): m.config for m in body.modules() if hasattr(m, "config")}.values()
        config = body.config.get_text_config()
        self._layers = config.num_hidden_layers
        kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
        self._window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None

    def fits(self, bundle: Bundle) -> bool:
        """Whether its texts stay within the model's sliding window, if it has one."""
        return self._window is None or len(bundle.prefix) + max(map(len, bundle.suffixes)) <= self._window

    def read(self, bundles: Sequence[Bundle]) -> list[Tensor]:
        """The states of each prefix, followed by those of its suffixes; `Unsuited` if this model attends otherwise."""
        row = Row(bundles, input_device(self._model))
        active, before = _ROW.set(row), [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            output = self._body(input_ids=row.ids, position_ids=row.positions, use_cache=False)
        except (KeyError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
            raise Unsuited(str(error)) from error
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name
            _ROW.reset(active)
        if row.calls != self._layers:
            raise Unsuited(f"{row.calls} of {self._layers} layers attend through transformers' interface")
        return [output.last_hidden_state[0, a:b] for a, b in row.spans]
