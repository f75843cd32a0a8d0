"""`scores?path=FILE`: scores or verdicts of any model, given elsewhere. See docs/models.md for the columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from prb.config import ConditionName, NonNegative, Size
from prb.data.source import RawRow, file_source
from prb.errors import BadInput, unknown
from prb.models import MODELS, NOT_RECORDED
from prb.runs import content_digest
from prb.types import UNMEASURED, Failure, FailureKind, Record, Recorded, Winner, writable

MISNUMBERED = [str(n) for n in range(30, 40)]
"""Ids of the first ten Factuality rows in published results of RewardBench 2, whose data number them from 0."""


def score_rows(path: Path) -> Iterator[RawRow]:
    """The rows of a file; a `.json` file may hold results of reward-bench, which are columns."""
    if not path.is_file():
        raise BadInput(f"{path} is not a file")
    for raw in file_source(path).rows():
        if path.suffix != ".json" or not isinstance(raw.data, dict) or not isinstance(raw.data.get("id"), list):
            yield raw
            continue
        try:
            rows = list(_reward_bench(raw.data))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise BadInput(f"{path} cannot be read as results of reward-bench: {reason}") from None
        yield from (RawRow(path.name, n, b"", row) for n, row in enumerate(rows, 1))


def _reward_bench(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Columns of a results file (`eval-set-scores/MODEL.json`), of RewardBench 1 or 2.

    A scorer has `scores_chosen` and `scores_rejected`, or `scores` with the right answers first, each number perhaps in
    a list of one; a generative judge has only `results`, 1 where it was right. Ids restart in each subset, so they get
    its name, as in dataset `rewardbench`.
    """
    ids: list[str] = list(map(str, content["id"]))
    subsets = content.get("subset") or [""] * len(ids)
    factual = [n for n, subset in enumerate(subsets) if subset == "Factuality"][:10]
    if [ids[n] for n in factual] == MISNUMBERED:
        for number, n in enumerate(factual):
            ids[n] = str(number)
        warnings.warn(
            "the first ten Factuality ids are 30 to 39, as in many RewardBench 2 files; read as 0 to 9", stacklevel=1
        )
    columns = [content[name] for name in ("scores_chosen", "scores_rejected", "scores") if name in content]
    for id_in_subset, subset, *values in zip(ids, map(str, subsets), *columns or [content["results"]], strict=True):
        row: dict[str, Any] = {"scores": np.ravel(values).tolist()}
        if not columns:
            verdict = {1: "chosen", 0.5: "tie", 0: "rejected"}.get(values[0])
            row = {"verdict": verdict} if verdict else {"failure": f"no verdict: {values[0]}"}
        row_id = id_in_subset if id_in_subset.startswith(subset) else f"{subset}-{id_in_subset}"
        yield {"pair": row_id, "model": content.get("model"), **row}


WINNERS: dict[str, Winner] = {"chosen": "first", "rejected": "second", "tie": "tie"}
MOST_ANSWERS = 1024


def _parsed(value: Any) -> Any:
    """A list that a CSV file holds as text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(value)
    return value


Parsed = BeforeValidator(_parsed)


class ScoreRow(BaseModel):
    """A row of a scores file. Other columns are ignored."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    pair: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("pair", "id"))]
    condition: ConditionName | None = None
    score: float | None = None
    """Of the only answer of a row (task `ratings`)."""
    scores: Annotated[list[float | None], Parsed, Field(min_length=1, max_length=MOST_ANSWERS)] | None = None
    verdict: Literal["chosen", "rejected", "tie"] | None = None
    verdicts: Annotated[list[Winner | None], Parsed] | None = None
    """As in outcomes.jsonl: of every right and every wrong answer, shown with the right one first, then second."""
    log_odds: Annotated[list[float | None], Parsed] | None = None
    """As in outcomes.jsonl, one per verdict."""
    failure: str | None = None
    failure_kind: FailureKind | None = None
    text: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = []
    tokens: Size = 0
    cost: NonNegative = 0.0

    @model_validator(mode="after")
    def _one_answer(self) -> ScoreRow:
        names = ("score", "scores", "verdict", "verdicts")
        given = [name for name in names if getattr(self, name) is not None]
        if not given and self.failure is None:
            raise ValueError("there must be a score, scores, a verdict or a failure")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cannot be combined")
        if self.log_odds is not None and len(self.log_odds) != len(self.verdicts or ()):
            raise ValueError("log_odds must have one entry per verdict")
        return self

    def record(self) -> Record | Failure:
        if self.failure is not None:
            failure = Failure.parse(self.failure, self.failure_kind)
            return failure if failure.reason else replace(failure, reason="failed")
        return Record(
            scores=tuple(self.scores or ()) if self.score is None else (self.score,),
            verdicts=(WINNERS[self.verdict], None) if self.verdict else tuple(self.verdicts or ()),
            log_odds=tuple(self.log_odds or ()),
            tokens=self.tokens,
            cost=self.cost,
            text=tuple([writable(text) for text in self.text if text]),
        )


@MODELS.register("scores")
def scores(path: Path, model: str | None = None, condition: ConditionName = "profile") -> Recorded:
    """Scores or verdicts that were given elsewhere (path=FILE; model=NAME if the file has several models).

    Rows that name no condition were recorded under `condition`.
    """
    return RecordedScores(path, model, condition)


@MODELS.register("reader")
def reader() -> Recorded:
    """Picks of LLM readers on `mirror` under none, profile and shuffled."""
    with as_file(files("prb.data") / "mirror" / "readers.jsonl") as path:
        return RecordedScores(path)


class RecordedScores:
    """The scores of one model in a file, by row and condition."""

    def __init__(self, path: Path, model: str | None = None, condition: ConditionName = "profile") -> None:
        self._name, self._default, self._unnamed = path.name, condition, False
        self._records: dict[tuple[str, str], Record | Failure] = {}
        models: dict[str, None] = {}
        try:
            for raw in score_rows(path):
                place = f"{path}, line {raw.line}"
                if raw.problem or not isinstance(raw.data, dict):
                    raise BadInput(f"{place}: {raw.problem or 'must be an object'}")
                name = str(raw.data.get("model") or "")
                models.setdefault(name)
                if name == (next(iter(models)) if model is None else model):
                    self._add({name: value for name, value in raw.data.items() if value is not None}, place)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
        if not models:
            raise BadInput(f"{path} holds no scores")
        if model is None and len(models) > 1:
            raise BadInput(f"{path} has scores of several models; add model=… to pick one: {', '.join(sorted(models))}")
        if model is not None and model not in models:
            raise unknown(f"model in {path}", model, models)
        self._conditions = {condition for _, condition in self._records}
        self._elsewhere = NOT_RECORDED + (f", but without one, so under {condition}" if self._unnamed else "")
        self.fingerprint = f"scores-{content_digest(path)[:32]}" + (f"-{model}" if model else "")

    def recall(self, pair: str, condition: str) -> Record | Failure:
        if condition not in self._conditions:
            return Failure(self._elsewhere, kind=UNMEASURED)
        return self._records.get((pair, condition)) or Failure(f"no score for this row in {self._name}")

    def _add(self, data: Mapping[str, Any], place: str) -> None:
        """Nothing may come twice."""
        try:
            row = ScoreRow.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            raise BadInput(f"{place}: {f'{field}: ' if field else ''}{message}") from None
        self._unnamed |= row.condition is None
        key = row.pair, row.condition or self._default
        if key in self._records:
            condition = f" under {row.condition}" if row.condition else ""
            raise BadInput(f"{place}: a second score for row {row.pair!r}{condition}")
        self._records[key] = row.record()
