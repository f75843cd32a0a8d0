"""Files that are damaged, or that a stranger may hand over: each is one clear line and exit code 2, in bounded time
and memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data import source
from prb.data.load import load
from prb.errors import BadInput
from tests.conftest import make_row
from tests.data.broken import sound

DIGITS = "9" * 5_000
MANY = [f"c{n}" for n in range(200_000)]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def parquet_bomb(path: Path) -> None:
    column = pa.array(["x" * (1 << 20)] * 8 + [str(n) for n in range(5)])
    pq.write_table(pa.table({"id": column}), path, use_dictionary=False, compression="zstd")


def parquet_of_nothing(path: Path) -> None:
    pq.write_table(pa.table({"id": pa.nulls(300_000, pa.string())}), path)


def wide_parquet(path: Path) -> None:
    pq.write_table(pa.table({name: [1] for name in MANY[:10_001]}), path)


def damaged_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([make_row(n) for n in range(50)]), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xaa" * 196 + whole[200:])


def latin_parquet(path: Path) -> None:
    buffers = pa.array([b"caf\xe9"]).buffers()
    pq.write_table(pa.table({"id": pa.StringArray.from_buffers(1, buffers[1], buffers[2])}), path)


def extra(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pq.write_table(pa.table({"id": ["a"], "extra_json": [text]}), path)

    return write


def content(raw: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(raw if isinstance(raw, bytes) else raw.encode()) and None


ROW = orjson.dumps(sound(1)).decode()[:-1]
HOSTILE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "FIFO": ("x.jsonl", fifo, "is not a regular file"),
    "Parquet bomb": ("x.parquet", parquet_bomb, "unpacks to more than 500 times its size"),
    "Parquet of millions of nulls": ("x.parquet", parquet_of_nothing, "unpacks to more than 500 times its size"),
    "wide Parquet": ("x.parquet", wide_parquet, "the row has 10,001 columns; at most 10,000 are read"),
    "wide JSONL": ("x.jsonl", content(orjson.dumps(dict.fromkeys(MANY, 1))), "the row has 200,000 columns"),
    "extra column with a list": ("x.parquet", extra("[1]"), "what JSON cannot hold: `extra_json` is no object"),
    "digits in JSONL": ("x.jsonl", content(f'{ROW}, "user": {DIGITS}}}'), "x.jsonl:1: "),
    "digits in the extra column": ("x.parquet", extra(f'{{"user": {DIGITS}}}'), "x.parquet:1: "),
    "an endless cell of CSV": ("x.csv", content("a,b\n" + "x" * (5 << 20)), "broken CSV: field larger than"),
    "deep JSON": ("x.json", content("[" * 200_000), "cannot be read as JSON"),
    "unknown format": ("x.xlsx", content(""), "unknown format; known formats are .jsonl, .parquet"),
    "empty Parquet": ("x.parquet", content(""), "x.parquet cannot be read as Parquet: "),
    "damaged pages": ("x.parquet", damaged_parquet, "x.parquet cannot be read as Parquet: "),
    "Parquet in Latin-1": ("x.parquet", latin_parquet, "x.parquet cannot be read as Parquet: 'utf-8'"),
    "broken JSON": ("x.json", content('[{"id": 1}, {"id": }]'), "x.json cannot be read as JSON: unexpected character"),
    "JSON in Latin-1": ("x.json", content(b'[{"id": "\xff"}]'), "cannot be read as JSON: str is not valid UTF-8"),
    "CSV in Latin-1": ("x.csv", content(b"id\n\xff\n"), "x.csv must be UTF-8: invalid start byte"),
    "two columns of one name": ("x.csv", content("id,id\n1,2\n"), "has two columns named 'id'"),
    "UTF-16": ("x.jsonl", content(f"{ROW}}}".encode("utf-16")), "x.jsonl:1: broken JSON: str is not valid UTF-8"),
    "empty JSONL": ("x.jsonl", content(""), "x.jsonl holds no rows"),
    "a mark alone": ("x.jsonl", content("\ufeff"), "x.jsonl holds no rows"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_clear_line(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(source, "BOMB_BYTES", 1 << 20)
    monkeypatch.setattr(source, "MAX_LINE", 4 << 20)
    file, write, says = HOSTILE[name]
    write(tmp_path / file)
    with pytest.raises(BadInput) as caught:
        load(str(tmp_path / file))
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) <= 2
