"""Pairs as tokens, on disk: what trl trains on.

Prompts are tokenized by the code that scores them later: the same queries, the same template, one BOS, oldest posts cut
first, answers whole. So a model is evaluated on what it was trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from prb.batches import chunks
from prb.data.load import Dataset
from prb.engine.chat import Chat, Text, common_prefix, fit
from prb.errors import BadInput
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.progress import Progress
from prb.runs import draft, write_json
from prb.stats.estimate import codes
from prb.training.config import FullConfig
from prb.training.examples import split_off
from prb.types import Failure, Pair, Query

FITTED, HELD, ABOUT = "fit.arrow", "held.arrow", "rows.json"
COLUMNS = {"reward-model": ("chosen_ids", "rejected_ids"), "dpo": ("prompt_ids", "chosen_ids", "rejected_ids")}
"""What trl reads of a row that is already tokenized."""
CHUNK = 64
"""Pairs whose plans are inferred and whose tokens are written together."""


class Texts(NamedTuple):
    """Both answers after the same prompt."""

    chosen: Text
    rejected: Text
    cut: int
    """How many posts did not fit, plus one if the question was cut too."""


def write_rows(config: FullConfig, dataset: Dataset, chat: Chat, limit: int, folder: Path, progress: Progress) -> None:
    """Tokens of the rows to fit on and of the rows of held-out users; a resumed run finds them there."""
    if (folder / ABOUT).exists():
        return
    import pyarrow as pa

    held = set(split_off(codes(dataset.index.clusters), config.validation, config.seed)[1].tolist())
    failed: Counter[str] = Counter()
    held_ids, cut, written = [], 0, Counter({FITTED: 0, HELD: 0})
    schema = pa.schema([(name, pa.list_(pa.int32())) for name in COLUMNS[config.method]])
    progress.begin(f"tokens of {dataset.name}", total=len(dataset))
    with ExitStack() as stack:  # Arrow files, since `datasets` memory-maps them, whatever their size
        drafts = {name: stack.enter_context(draft(folder / name)) for name in written}
        tables = {name: stack.enter_context(pa.ipc.new_stream(str(path), schema)) for name, path in drafts.items()}
        pairs = enumerate(tokenized(config, dataset, chat, limit))
        for batch in chunks(pairs, CHUNK):
            rows: dict[str, list[dict[str, list[int]]]] = {FITTED: [], HELD: []}
            for position, (pair, texts) in batch:
                if isinstance(texts, Failure):
                    failed[texts.reason] += 1
                    continue
                rows[HELD if position in held else FITTED].append(token_columns(config.method, texts))
                held_ids += [pair.id] if position in held else []
                cut += texts.cut > 0
            for name, table in tables.items():
                table.write_table(pa.Table.from_pylist(rows[name], schema=schema))
                written[name] += len(rows[name])
            progress.advance(len(batch))
        if not written[FITTED]:
            raise BadInput(f"{config.dataset}: no pair can be trained on: {dict(failed)}")
    counts = {"fitted": written[FITTED], "held_out": written[HELD], "cut": cut, "failed": dict(failed)}
    write_json(folder / ABOUT, {"counts": counts, "held": held_ids})  # last: its presence means the rows are there


def tokenized(config: FullConfig, dataset: Dataset, chat: Chat, limit: int) -> Iterator[tuple[Pair, Texts | Failure]]:
    """Every pair as tokens of the query that an evaluation would make of it."""
    builder = QueryBuilder.of(config, dataset, PLANNERS.make(config.planner), reader=None, seed=config.seed)
    stream = (item for item in dataset if isinstance(item, Pair))
    for chunk in chunks(stream, CHUNK):
        plans = builder.plans(chunk) if config.condition == "plan" else {}
        for pair in chunk:
            built = builder.build(pair, config.condition, plans.get(pair.id))
            yield pair, built if isinstance(built, Failure) else texts_of(chat, built.query, pair.contrast, limit)


def texts_of(chat: Chat, query: Query, answers: Sequence[str], limit: int) -> Texts | Failure:
    """What is too long loses its oldest posts first; an answer is never cut."""
    fitting = fit(query, answers, chat.tokens, limit)
    if isinstance(fitting, Failure):
        return fitting
    shown, cut = fitting
    chosen, rejected = (chat.text(shown, answer) for answer in answers)
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
