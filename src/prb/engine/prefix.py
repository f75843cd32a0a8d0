"""Hidden states of many answers to the same query, with the query computed once.

Prefixes and suffixes are packed into rows of a token budget (cascade.py). Models whose attention a cascade does not
cover take padded batches: the prefix of a bundle goes through the model first and leaves its keys and values; each
suffix then attends to a copy of them. Several prefixes share a forward pass if they fit the token budget: they are
padded on the left, so that every suffix follows its own prefix without a gap (sliding windows count indices, not
positions), and masked, so that a row's states do not depend on its neighbors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache

from prb.engine.cascade import Cascade, Piece, Prefix, Unsuited, input_device
from prb.engine.chat import Tokens, common_prefix

COPIED_BYTES = 2 * 2**30
"""For copies of prefixes' keys and values in one forward pass."""

T = TypeVar("T")
Reduce = Callable[[Tensor, int, int], T]
"""(states, bundle, suffix) → result. states[0] belongs to the last prefix token, states[1:] to the suffix.

Tensors come back from the model's device together, one copy per forward pass."""


@dataclass(frozen=True)
class Bundle:
    """Token sequences that begin alike."""

    prefix: Tokens
    suffixes: tuple[Tokens, ...]

    @property
    def repeated(self) -> int:
        """Tokens a plain loop computes."""
        return sum(len(self.prefix) + len(suffix) for suffix in self.suffixes)

    @property
    def unique(self) -> int:
        return len(self.prefix) + sum(map(len, self.suffixes))


def bundle(sequences: Sequence[Tokens], at_most: int | None = None) -> Bundle:
    """Split after the longest common beginning that leaves every sequence at least one token of its own."""
    shared = common_prefix(sequences)
    shared = min(shared, *(len(s) - 1 for s in sequences), shared if at_most is None else at_most)
    return Bundle(sequences[0][:shared], tuple(s[shared:] for s in sequences))


def batches(lengths: Sequence[int], budget: int, rows: int | None = None) -> Iterator[list[int]]:
    """Positions in groups of at most `rows` whose padded size, rows × longest, stays within the budget; similar lengths
    go together."""
    group: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and ((len(group) + 1) * lengths[group[0]] > budget or len(group) == rows):
            yield group
            group = []
        group.append(position)
    if group:
        yield group


def rows(bundles: Sequence[Bundle], known: Callable[[int], bool], budget: int) -> Iterator[list[tuple[int, int]]]:
    """(bundle, suffix), with suffix -1 for a prefix that is not known, in rows of at most `budget` tokens, in order."""
    row: list[tuple[int, int]] = []
    length = 0
    for i, each in enumerate(bundles):
        first = 0 if not each.prefix or known(i) else -1
        for k in range(first, len(each.suffixes)):
            tokens = len(each.prefix if k < 0 else each.suffixes[k])
            if row and length + tokens > budget:
                yield row
                row, length = [], 0
            row.append((i, k))
            length += tokens
    if row:
        yield row


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


class SharedPrefix:
    def __init__(self, body: Any, *, budget: int, keep: int = 0) -> None:
        """`keep`: bytes for prefixes that may come again in a later call."""
        self._body, self._budget = body, budget
        self._kept = KeptPrefixes(keep) if keep else None
        self._device = input_device(body)
        self._cascade = Cascade.of(body)

    def packs(self, bundle: Bundle) -> bool:
        """Whether this bundle is read without padding and without copies of its prefix's keys and values."""
        longest = len(bundle.prefix) + max(map(len, bundle.suffixes), default=0)
        return self._cascade is not None and self._cascade.fits(longest)

    @torch.inference_mode()
    def run(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        """One result for each suffix of each bundle, in order."""
        results: list[list[Any]] = [[None] * len(b.suffixes) for b in bundles]
        packed = [i for i, b in enumerate(bundles) if self.packs(b)]
        try:
            self._run_packed(bundles, packed, reduce, results)
        except Unsuited:
            self._cascade, packed = None, []
        self._run_padded(bundles, sorted(set(range(len(bundles))) - set(packed)), reduce, results)
        return results

    def _run_packed(
        self, bundles: Sequence[Bundle], chosen: Sequence[int], reduce: Reduce[Any], results: list[list[Any]]
    ) -> None:
        cascade, packed = self._cascade, [bundles[i] for i in chosen]
        earlier: dict[int, Prefix] = {}  # prefixes that were read before, by bundle

        def known(i: int) -> bool:
            if self._kept and (prefix := self._kept.get(packed[i].prefix)):
                earlier[i] = prefix
            return i in earlier

        for row in rows(packed, known, self._budget):
            assert cascade is not None
            prefixes = {i: n for n, (i, k) in enumerate(row) if k < 0}
            pieces = [
                Piece(packed[i].prefix) if k < 0 else Piece(packed[i].suffixes[k], earlier.get(i, prefixes.get(i)))
                for i, k in row
            ]  # fmt: skip
            last, suffix = row[-1]
            unfinished = last if suffix + 1 < len(packed[last].suffixes) else None
            keep = {n: i for i, n in prefixes.items() if self._kept or i == unfinished}
            states, layers = cascade.read(pieces, keep)
            for n, i in keep.items():
                earlier[i] = Prefix(layers[n], states[n][-1].clone())
                if self._kept:
                    self._kept.put(packed[i].prefix, earlier[i])
            ends = {i: prefix.last[None] for i, prefix in earlier.items()}
            ends |= {i: states[n][-1:] for i, n in prefixes.items()}
            none = torch.zeros_like(states[0][:1])
            suffixes = [(n, i, k) for n, (i, k) in enumerate(row) if k >= 0]
            values = [reduce(torch.cat([ends.get(i, none), states[n]]), chosen[i], k) for n, i, k in suffixes]
            for (_, i, k), value in zip(suffixes, to_host(values), strict=True):
                results[chosen[i]][k] = value
            earlier = {i: prefix for i, prefix in earlier.items() if i == unfinished or i > last}

    def _run_padded(
        self, bundles: Sequence[Bundle], chosen: Sequence[int], reduce: Reduce[Any], results: list[list[Any]]
    ) -> None:
        for numbers in batches([len(bundles[i].prefix) for i in chosen], self._budget):
            group = [chosen[n] for n in numbers]
            cache, last, mask = self._read_prefixes([bundles[i].prefix for i in group])
            owner = [(row, k) for row, i in enumerate(group) for k in range(len(bundles[i].suffixes))]
            suffixes = [bundles[group[row]].suffixes[k] for row, k in owner]
            for chunk in batches([len(s) for s in suffixes], self._budget, rows_of_copies(cache)):
                owners = [owner[i][0] for i in chunk]
                states = self._read_suffixes([suffixes[i] for i in chunk], owners, cache, mask)
                reduced = []
                for position, i in enumerate(chunk):
                    row, k = owner[i]
                    suffix_states = torch.cat([last[row : row + 1], states[position, : len(suffixes[i])]])
                    reduced.append(reduce(suffix_states, group[row], k))
                for i, value in zip(chunk, to_host(reduced), strict=True):
                    row, k = owner[i]
                    results[group[row]][k] = value

    def _read_prefixes(self, prefixes: list[Tokens]) -> tuple[Any, Tensor, Tensor]:
        """Keys and values, the state of each last token, and which positions are real."""
        inputs = padded_inputs(prefixes, self._device, left=True)
        mask = inputs["attention_mask"]
        if not mask.shape[1]:
            return None, torch.zeros(len(prefixes), self._body.config.hidden_size, device=self._device), mask
        if self._kept is None:
            return *self._forward(inputs), mask
        known = {tuple(tokens): self._kept.get(tokens) for tokens in prefixes}
        missing: list[Tokens] = [tokens for tokens, prefix in known.items() if prefix is None]
        if missing:
            cache, last = self._forward(padded_inputs(missing, self._device, left=True))
            for tokens, fresh in zip(missing, _split(cache, last, list(map(len, missing))), strict=True):
                known[tuple(tokens)] = fresh
                self._kept.put(tokens, fresh)
        return *_merge([prefix for tokens in prefixes if (prefix := known[tuple(tokens)])]), mask

    def _forward(self, inputs: dict[str, Tensor]) -> tuple[Any, Tensor]:
        # a cache without the model's config keeps every position, also of layers with a sliding window;
        # the attention mask applies the window
        out = self._body(
            **inputs,
            position_ids=(inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=DynamicCache(),
            use_cache=True,
        )
        return out.past_key_values, out.last_hidden_state[:, -1]

    def _read_suffixes(self, suffixes: list[Tokens], rows: list[int], cache: Any, prefix_mask: Tensor) -> Tensor:
        ids, mask = padded_inputs(suffixes, self._device).values()
        index = torch.tensor(rows, device=self._device)
        before = prefix_mask.index_select(0, index)
        # padding repeats a position: a larger one than any real token's would switch some rotary embeddings
        positions = before.sum(dim=1, keepdim=True) + (mask.cumsum(dim=1) - 1)
        states: Tensor = self._body(
            input_ids=ids,
            attention_mask=torch.cat([before, mask], dim=1),
            position_ids=positions,
            past_key_values=None if cache is None else _copy_rows(cache, index),
            use_cache=cache is not None,
        ).last_hidden_state
        return states


def rows_of_copies(cache: Any) -> int | None:
    """How many copies of a prefix's keys and values fit; every suffix of a batch needs one."""
    if cache is None:
        return None
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    per_row = sum(int(part.numel() * part.element_size()) for part in parts) // len(parts[0])
    return max(1, COPIED_BYTES // max(1, per_row))


def _copy_rows(cache: Any, index: Tensor) -> Any:
    """The cache of some rows, repeated as needed: a forward pass appends to the cache it is given."""
    copy = DynamicCache()
    for number, layer in enumerate(cache.layers):
        rows = index.to(layer.keys.device)  # the layers of a large model may be on several devices
        copy.update(layer.keys.index_select(0, rows), layer.values.index_select(0, rows), number)
    return copy


def to_host(values: list[Any]) -> list[Any]:
    """Tensors of a device as tensors of the host, in one copy; everything else as it is."""
    if not values or not all(isinstance(v, Tensor) and v.device.type != "cpu" for v in values):
        return values
    together = torch.cat([value.flatten() for value in values]).cpu()
    ends = accumulate(value.numel() for value in values)
    return [together[end - value.numel() : end].view(value.shape) for value, end in zip(values, ends, strict=True)]


class KeptPrefixes:
    """Drops the least recently used prefix when `limit` bytes are full."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._prefixes: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()

    def get(self, tokens: Tokens) -> Prefix | None:
        key = tuple(tokens)
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
        return self._prefixes.get(key)

    def put(self, tokens: Tokens, prefix: Prefix) -> None:
        if prefix.size > self._limit:
            return
        replaced = self._prefixes.pop(tuple(tokens), None)  # bundles of one row may begin alike
        self._prefixes[tuple(tokens)] = prefix
        self._size += prefix.size - (replaced.size if replaced else 0)
        while self._size > self._limit:
            self._size -= self._prefixes.popitem(last=False)[1].size


def _split(cache: Any, last: Tensor, lengths: Sequence[int]) -> list[Prefix]:
    """The rows of a batch that was padded on the left, one by one."""

    def tail(tensor: Tensor, row: int, length: int) -> Tensor:
        return tensor[row, :, tensor.shape[2] - length :].clone()

    return [
        Prefix(tuple((tail(x.keys, row, n), tail(x.values, row, n)) for x in cache.layers), last[row].clone())
        for row, n in enumerate(lengths)
    ]


def _merge(prefixes: Sequence[Prefix]) -> tuple[Any, Tensor]:
    """One batch again, padded on the left with zeros, which the attention mask hides."""
    width = max(prefix.length for prefix in prefixes)

    def padded(tensor: Tensor) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, 0, width - tensor.shape[1], 0))

    cache = DynamicCache()
    for number in range(len(prefixes[0].layers)):
        keys, values = (torch.stack([padded(p.layers[number][k]) for p in prefixes]) for k in (0, 1))
        cache.update(keys, values, number)
    return cache, torch.stack([prefix.last for prefix in prefixes])
