"""Files of scores as rows: JSONL, Parquet and CSV as they are, results of reward-bench and logs of inspect converted.

Every format ends as rows of the same columns, which `scores` reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from prb.config import Condition
from prb.data.source import RawRow, file_source
from prb.errors import BadInput

Row = dict[str, Any]
Format = Literal["auto", "rows", "reward-bench", "inspect"]
VERDICTS: dict[Any, str] = {"C": "chosen", "P": "tie", "I": "rejected", 1: "chosen", 0.5: "tie", 0: "rejected"}
"""What a value says that is no score: right, half right, wrong, in inspect's letters or as a number."""


def score_rows(path: Path, form: Format) -> Iterator[RawRow]:
    """The rows of a file; what a `.json` file is shows in its content."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    if path.suffix == ".eval":
        raise BadInput(f"{path} is a packed log; convert it with `inspect log convert --to json`")
    if path.suffix != ".json":
        return file_source(path).rows()
    content = _read_json(path)
    form = _detect(content) if form == "auto" else form
    try:
        match form:
            case "reward-bench":
                rows = list(_reward_bench(content))
            case "inspect":
                rows = list(_inspect(content))
            case _:
                rows = content
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise BadInput(f"{path} cannot be read as {form}: {reason}") from None
    if not isinstance(rows, list):
        raise BadInput(f"{path} is neither a list of rows nor a result of reward-bench or inspect")
    return (RawRow(path.name, n, b"", row) for n, row in enumerate(rows, 1))


def _read_json(path: Path) -> Any:
    """With the standard library: inspect writes a bare NaN for a sample without a score."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from None


def _detect(content: Any) -> Format:
    if isinstance(content, dict) and {"eval", "samples"} <= content.keys():
        return "inspect"
    if isinstance(content, dict) and isinstance(content.get("id"), list):
        return "reward-bench"
    return "rows"


def _reward_bench(content: Mapping[str, Any]) -> Iterator[Row]:
    """Columns of a results file (`eval-set-scores/MODEL.json`), of RewardBench 1 or 2.

    A scorer has `scores_chosen` and `scores_rejected`, or `scores` with the right answers first; a generative judge has
    only `results`, 1 where it was right. Ids restart in each subset, so they get its name, as in dataset `rewardbench`.
    """
    ids: Sequence[Any] = content["id"]
    subsets = content.get("subset") or [""] * len(ids)
    names = [name for name in ("scores_chosen", "scores_rejected", "scores") if name in content]
    columns = {name: content[name] for name in names or ("results",)}
    for own_id, subset, *values in zip(map(str, ids), map(str, subsets), *columns.values(), strict=True):
        row = {name: _one(value) for name, value in zip(columns, values, strict=True)}
        if not names:
            verdict = VERDICTS.get(row["results"])
            row = {"verdict": verdict} if verdict else {"failure": f"no verdict: {row['results']}"}
        row_id = own_id if own_id.startswith(subset) else f"{subset}-{own_id}"
        yield {"pair": row_id, "model": content.get("model"), **row}


def _one(value: Any) -> Any:
    """Classifiers of reward-bench may store each score as a list of one."""
    if isinstance(value, list):
        return [item[0] if isinstance(item, list) and len(item) == 1 else item for item in value]
    return value


def _inspect(log: Mapping[str, Any]) -> Iterator[Row]:
    """Samples of a log, with one score each: a verdict (C, P, I or 1, 0.5, 0) or a list of scores."""
    about = log["eval"]
    for sample in log["samples"]:
        scores: Mapping[str, Any] = sample.get("scores") or {}
        if len(scores) > 1:
            raise ValueError(f"sample {sample['id']!r} has several scores: {', '.join(scores)}")
        score = next(iter(scores.values()), {"value": None, "explanation": "not scored"})
        condition = {**(about.get("task_args") or {}), **(sample.get("metadata") or {})}.get("condition")
        yield {
            "pair": sample["id"],
            "model": about["model"],
            "condition": condition if condition in get_args(Condition) else None,
            **_inspect_value(score),
        }


def _inspect_value(score: Mapping[str, Any]) -> Row:
    value = score["value"]
    if isinstance(value, list):
        return {"scores": value}
    if value is None or value == "N" or (isinstance(value, float) and math.isnan(value)):
        return {"failure": score.get("explanation") or "not scored"}
    if value not in VERDICTS:
        raise ValueError(f"{value!r} is neither a verdict nor a list of scores")
    return {"verdict": VERDICTS[value]}
