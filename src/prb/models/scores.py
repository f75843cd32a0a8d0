"""`scores?path=FILE`: what anybody's model said elsewhere, as a model. See docs/models.md for the columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from prb.config import Condition, NonNegative, Size
from prb.data.source import RawRow
from prb.errors import BadInput, unknown
from prb.models import MODELS, NOT_RECORDED
from prb.models.score_files import Format, score_rows
from prb.types import Failure, Record, Recorded, Winner, writable

WINNERS: dict[str, Winner] = {"chosen": "first", "rejected": "second", "first": "first", "second": "second"}
MOST_ANSWERS = 1024
Key = tuple[str, str | None]
"""Id of a row; condition, `None` for all of them."""


def _parsed(value: Any) -> Any:
    """A list that a CSV file holds as text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _as_list(value: Any) -> Any:
    value = _parsed(value)
    return [value] if isinstance(value, (int, float, str)) else value


def _names(name: str, *others: str) -> Any:
    return Field(default=None, validation_alias=AliasChoices(name, *others))


Scores = Annotated[list[float | None], BeforeValidator(_as_list), Field(min_length=1, max_length=MOST_ANSWERS)]


class ScoreRow(BaseModel):
    """A row of a scores file. Other columns are ignored."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    pair: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("pair", "id"))]
    condition: Condition | None = None
    answer: Annotated[int, Field(ge=0, lt=MOST_ANSWERS)] | None = None
    """Place among the row's answers, right ones first; without it the row has one answer (task `ratings`)."""
    score: float | None = None
    scores: Scores | None = None
    scores_chosen: Scores | None = _names("scores_chosen", "score_chosen", "chosen_score")
    scores_rejected: Scores | None = _names("scores_rejected", "score_rejected", "rejected_score")
    verdict: Literal["first", "second", "tie", "chosen", "rejected"] | None = None
    """`first` is the answer that the dataset lists first, the chosen one."""
    verdicts: Annotated[list[Winner | None], BeforeValidator(_parsed)] | None = None
    """As in outcomes.jsonl: of every right and every wrong answer, shown with the right one first, then second."""
    failure: str | None = None
    text: Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)] = Field(
        default_factory=list
    )
    tokens: Size = 0
    cost: NonNegative = 0.0

    @model_validator(mode="after")
    def _one_answer(self) -> ScoreRow:
        if (self.scores_chosen is None) != (self.scores_rejected is None):
            raise ValueError("scores_chosen and scores_rejected must both be there")
        names = ("score", "scores", "scores_chosen", "verdict", "verdicts")
        given = [name for name in names if getattr(self, name) is not None]
        if not given and self.failure is None:
            raise ValueError("there must be a score, scores, a verdict or a failure")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cannot be combined")
        return self

    def record(self) -> Record | Failure:
        if self.failure is not None:
            reason, _, detail = self.failure.partition(": ")
            return Failure(reason or "failed", detail)
        texts = [self.text] if isinstance(self.text, str) else self.text
        text = tuple([writable(text) for text in texts if text])
        spent: dict[str, Any] = {"tokens": self.tokens, "cost": self.cost, "text": text}
        if self.score is not None:
            return Record(scores=(*[None] * (self.answer or 0), self.score), **spent)
        if self.verdict is not None:
            return Record(verdicts=(WINNERS.get(self.verdict, "tie"), None), **spent)
        if self.verdicts is not None:
            return Record(verdicts=tuple(self.verdicts), **spent)
        both = [*(self.scores_chosen or ()), *(self.scores_rejected or ())]
        return Record(scores=tuple(self.scores or both), **spent)


@MODELS.register("scores")
def scores(path: str, model: str | None = None, format: Format = "auto") -> Recorded:
    """Scores or verdicts that were given elsewhere (path=FILE; model=NAME if the file has several models)."""
    return RecordedScores(Path(path), model, format)


@MODELS.register("reader")
def reader() -> Recorded:
    """Picks of LLM readers on `mirror`, splits test and hard, recorded under none, profile and shuffled."""
    with as_file(files("prb.data") / "mirror" / "readers.jsonl") as path:
        return RecordedScores(path)


class RecordedScores:
    """The scores of one model in a file, by row and condition."""

    def __init__(self, path: Path, model: str | None = None, form: Format = "auto") -> None:
        self._name = path.name
        self._records: dict[Key, Record | Failure] = {}
        models: dict[str, None] = {}
        for where, data in _rows(path, form):
            name = str(data.get("model") or "")
            models.setdefault(name)
            if name == (next(iter(models)) if model is None else model):
                self._add(_checked(where, data), where)
        if not models:
            raise BadInput(f"{path} holds no scores")
        if model is None and len(models) > 1:
            raise BadInput(f"{path} has scores of several models; add model=… to pick one: {', '.join(sorted(models))}")
        if model is not None and model not in models:
            raise unknown(f"model in {path}", model, models)
        self._conditions = {condition for _, condition in self._records}
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        self.fingerprint = f"scores-{content[:32]}" + (f"-{model}" if model else "")

    def recall(self, pair: str, condition: str) -> Record | Failure:
        record = self._records.get((pair, condition)) or self._records.get((pair, None))
        if record is None and not {condition, None} & self._conditions:
            return Failure(NOT_RECORDED)
        return record or Failure(f"no score for this row in {self._name}")

    def _add(self, row: ScoreRow, where: str) -> None:
        key, record = (row.pair, row.condition), row.record()
        earlier = self._records.setdefault(key, record)
        if earlier is record:
            return
        if isinstance(record, Failure) or isinstance(earlier, Failure) or row.answer is None or row.score is None:
            raise _doubled(where, row)
        known = [*earlier.scores, *[None] * (row.answer + 1 - len(earlier.scores))]
        if earlier.verdicts or known[row.answer] is not None:
            raise _doubled(where, row)
        known[row.answer] = row.score
        self._records[key] = Record(
            scores=tuple(known),
            tokens=earlier.tokens + record.tokens,
            cost=earlier.cost + record.cost,
            text=earlier.text + record.text,
        )


def _rows(path: Path, form: Format) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each row stands, and its values."""
    try:
        for raw in score_rows(path, form):
            where = f"{path}, line {raw.line}"
            yield where, _object(raw, where)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None


def _object(raw: RawRow, where: str) -> Mapping[str, Any]:
    if raw.problem:
        raise BadInput(f"{where}: {raw.problem}")
    if not isinstance(raw.data, dict):
        raise BadInput(f"{where}: must be an object")
    return {name: value for name, value in raw.data.items() if value is not None}


def _checked(where: str, data: Mapping[str, Any]) -> ScoreRow:
    try:
        return ScoreRow.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{where}: {f'{place}: ' if place else ''}{message}") from None


def _doubled(where: str, row: ScoreRow) -> BadInput:
    condition = f" under {row.condition}" if row.condition else ""
    answer = "" if row.answer is None else f", answer {row.answer}"
    return BadInput(f"{where}: a second score for row {row.pair!r}{condition}{answer}")
