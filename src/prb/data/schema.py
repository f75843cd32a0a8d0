"""The row formats, and how a row becomes a `Pair` or a `Rating`."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeVar

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from prb.data.source import RawRow, file_source
from prb.errors import BadInput
from prb.types import Aspect, Choice, Item, Pair, Post, Rating, Role, Turn

T = TypeVar("T")
Task = Literal["pairs", "ratings"]
MOST_SHOWN = 20
"""Wrong lines of a file reported at once."""
Text = Annotated[str, StringConstraints(pattern=r"\S")]
Id = Text | int
Answers = Text | Annotated[list[Text], Field(min_length=1)]
_OPEN = ConfigDict(extra="ignore", strict=True)
"""Other fields are allowed; they are not checked, and rows are used as they are, not as pydantic would return them."""


class PostRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    text: Text
    id: NotRequired[Id]
    category: NotRequired[str]


class AspectRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    aspect: Text
    evidence: NotRequired[str]
    reason: NotRequired[str]


class ChoiceRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    question: Text
    chosen: Text
    rejected: Text


class TurnRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    role: Role
    text: Text


class PairRow(TypedDict):
    """The fields of the public benchmark, then ours. Other fields are allowed and survive conversion."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    id: Id
    question: Text
    profile: list[PostRow]
    rubric_aspects: list[AspectRow]
    narrative: str
    category: Text
    chosen: Answers
    rejected: Answers
    user: NotRequired[Id]
    context: NotRequired[list[TurnRow]]
    choices: NotRequired[list[ChoiceRow]]
    tier: NotRequired[str]
    mirror: NotRequired[Id]
    split: NotRequired[str]
    topic: NotRequired[str]
    drift: NotRequired[bool]
    groups: NotRequired[dict[str, str]]


class RatingRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    user: Id
    question: Text
    profile: list[PostRow]
    answer: Text
    rating: Annotated[float, Field(ge=0, le=1)]
    id: NotRequired[Id]
    category: NotRequired[str]
    context: NotRequired[list[TurnRow]]
    choices: NotRequired[list[ChoiceRow]]
    rubric_aspects: NotRequired[list[AspectRow]]
    split: NotRequired[str]
    groups: NotRequired[dict[str, str]]


class Problem(NamedTuple):
    place: str
    line: int
    what: str
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.what}"


_OPTIONAL = frozenset(PairRow.__optional_keys__ | RatingRow.__optional_keys__)


@cache
def _adapter(task: Task) -> TypeAdapter[Any]:
    return TypeAdapter(PairRow if task == "pairs" else RatingRow)


def normalize(row: dict[str, Any]) -> dict[str, Any]:
    """Drop optional fields set to null; turn an attribute map such as {"likes": "brevity"} into one post per entry."""
    if None in row.values():
        row = {key: value for key, value in row.items() if value is not None or key not in _OPTIONAL}
    profile = row.get("profile")
    if isinstance(profile, dict):
        posts = [{"id": str(key), "category": "", "text": f"{key}: {value}"} for key, value in profile.items()]
        return {**row, "profile": posts}
    return row


def prepared(row: RawRow, task: Task) -> Any:
    """The normalized data of a row; ratings without an id are named after their place."""
    data = normalize(row.data) if type(row.data) is dict else row.data
    if task == "ratings" and type(data) is dict and "id" not in data:
        return {**data, "id": f"{row.place}:{row.line}"}
    return data


def row_problems(row: Any, task: Task) -> list[str]:
    """Everything wrong with one row on its own; `[]` means that it can be built."""
    if type(row) is not dict:
        return [f"a row must be an object, not {_kind(row)}"]
    adapter = _adapter(task)
    if not adapter.validator.isinstance_python(row):  # cheaper than a validation that collects reasons
        try:
            adapter.validate_python(row)
        except ValidationError as error:
            return [_explain(dict(e)) for e in error.errors(include_url=False) if not _repeats(e)]
    if task == "pairs":
        chosen, rejected = row["chosen"], row["rejected"]
        if type(chosen) is str and type(rejected) is str:
            same: bool = chosen.strip() == rejected.strip()
        else:
            same = bool({a.strip() for a in listed(chosen)} & {a.strip() for a in listed(rejected)})
        if same:
            return ["`chosen` and `rejected` are the same text"]
    return []


def listed(answers: str | list[str]) -> list[str]:
    """The answers of a field that holds one of them or a list."""
    return [answers] if type(answers) is str else answers  # type: ignore[return-value]


def _repeats(error: Mapping[str, Any]) -> bool:
    """A bad id or answer is reported once for each type it may have; only the report for its own type is wanted."""
    if error["loc"][-1] == _TEXT and error["loc"][0] in ("chosen", "rejected"):
        return type(error["input"]) is list
    return bool(error["type"] == "int_type" or (error["loc"][-1] == _TEXTS and error["type"] == "list_type"))


def _explain(error: Mapping[str, Any]) -> str:
    """pydantic's report in words for whoever edits the data file."""
    is_id = error["loc"][-1] == _TEXT and error["loc"][0] not in ("chosen", "rejected")
    where = [part for part in error["loc"] if part not in (_TEXT, _TEXTS)]
    field = "`" + ".".join(str(part) for part in where) + "`"
    kind = error["type"]
    if kind == "missing":
        return f"{field} is missing"
    if kind in ("string_pattern_mismatch", "too_short"):
        return f"{field} is empty"
    if kind == "literal_error":
        return f"{field} must be {error['ctx']['expected']}, not {error['input']!r}"
    if kind.endswith("_type"):
        expected = "text or an integer" if is_id else _EXPECTED.get(kind, kind.removesuffix("_type"))
        return f"{field} must be {expected}, not {_kind(error['input'])}"
    return f"{field}: {error['msg']}"


_TEXT, _TEXTS = "constrained-str", "list[constrained-str]"
"""What pydantic calls the alternatives of a field that may have several types."""
_EXPECTED = {"string_type": "text", "list_type": "a list", "dict_type": "an object", "bool_type": "true or false"}
_EXPECTED |= {"float_type": "a number", "int_type": "a number", "typed_dict_type": "an object"}
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number"}


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


def to_pair(row: Mapping[str, Any]) -> Pair:
    """A checked row as a `Pair`; checks nothing itself, since it runs once per row and pass."""
    get = row.get
    row_id = str(row["id"])
    mirror = get("mirror")
    chosen = listed(row["chosen"])
    return Pair(
        id=row_id,
        user=str(get("user", row_id)),
        question=row["question"],
        profile=to_posts(row),
        answers=(*chosen, *listed(row["rejected"])),
        n_best=len(chosen),
        context=to_context(row),
        choices=to_choices(row),
        category=row["category"],
        rubric=_rubric(row["rubric_aspects"]),
        narrative=row["narrative"],
        tier=get("tier"),
        mirror=None if mirror is None else str(mirror),
        split=get("split"),
        topic=get("topic"),
        drift=get("drift", False),
        groups=get("groups", {}),
    )


def to_rating(row: Mapping[str, Any]) -> Rating:
    return Rating(
        id=str(row["id"]),
        user=str(row["user"]),
        question=row["question"],
        profile=to_posts(row),
        answer=row["answer"],
        rating=float(row["rating"]),
        context=to_context(row),
        choices=to_choices(row),
        category=row.get("category", ""),
        rubric=_rubric(row.get("rubric_aspects", [])),
        split=row.get("split"),
        groups=row.get("groups", {}),
    )


def to_posts(row: Mapping[str, Any]) -> tuple[Post, ...]:
    posts = enumerate(row["profile"], 1)
    return tuple([Post(str(post.get("id", n)), post.get("category", ""), post["text"]) for n, post in posts])


def to_context(row: Mapping[str, Any]) -> tuple[Turn, ...]:
    return tuple([Turn(turn["role"], turn["text"]) for turn in row.get("context", ())])


def to_choices(row: Mapping[str, Any]) -> tuple[Choice, ...]:
    return tuple([Choice(c["question"], c["chosen"], c["rejected"]) for c in row.get("choices", ())])


BUILD: dict[Task, Callable[[Mapping[str, Any]], Item]] = {"pairs": to_pair, "ratings": to_rating}


def _rubric(rows: list[dict[str, str]]) -> tuple[Aspect, ...]:
    return tuple([Aspect(a["aspect"], a.get("evidence", ""), a.get("reason", "")) for a in rows])


def read_items(path: Path, parse: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """One item per line. All wrong lines are reported together, and then nothing of the file is used."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give a .jsonl file")
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    items: list[T] = []
    problems = []
    for row in file_source(path).rows():
        try:
            if row.problem or not isinstance(row.data, dict):
                raise ValueError(row.problem or "a line must be a JSON object")
            items.append(parse(row.data))
        except ValueError as error:
            problems.append(Problem(row.place, row.line, str(error)))
    if problems:
        more = [f"… and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
        raise BadInput("\n  ".join([f"{path} has lines that cannot be used", *map(str, problems[:MOST_SHOWN]), *more]))
    if not items:
        raise BadInput(f"{path} is empty")
    return items
