"""Between formats without loss: typed Parquet columns for what fits them, one JSON column for the rest.

`groups` is part of the rest: only an Arrow map fits it, and the hub's `datasets` cannot read maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from prb.batches import chunks
from prb.data.source import EXTRA, Row, Source
from prb.errors import BadData, BadInput, Problem
from prb.runs import draft

TEXTS = (
    "id",
    "user",
    "question",
    "narrative",
    "category",
    "chosen",
    "rejected",
    "answer",
    "tier",
    "mirror",
    "split",
    "topic",
)
BATCH = 1000
"""Rows per Parquet row group."""
RECORDS = {
    "profile": ("id", "category", "text"),
    "rubric_aspects": ("aspect", "evidence", "reason"),
    "context": ("role", "text"),
    "choices": ("question", "chosen", "rejected"),
}
"""Fields that are lists of objects with exactly these keys, all text."""
SCALARS: dict[str, type] = {**dict.fromkeys(TEXTS, str), "drift": bool, "rating": float}


def convert(source: Source, target: Path) -> int:
    """Write all rows of a source, whatever their split, and return their number. The file appears when complete."""
    writer = next((write for ending, write in WRITERS.items() if target.name.endswith(ending)), None)
    if writer is None:
        raise BadInput(f"{target}: unknown format; known formats are {', '.join(WRITERS)}")
    if not target.parent.exists():
        raise BadInput(f"{target.parent} does not exist")
    try:
        with draft(target) as part:
            return writer(_rows(source), part)
    except orjson.JSONEncodeError as error:
        raise BadInput(f"{source.name} holds a value that cannot be written as JSON: {error}") from None


def _rows(source: Source) -> Iterator[Row]:
    for row in source.rows():
        if row.problem or not isinstance(row.data, dict):
            reason = row.problem or "a row must be an object"
            raise BadData(source.name, [Problem(row.place, row.line, reason)])
        yield row.data


def _write_jsonl(rows: Iterator[Row], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for count, row in enumerate(rows, 1):  # noqa: B007 - the last number is the count
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    return count


def _write_parquet(rows: Iterator[Row], path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    schema = pa.schema(
        [
            *((name, text) for name in TEXTS),
            ("drift", pa.bool_()),
            ("rating", pa.float64()),
            *((name, pa.list_(pa.struct([(key, text) for key in keys]))) for name, keys in RECORDS.items()),
            (EXTRA, text),
        ]
    )
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in chunks(rows, BATCH):
            writer.write_table(pa.Table.from_pylist([fold(row) for row in batch], schema=schema))
            count += len(batch)
    return count


WRITERS: dict[str, Callable[[Iterator[Row], Path], int]] = {
    ".jsonl": _write_jsonl,
    ".ndjson": _write_jsonl,
    ".parquet": _write_parquet,
}


def fold(row: Row) -> Row:
    """A row as typed columns; a value that does not fit its column exactly goes into the extra column as JSON."""
    typed = {key: value for key, value in row.items() if _fits(key, value)}
    extra = {key: value for key, value in row.items() if key not in typed}
    return {**typed, EXTRA: orjson.dumps(extra).decode()} if extra else typed


def _fits(key: str, value: Any) -> bool:
    if key not in RECORDS:
        return type(value) is SCALARS.get(key)
    return type(value) is list and all(
        type(item) is dict and set(item) == set(RECORDS[key]) and all(type(text) is str for text in item.values())
        for item in value
    )
