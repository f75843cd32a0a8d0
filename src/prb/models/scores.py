"""`scores?path=FILE`: what anybody's model said elsewhere, as a model. See docs/models.md for the columns."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from prb.config import Condition, NonNegative, Size
from prb.data.source import RawRow, file_source
from prb.errors import BadInput, unknown
from prb.models import MODELS, NOT_RECORDED
from prb.types import Failure, Record, Recorded, Winner, writable

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
