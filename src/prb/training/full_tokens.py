"""Pairs as token ids on disk, made by the code that scores them later: same queries, same template, same cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from prb.data.load import Dataset
from prb.data.retrieve import ranker
from prb.engine.chat import Chat, Text, common_prefix, fit
from prb.errors import BadInput
from prb.evaluation.conditions import Asker
from prb.evaluation.plan import PLANNERS
from prb.models import is_remote
from prb.progress import Progress
from prb.prompts import render
from prb.runs import read_json, write_json
from prb.stats.estimate import codes
from prb.training.folds import split_off
from prb.types import Failure, Pair, Query

if TYPE_CHECKING:
    from prb.training.full import FullConfig

CHUNK = 64
COLUMNS = {"reward-model": ("chosen_ids", "rejected_ids"), "dpo": ("prompt_ids", "chosen_ids", "rejected_ids")}
"""What trl reads of a row whose tokens are given."""
FITTED, HELD, ABOUT = "fit.arrow", "held.arrow", "rows.json"


class Texts(NamedTuple):
    """Both answers after the same prompt."""

    chosen: Text
    rejected: Text
    cut: int
    """How many posts did not fit, and one more where the question was cut too."""


def write_rows(
    config: FullConfig, dataset: Dataset, reader: Chat, limit: int, folder: Path, progress: Progress
) -> None:
    """Rows to fit on and rows of held-out persons, once: a resumed run finds them there."""
    if (folder / ABOUT).exists():
        return
    held = set(split_off(codes(dataset.index.clusters), config.validation, config.seed)[1].tolist())
    failed: Counter[str] = Counter()
    held_ids, cut = [], 0
    progress.begin(f"tokens of {dataset.name}", total=len(dataset))
    with Table(folder / FITTED, config.method) as inside, Table(folder / HELD, config.method) as outside:
        for position, (pair, texts) in enumerate(tokenized(config, dataset, reader, limit)):
            progress.advance()
            if isinstance(texts, Failure):
                failed[texts.reason] += 1
                continue
            (outside if position in held else inside).add(token_columns(config.method, texts))
            held_ids += [pair.id] if position in held else []
            cut += texts.cut > 0
    if not inside.rows:
        raise BadInput(f"{config.dataset}: no pair can be trained on: {dict(failed)}")
    counts = {"fitted": inside.rows, "held_out": outside.rows, "cut": cut, "failed": dict(failed)}
    write_json(folder / ABOUT, {"counts": counts, "held": held_ids})  # last of all: who finds it, finds the rows


def read_about(folder: Path) -> dict[str, Any]:
    about: dict[str, Any] = read_json(folder / ABOUT)
    return about


def tokenized(config: FullConfig, dataset: Dataset, reader: Chat, limit: int) -> Iterator[tuple[Pair, Texts | Failure]]:
    """Every pair with the very query an evaluation makes of it, as tokens."""
    planner = PLANNERS.make(config.planner)
    asker = Asker(
        rank=ranker(config.ranker),
        planner=planner,
        people=dataset.people,
        k=config.k,
        budget=config.budget,
        seed=config.seed,
        mask_for_planner=is_remote(planner),
    )
    stream = (item for item in dataset if isinstance(item, Pair))
    while chunk := list(islice(stream, CHUNK)):
        plans = asker.plans(chunk) if config.condition == "plan" else {}
        for pair in chunk:
            asked = asker.ask(pair, config.condition, plans.get(pair.id))
            yield pair, asked if isinstance(asked, Failure) else texts_of(reader, asked.query, pair.answers, limit)


def texts_of(reader: Chat, query: Query, answers: Sequence[str], limit: int) -> Texts | Failure:
    """What is too long loses its oldest posts first; an answer is never touched."""
    fitted = fit(query, answers, reader.tokens, limit)
    if isinstance(fitted, Failure):
        return fitted
    shown, cut = fitted
    chosen, rejected = (reader.text(render(shown), answer) for answer in answers)
    return Texts(chosen, rejected, cut)


def token_columns(method: str, texts: Texts) -> dict[str, list[int]]:
    """DPO gets exactly the tokens whose log-probabilities `implicit` adds up later: the answer's own."""
    chosen, rejected = texts.chosen, texts.rejected
    if method == "reward-model":
        return {"chosen_ids": list(chosen.ids), "rejected_ids": list(rejected.ids)}
    shared = min(common_prefix([chosen.ids, rejected.ids]), chosen.start, rejected.start)
    return {
        "prompt_ids": list(chosen.ids[:shared]),
        "chosen_ids": list(chosen.ids[shared : chosen.end]),
        "rejected_ids": list(rejected.ids[shared : rejected.end]),
    }


class Table:
    """An Arrow file written in batches; `datasets` reads it through the memory map, whatever its size."""

    def __init__(self, path: Path, method: str) -> None:
        import pyarrow as pa

        self.rows = 0
        self._schema = pa.schema([(name, pa.list_(pa.int32())) for name in COLUMNS[method]])
        self._writer = pa.ipc.new_stream(str(path), self._schema)
        self._waiting: list[dict[str, list[int]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._flush()
        self._writer.close()

    def add(self, row: dict[str, list[int]]) -> None:
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) >= 1000:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []
