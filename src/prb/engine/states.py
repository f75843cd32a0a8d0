"""Hidden states of texts, computed in the fastest way that is exact for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

from prb.engine.load import Checkpoint
from prb.engine.prefix import Bundle, Reduce, SharedPrefix, batches, input_device, to_host
from prb.engine.sharing import Sharing

T = TypeVar("T")


class States:
    """As `SharedPrefix` where the model allows it; else each text is computed whole."""

    def __init__(self, checkpoint: Checkpoint, body: Any = None) -> None:
        """`body`: what computes the states, if it is not the body of the checkpoint's model."""
        self.sharing = checkpoint.sharing
        self._body = checkpoint.body if body is None else body
        self._budget = checkpoint.budget
        self._shared = SharedPrefix(self._body, budget=checkpoint.budget, keep=checkpoint.keep)

    def run(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        """One result for each suffix of each bundle, in order."""
        shared = [n for n, b in enumerate(bundles) if self.sharing.prefixes and not self._beyond(b)]
        whole = sorted(set(range(len(bundles))) - set(shared))
        results: dict[int, list[T]] = {}
        forget_lengths(self._body)
        for part, run in ((shared, self._shared.run), (whole, self._run_whole)):
            rows = run([bundles[n] for n in part], lambda states, row, k, part=part: reduce(states, part[row], k))  # type: ignore[misc]
            results.update(zip(part, rows, strict=True))
        return [results[n] for n in range(len(bundles))]

    def _beyond(self, bundle: Bundle) -> bool:
        longest = len(bundle.prefix) + max(map(len, bundle.suffixes))
        return self.sharing.limit is not None and longest > self.sharing.limit

    @torch.inference_mode()
    def _run_whole(self, bundles: Sequence[Bundle], reduce: Reduce[T]) -> list[list[T]]:
        owner = [(row, k) for row, b in enumerate(bundles) for k in range(len(b.suffixes))]
        texts = [[*bundles[row].prefix, *bundles[row].suffixes[k]] for row, k in owner]
        results: list[list[Any]] = [[None] * len(b.suffixes) for b in bundles]
        for batch in whole_batches([len(text) for text in texts], self._budget, self.sharing):
            inputs = padded_inputs([texts[i] for i in batch], 0, input_device(self._body))
            forget_lengths(self._body)
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


def padded_inputs(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Ids padded on the right, and their mask."""
    width = max(map(len, rows))
    ids = [[*row, *[pad] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }


def forget_lengths(model: Any) -> None:
    """Rotary embeddings of type `dynamic` remember the longest text so far, and would use its frequencies for this one.

    With a maximum of 0 they compute them for every text: those of the original length up to it, longer ones beyond.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic" and hasattr(module, "max_seq_len_cached"):
            module.max_seq_len_cached = 0
