"""Whole sequences in length-sorted batches: for encoders, and for heads that want the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prb.engine.bundle import Tokens, batches


class Encoded(NamedTuple):
    """One input as a tokenizer made it; `types` tells the two texts of a pair apart where a model wants that."""

    ids: Tokens
    types: Tokens | None = None


@torch.inference_mode()
def run_whole(
    model: Any, inputs: Sequence[Encoded], read: Callable[[Any], Tensor], *, budget: int, pad: int | None
) -> list[Tensor]:
    """`read(output)` of each input, in order. Without a padding token only equally long inputs share a batch."""
    device = next(model.parameters()).device
    results: list[Any] = [None] * len(inputs)
    for group in batches([len(i.ids) for i in inputs], budget):
        for rows in [group] if pad is not None else _equal_lengths(group, inputs):
            out = read(model(**_tensors([inputs[i] for i in rows], pad or 0, device)))
            for i, row in zip(rows, out, strict=True):
                results[i] = row
    return results


def _equal_lengths(group: list[int], inputs: Sequence[Encoded]) -> Iterator[list[int]]:
    for length in sorted({len(inputs[i].ids) for i in group}, reverse=True):
        yield [i for i in group if len(inputs[i].ids) == length]


def _tensors(rows: list[Encoded], pad: int, device: torch.device) -> dict[str, Tensor]:
    width = max(len(row.ids) for row in rows)

    def filled(values: Sequence[Tokens], blank: int) -> Tensor:
        return torch.tensor([[*v, *[blank] * (width - len(v))] for v in values], device=device)

    tensors = {
        "input_ids": filled([row.ids for row in rows], pad),
        "attention_mask": filled([[1] * len(row.ids) for row in rows], 0),
    }
    if rows[0].types is not None:
        tensors["token_type_ids"] = filled([row.types or () for row in rows], 0)
    return tensors
