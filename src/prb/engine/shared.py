"""Hidden states of many answers to the same query, with the query run once.

The prefix of a bundle goes through the model first and leaves its keys and values; each suffix then attends to
them. Several prefixes share a forward pass if they fit the token budget: they are padded on the left, so that every
suffix follows its own prefix without a gap (sliding windows count indices, not positions), and masked, so that a
row's states do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from prb.engine.bundle import Bundle, Tokens, batches
from prb.engine.kept import Kept, Prefix, apart, together

T = TypeVar("T")
Reduce = Callable[[Tensor, int, int], T]
"""(states, bundle, suffix) → result. states[0] belongs to the last prefix token, states[1:] to the suffix."""


class SharedPrefix:
    def __init__(self, body: Any, *, budget: int, keep: int = 0) -> None:
        """`keep`: bytes for prefixes that may come again in a later call."""
        self._body = body
        self._budget = budget
        self._kept = Kept(keep) if keep else None
        self._device = next(body.parameters()).device

    @torch.inference_mode()
    def run(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        """One result for each suffix of each bundle, in order."""
        results: list[list[Any]] = [[None] * len(b.suffixes) for b in bundles]
        for group in batches([len(b.prefix) for b in bundles], self._budget):
            for i, k, result in self._run_group(group, bundles, reduce):
                results[i][k] = result
        return results

    def _run_group(
        self, group: list[int], bundles: Sequence[Bundle], reduce: Reduce[T]
    ) -> Iterator[tuple[int, int, T]]:
        cache, last, mask = self._prefixes([bundles[i].prefix for i in group])
        owner = [(row, k) for row, i in enumerate(group) for k in range(len(bundles[i].suffixes))]
        suffixes = [bundles[group[row]].suffixes[k] for row, k in owner]
        for chunk in batches([len(s) for s in suffixes], self._budget):
            rows = [owner[i][0] for i in chunk]
            states = self._suffixes([suffixes[i] for i in chunk], rows, cache, mask)
            for position, i in enumerate(chunk):
                row, k = owner[i]
                own = torch.cat([last[row : row + 1], states[position, : len(suffixes[i])]])
                yield group[row], k, reduce(own, group[row], k)

    def _prefixes(self, prefixes: list[Tokens]) -> tuple[Any, Tensor, Tensor]:
        """Keys and values, the state of each last token, and which positions are real."""
        ids, mask = self._padded(prefixes, left=True)
        if not ids.shape[1]:
            return None, torch.zeros(len(prefixes), self._body.config.hidden_size, device=self._device), mask
        if self._kept is None:
            return *self._read(ids, mask), mask
        return *together(self._known(prefixes, self._kept)), mask

    def _known(self, prefixes: list[Tokens], kept: Kept) -> list[Prefix]:
        """From memory, or read now and remembered."""
        found = {tuple(tokens): kept.get(tokens) for tokens in prefixes}
        new = [tokens for tokens, prefix in found.items() if prefix is None]
        if new:
            ids, mask = self._padded(list(new), left=True)
            for tokens, read in zip(new, apart(*self._read(ids, mask), [len(t) for t in new]), strict=True):
                found[tokens] = read
                kept.put(tokens, read)
        return [prefix for tokens in prefixes if (prefix := found[tuple(tokens)])]

    def _read(self, ids: Tensor, mask: Tensor) -> tuple[Any, Tensor]:
        from transformers import DynamicCache

        # a cache without the model's config keeps every position, also of layers with a sliding window;
        # the attention mask applies the window
        out = self._body(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=DynamicCache(),
            use_cache=True,
        )
        return out.past_key_values, out.last_hidden_state[:, -1]

    def _suffixes(self, suffixes: list[Tokens], rows: list[int], cache: Any, prefix_mask: Tensor) -> Tensor:
        ids, mask = self._padded(suffixes)
        index = torch.tensor(rows, device=self._device)
        before = prefix_mask.index_select(0, index)
        positions = before.sum(dim=1, keepdim=True) + torch.arange(ids.shape[1], device=self._device)
        states: Tensor = self._body(
            input_ids=ids,
            attention_mask=torch.cat([before, mask], dim=1),
            position_ids=positions,
            past_key_values=None if cache is None else _copy_rows(cache, index),
            use_cache=cache is not None,
        ).last_hidden_state
        return states

    def _padded(self, rows: list[Tokens], *, left: bool = False) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for n, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            ids[n, place] = torch.tensor(row, dtype=torch.long)
            mask[n, place] = 1
        return ids.to(self._device), mask.to(self._device)


def _copy_rows(cache: Any, index: Tensor) -> Any:
    """The cache of some rows, again and again if asked: a forward pass appends to what it is given."""
    from transformers import DynamicCache

    copy = DynamicCache()
    for number, layer in enumerate(cache.layers):
        copy.update(layer.keys.index_select(0, index), layer.values.index_select(0, index), number)
    return copy


def sharing_is_exact(body: Any, tolerance: float = 1e-3) -> bool:
    """Whether this model gives the same states with and without a shared prefix, tried on a few tokens.

    Encoders look ahead, and some architectures keep other state than keys and values: those are scored whole.
    """
    tokens = [1, 2, 3, 4, 5, 6]
    try:
        with torch.inference_mode():
            device = next(body.parameters()).device
            whole = body(input_ids=torch.tensor([tokens], device=device)).last_hidden_state[0, 3:]
        other = Bundle(tokens[:1], (tokens[1:],))  # a shorter neighbour, so that padding is tried too
        bundles = [Bundle(tokens[:3], (tokens[3:], tokens[3:5])), other]
        made = SharedPrefix(body, budget=64).run(bundles, lambda s, *_: s[1:])
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError, IndexError):
        return False
    scale = max(1.0, float(whole.abs().max()))
    close = all(float((states - whole[: len(states)]).abs().max()) <= tolerance * scale for states in made[0])
    return bool(close)
