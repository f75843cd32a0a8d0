"""Hidden states of many answers to the same query, with the query computed once.

There are three ways, and each model takes the fastest that gives the states of a plain forward pass:

1. packed: prefixes and suffixes in rows of a token budget, without padding and without copies (cascade.py);
2. copied: a prefix goes through the model alone, and each suffix then attends to a copy of its keys and values;
3. whole: every text by itself, in padded batches or one at a time (run by heads.py).

Whether prefixes may be shared is tried on the model itself when it is loaded, in its own dtype. Batching alone changes
states by rounding, little in 32 bits and visibly in 16; sharing may change them by a few times as much, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache

from prb.engine.cascade import Bundle, Cascade, Unsuited, input_device
from prb.engine.chat import Tokens, common_prefix, gathered
from prb.errors import first_line

COPIED_BYTES = 2 * 2**30
"""For copies of prefixes' keys and values in one forward pass."""

LARGEST = 4
"""How many times the tokens of a forward pass the suffixes of one bundle may have in a packed row."""

T = TypeVar("T")
Reduce = Callable[[Tensor, int, int], T]
"""(states, bundle, suffix) → result. states[0] belongs to the last prefix token, states[1:] to the suffix.

A result that is a view of the states would keep all of them in memory."""


def bundle(sequences: Sequence[Tokens], at_most: int | None = None) -> Bundle:
    """Split after the longest common beginning that leaves every sequence at least one token of its own."""
    shared = common_prefix(sequences)
    shared = min(shared, *(len(s) - 1 for s in sequences), shared if at_most is None else at_most)
    return Bundle(sequences[0][:shared], tuple(s[shared:] for s in sequences))


@dataclass(frozen=True)
class Sharing:
    """What a model allows, and why not more."""

    prefixes: bool
    """The answers to a query may share what comes before them."""
    padding: bool = True
    """Texts of different lengths may share a batch."""
    why: str = ""

    def __str__(self) -> str:
        if self.prefixes:
            return "prefixes shared"
        batches = "whole texts in padded batches" if self.padding else "whole texts, one at a time"
        return f"prefixes not shared, {batches}: {self.why}"


class Piece(NamedTuple):
    """Consecutive suffixes of a bundle that are read together after its prefix."""

    number: int
    """Of the bundle."""
    first: int
    """The number of the first of these suffixes."""
    tokens: Bundle


def packed_rows(bundles: Mapping[int, Bundle], budget: int) -> Iterator[list[Piece]]:
    """Pieces of numbered bundles in rows of at most `budget` tokens.

    A bundle that is larger has a row of its own. Its prefix is read again only if its suffixes alone are `LARGEST`
    times the budget.
    """
    row: list[Piece] = []
    length = 0
    for number, whole in bundles.items():
        first = 0
        for suffixes in gathered(whole.suffixes, lambda group, one: sum(map(len, [*group, one])) <= LARGEST * budget):
            piece = Piece(number, first, Bundle(whole.prefix, suffixes))
            if row and length + piece.tokens.size > budget:
                yield row
                row, length = [], 0
            row.append(piece)
            length += piece.tokens.size
            first += len(suffixes)
    if row:
        yield row


Done = Iterator[tuple[int, int, Tensor]]
"""Number of a bundle, number of one of its suffixes, and the states as `Reduce` takes them."""


class States:
    """A model body that reads the suffixes of a bundle after a prefix that is computed once."""

    def __init__(self, body: Any, budget: int) -> None:
        """`budget`: tokens per forward pass."""
        self._body, self._budget = body, budget
        self._device = input_device(body)
        self._cascade: Cascade | None = None
        with suppress(Unsuited):
            self._cascade = Cascade(body)

    def packs(self, bundle: Bundle) -> bool:
        """Whether this bundle is read without padding and without copies of its prefix's keys and values."""
        return self._cascade is not None and self._cascade.fits(bundle)

    @torch.inference_mode()
    def run(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        """One result for each suffix of each bundle, in order."""
        results: list[list[Any]] = [[None] * len(each.suffixes) for each in bundles]

        def finish(done: Done) -> None:
            for number, suffix, states in done:
                results[number][suffix] = reduce(states, number, suffix)

        packed = {number: each for number, each in enumerate(bundles) if self.packs(each)}
        try:
            finish(self._packed(packed))
        except Unsuited:
            self._cascade, packed = None, {}
        for number, each in enumerate(bundles):
            if number not in packed:
                finish(self._copied(number, each))
        return results

    def _packed(self, bundles: Mapping[int, Bundle]) -> Done:
        for row in packed_rows(bundles, self._budget):
            assert self._cascade is not None
            states = iter(self._cascade.read([piece.tokens for piece in row]))
            for number, first, (prefix, suffixes) in row:
                before = next(states)[-1:]
                for n in range(len(suffixes)):
                    suffix = next(states)
                    last = before if prefix else torch.zeros_like(suffix[:1])  # nothing comes before it
                    yield number, first + n, torch.cat([last, suffix])

    def _copied(self, number: int, bundle: Bundle) -> Done:
        (prefix, suffixes), layers, copies = bundle, [], None
        last: Tensor | None = None
        if prefix:
            # a cache without the model's config keeps every position, also of layers with a sliding window;
            # the attention mask applies the window
            ids = torch.tensor([list(prefix)], device=self._device)
            output = self._body(input_ids=ids, past_key_values=DynamicCache(), use_cache=True)
            layers, last = output.past_key_values.layers, output.last_hidden_state[0, -1:]
            copies = max(1, COPIED_BYTES // sum(layer.keys.nbytes + layer.values.nbytes for layer in layers))
        for chunk in batches(list(map(len, suffixes)), self._budget, copies):
            ids, mask = padded_inputs([suffixes[i] for i in chunk], self._device).values()
            cache = DynamicCache()  # a forward pass appends to the cache it is given
            for place, layer in enumerate(layers):
                cache.update(*(part.expand(len(chunk), -1, -1, -1) for part in (layer.keys, layer.values)), place)
            states: Tensor = self._body(
                input_ids=ids,
                attention_mask=torch.cat([mask.new_ones(len(chunk), len(prefix)), mask], dim=1),
                # padding repeats a position: a larger one than any real token's would switch some rotary embeddings
                position_ids=len(prefix) + mask.cumsum(dim=1) - 1,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            before = torch.zeros_like(states[0, :1]) if last is None else last  # nothing comes before the first token
            for i, suffix in zip(chunk, states, strict=True):
                yield number, i, torch.cat([before, suffix[: len(suffixes[i])]])


def batches(lengths: Sequence[int], budget: int, rows: int | None = None) -> list[list[int]]:
    """Positions in groups of at most `rows` whose padded size, rows × longest, stays within the budget; similar lengths
    go together."""
    falling = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return gathered(falling, lambda group, _: (len(group) + 1) * lengths[group[0]] <= budget and len(group) != rows)


def padded_inputs(
    sequences: Sequence[Tokens], device: torch.device, *, pad: int = 0, left: bool = False
) -> dict[str, Tensor]:
    """The inputs of a model: ids, padded on the right unless `left`, and their mask."""
    ids = torch.full((len(sequences), max(map(len, sequences))), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for n, sequence in enumerate(sequences):
        place = slice(ids.shape[1] - len(sequence), None) if left else slice(len(sequence))
        ids[n, place] = torch.tensor(sequence, dtype=torch.long)
        mask[n, place] = 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def forget_lengths(model: Any) -> None:
    """Rotary embeddings of type `dynamic` remember the longest text so far, and would use its frequencies for this one.

    With a maximum of 0 they compute them for every text: those of the original length up to it, longer ones beyond.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic" and hasattr(module, "max_seq_len_cached"):
            module.max_seq_len_cached = 0


# What a model allows is tried on it.

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


@torch.inference_mode()
def probe(body: Any, tokens: Tokens) -> Sharing:
    """Runs the tokens whole, padded, and with a shared prefix, and compares the states."""
    config = body.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [part for part in rope.values() if isinstance(part, dict)]  # some models have one set per kind of layer
    kinds = {str(part.get("rope_type", part.get("type"))) for part in nested or [rope]} & {"dynamic", "longrope"}
    if kinds:
        return Sharing(False, padding=False, why=f"its positions depend on the length of a text (rope {min(kinds)})")
    start = tokens[: max(1, len(tokens) // 12)]  # short inputs take other kernels, with a rounding of their own

    try:
        alone, whole = _states(body, [start])[0], _states(body, [tokens])[0]
        padded, longest = _states(body, [start, tokens])
    except RUN_ERRORS as error:
        return Sharing(False, padding=False, why=f"it takes no attention mask ({first_line(error)[:120]})")
    # how much a batch with another text, and padding, change states
    noise = max(_distance(padded, alone, whole), _distance(longest, whole, whole))
    if not noise <= ROUNDING[whole.dtype]:
        return Sharing(False, padding=False, why="padding changes its states")
    room = max(TIMES * noise, STEPS * torch.finfo(whole.dtype).eps)
    if _distance(whole[: len(start)], alone, whole) > room:
        return Sharing(False, why="it looks ahead, as encoders do")
    # a prefix leaves more of other layers than keys and values
    other_layers = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION)
    if not other_layers and getattr(body, "_is_stateful", False):
        other_layers = [str(body.config.model_type)]
    if other_layers:
        return Sharing(False, why=f"it keeps other state than keys and values ({', '.join(other_layers)})")
    third, why = len(tokens) // 3, ""
    suffixes = (tokens[third:], tokens[third : 2 * third])  # the shorter one makes it padded
    bundles = [Bundle(tokens[:third], suffixes), Bundle(tokens[:2], (tokens[2:5],))]
    try:
        shared, _ = States(body, budget=8 * len(tokens)).run(bundles, lambda states, *_: states[1:])
        if not max(_distance(states, whole[third : third + len(states)], whole) for states in shared) <= room:
            why = "its states are not the same with a shared prefix"
    except RUN_ERRORS as error:
        why = f"it takes no keys and values from outside ({first_line(error)[:120]})"
    return Sharing(not why, why=why)


def _states(body: Any, rows: Sequence[Tokens]) -> list[Tensor]:
    """The states of each row, padded if their lengths differ."""
    inputs = padded_inputs(rows, input_device(body))
    if inputs["attention_mask"].all():
        del inputs["attention_mask"]
    return [states[: len(row)] for states, row in zip(body(**inputs).last_hidden_state, rows, strict=True)]


def _distance(states: Tensor, expected: Tensor, whole: Tensor) -> float:
    """The largest root mean square difference of a token's state, each dimension by its own size.

    A few dimensions are far larger than the others, and would hide what happens to them.
    """
    size = whole.float().abs().mean(dim=0)
    size = size.clamp(min=1e-3 * float(size.mean()))
    return float(((states.float() - expected.float()) / size).square().mean(dim=1).sqrt().max())
