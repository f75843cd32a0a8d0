"""How a model may be run: with shared prefixes, whole texts in padded batches, or whole texts of one length.

The answers to a query share what comes before them only if the model gives the same states either way. That is tried on
the model itself when it is loaded, in its own dtype. Batching alone changes states by rounding, little in 32 bits and
visibly in 16; sharing may change them by a few times as much, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from prb.engine.cascade import input_device
from prb.engine.chat import Tokens
from prb.engine.load import Checkpoint
from prb.engine.prefix import Bundle, Reduce, SharedPrefix, batches, padded_inputs, to_host

T = TypeVar("T")

PROBE_TEXT = """\
She had kept the garden for thirty years, and every spring it surprised her. The pear tree by the wall, which nobody
remembered planting, bloomed a week before anything else; the herbs came back wherever they liked. "You could put it in
order," her neighbor used to say, leaning over the gate. "Rows, labels, a plan." She had tried that once, in 2009, with
string and 40 small wooden signs. By June the mint had taken the signs down. What do you do with a plan that grows? You
water it, she said, and see. On Sundays her grandson came to dig, ask questions, and eat the peas straight from the pod.
"""
"""Ordinary prose: with it, attention, positions and masks matter as they do in use."""
PROBE_TOKENS = 72
ROUNDING = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.4}
"""Padding that changes states by more than this share of their size is not rounding."""
TIMES, STEPS = 4.0, 4.0
"""Sharing may differ by this multiple of the noise of padding, or this many steps of the dtype, whichever is more."""
ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
RUN_ERRORS = (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, IndexError, KeyError)
"""What models raise that do not take a mask, positions or a cache as others do."""


@dataclass(frozen=True)
class Sharing:
    """What a model allows, and why not more."""

    prefixes: bool
    """The answers to a query may share what comes before them."""
    padding: bool = True
    """Texts of different lengths may share a batch."""
    limit: int | None = None
    """Longest text to which this applies; longer ones are run one at a time."""
    why: str = ""

    def __str__(self) -> str:
        if self.prefixes and self.limit:
            return f"prefixes shared up to {self.limit:,} tokens, longer texts run one at a time: {self.why}"
        if self.prefixes:
            return "prefixes shared"
        batches = "whole texts in padded batches" if self.padding else "whole texts, one length per batch"
        return f"prefixes not shared, {batches}: {self.why}"


def probe_tokens(tokenizer: Any, longest: int) -> list[int]:
    """At least 64 tokens of prose, unless the model reads fewer."""
    length = min(PROBE_TOKENS, longest)
    return list(tokenizer(PROBE_TEXT, truncation=True, max_length=length)["input_ids"])[:length]


@torch.inference_mode()
def probe(body: Any, tokens: Tokens) -> Sharing:
    """Runs the tokens whole, padded, and with a shared prefix, and compares the states."""
    limit, rope = rope_switch(body.config.get_text_config())
    tokens = tokens[:limit]
    start = tokens[: max(1, len(tokens) // 12)]  # short inputs take other kernels, with a rounding of their own
    try:
        alone, whole = _states(body, [start])[0], _states(body, [tokens])[0]
        noise = _noise(body, start, tokens, alone, whole)
    except RUN_ERRORS as error:
        return Sharing(False, padding=False, limit=limit, why=f"it takes no attention mask ({_line(error)})")
    if not noise <= ROUNDING[whole.dtype]:
        return Sharing(False, padding=False, limit=limit, why="padding changes its states")
    if _distance(whole[: len(start)], alone, whole) > _room(noise, whole):
        return Sharing(False, limit=limit, why="it looks ahead, as encoders do")
    why = f"it keeps other state than keys and values ({kinds})" if (kinds := state_layers(body)) else ""
    try:
        off = 0.0 if why else _shared_distance(body, tokens, whole)
        if off > _room(noise, whole):  # prefixes are padded on the left, which may be noisier
            noise = max(noise, min(ROUNDING[whole.dtype], _noise(body, start, tokens, alone, whole, left=True)))
        if not off <= _room(noise, whole):
            why = "its states are not the same with a shared prefix"
    except RUN_ERRORS as error:
        why = f"it takes no keys and values from outside ({_line(error)})"
    return Sharing(not why, limit=limit, why=why or rope)


def rope_switch(config: Any) -> tuple[int | None, str]:
    """The length beyond which rotary frequencies depend on the longest text of a batch, and the type that does so."""
    stated = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [part for part in stated.values() if isinstance(part, dict)]  # some models have one set per kind of layer
    switches = []
    for part in nested or [stated]:
        kind = part.get("rope_type", part.get("type"))
        if kind in ("dynamic", "longrope"):
            fallback = getattr(config, "original_max_position_embeddings", None) or config.max_position_embeddings
            switches.append((int(part.get("original_max_position_embeddings") or fallback), f"rope_type {kind}"))
    return min(switches, default=(None, ""))


def state_layers(body: Any) -> str:
    """Kinds of layers that are not attention; a prefix leaves more of them than keys and values."""
    kinds = set(getattr(body.config.get_text_config(), "layer_types", None) or ()) - ATTENTION
    if kinds:
        return ", ".join(sorted(kinds))
    return str(body.config.model_type) if getattr(body, "_is_stateful", False) else ""


def _states(body: Any, rows: Sequence[Tokens], *, left: bool = False) -> list[Tensor]:
    """The states of each row, padded if their lengths differ."""
    inputs = padded_inputs(rows, input_device(body), left=left)
    if left:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    if inputs["attention_mask"].all():
        del inputs["attention_mask"]
    states = body(**inputs).last_hidden_state
    return [states[n, -len(row) :] if left else states[n, : len(row)] for n, row in enumerate(rows)]


def _noise(body: Any, start: Tokens, tokens: Tokens, alone: Tensor, whole: Tensor, *, left: bool = False) -> float:
    """How much a batch with another text, and padding, change states."""
    padded, longest = _states(body, [start, tokens], left=left)
    return max(_distance(padded, alone, whole), _distance(longest, whole, whole))


def _room(noise: float, whole: Tensor) -> float:
    """How far states may differ."""
    return max(TIMES * noise, STEPS * torch.finfo(whole.dtype).eps)


def _shared_distance(body: Any, tokens: Tokens, whole: Tensor) -> float:
    """How far states after a shared prefix are from those of the whole text; a shorter neighbor makes it padded."""
    third = len(tokens) // 3
    suffixes = (tokens[third:], tokens[third : 2 * third])
    bundles = [Bundle(tokens[:third], suffixes), Bundle(tokens[:2], (tokens[2:5],))]
    shared = SharedPrefix(body, budget=8 * len(tokens)).run(bundles, lambda states, *_: states[1:])
    return max(_distance(states, whole[third : third + len(states)], whole) for states in shared[0])


def _distance(states: Tensor, expected: Tensor, whole: Tensor) -> float:
    """The largest root mean square difference of a token's state, each dimension by its own size.

    A few dimensions are far larger than the others, and would hide what happens to them.
    """
    size = whole.float().abs().mean(dim=0)
    size = size.clamp(min=1e-3 * float(size.mean()))
    return float(((states.float() - expected.float()) / size).square().mean(dim=1).sqrt().max())


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


class States:
    """As `SharedPrefix` where the model allows it; else each text is computed whole."""

    def __init__(self, checkpoint: Checkpoint, body: Any = None) -> None:
        """`body`: what computes the states, if it is not the body of the checkpoint's model."""
        self.sharing, self._budget = checkpoint.sharing, checkpoint.budget
        self._body = checkpoint.body if body is None else body
        self._shared = SharedPrefix(self._body, budget=checkpoint.budget, keep=checkpoint.keep)

    def run(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        """One result for each suffix of each bundle, in order."""
        longest = [len(b.prefix) + max(map(len, b.suffixes)) for b in bundles]
        most = (self.sharing.limit or math.inf) if self.sharing.prefixes else -1
        shared = [n for n, length in enumerate(longest) if length <= most]
        whole = [n for n, length in enumerate(longest) if length > most]
        results: dict[int, list[T]] = {}
        forget_lengths(self._body)
        for part, run in ((shared, self._shared.run), (whole, self._run_whole)):
            rows = run([bundles[n] for n in part], lambda states, row, k, part=part: reduce(states, part[row], k))  # type: ignore[misc]
            results.update(zip(part, rows, strict=True))
        return [results[n] for n in range(len(bundles))]

    @torch.inference_mode()
    def _run_whole(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        owner = [(row, k) for row, b in enumerate(bundles) for k in range(len(b.suffixes))]
        texts = [[*bundles[row].prefix, *bundles[row].suffixes[k]] for row, k in owner]
        results: list[list[Any]] = [[None] * len(b.suffixes) for b in bundles]
        for batch in whole_batches([len(text) for text in texts], self._budget, self.sharing):
            forget_lengths(self._body)
            inputs = padded_inputs([texts[i] for i in batch], input_device(self._body))
            states = self._body(**inputs).last_hidden_state
            reduced = []
            for position, i in enumerate(batch):
                row, k = owner[i]
                before = len(bundles[row].prefix) - 1
                of_text = states[position, max(0, before) : len(texts[i])]
                if before < 0:  # nothing comes before the first token
                    of_text = torch.cat([torch.zeros_like(of_text[:1]), of_text])
                reduced.append(reduce(of_text, row, k))
            for i, value in zip(batch, to_host(reduced), strict=True):
                row, k = owner[i]
                results[row][k] = value
        return results


def whole_batches(lengths: Sequence[int], budget: int, sharing: Sharing) -> Iterator[list[int]]:
    """Positions of texts that may share a forward pass: as `batches`, as far as the model allows it."""
    short = [i for i, length in enumerate(lengths) if sharing.limit is None or length <= sharing.limit]
    for batch in batches([lengths[i] for i in short], budget):
        positions = [short[i] for i in batch]
        if sharing.padding:
            yield positions
        else:
            for length in sorted({lengths[i] for i in positions}, reverse=True):
                yield [i for i in positions if lengths[i] == length]
    yield from ([i] for i, length in enumerate(lengths) if sharing.limit is not None and length > sharing.limit)


def forget_lengths(model: Any) -> None:
    """Rotary embeddings of type `dynamic` remember the longest text so far, and would use its frequencies for this one.

    With a maximum of 0 they compute them for every text: those of the original length up to it, longer ones beyond.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic" and hasattr(module, "max_seq_len_cached"):
            module.max_seq_len_cached = 0
