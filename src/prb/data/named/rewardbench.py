"""RewardBench (Lambert et al., arXiv 2403.13787), RewardBench 2 (arXiv 2506.01937), and every file of the same shape.

A row is a prompt with chosen and rejected answers and a subset. Their own rows have no user: there are no posts and no
choices, so every model is user-blind on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prb.data.schema import converted, spec_name
from prb.data.source import DATASETS, RawRow, Row, RowSource, Source, dict_row, open_rows


@DATASETS.register("rewardbench")
def rewardbench(path: str) -> Source:
    """A general-quality benchmark in RewardBench's format, 1 or 2 (path=FILE, a folder or hub:owner/name): no users."""
    source = open_rows(path)

    def convert(row: Row, at: RawRow) -> Iterator[RawRow]:
        """The row under our names, whatever else it holds."""
        row, part = dict(row), row.get("split")
        if part == "raw":  # RewardBench 1 on the hub: `filtered` is the part that is scored
            return
        if part == "filtered":
            del row["split"]
        if row.get("prompt") is not None:
            row = {"question": row.pop("prompt"), **row}
        subset = str(row.pop("subset", None) or "all")
        row_id = str(row.get("id", at.line))
        if not row_id.startswith(subset):  # ids of public files restart in each subset
            row_id = f"{subset}-{row_id}"
        yield dict_row(at.place, at.line, {**row, "id": row_id, "category": subset})

    return RowSource(spec_name(rewardbench, source.name), partial(converted, source, convert))
