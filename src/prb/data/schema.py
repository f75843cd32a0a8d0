"""Rows: which shapes they may have, what is wrong with one, what is built from it, and what converters of others share.

Only `question`, `chosen` and `rejected` are required. A prompt and answers may be messages, and a profile may be a
text, a list of texts, an attribute map or a list of posts. A column that looks like the user or the history but is read
as neither is an error: without it, another question would be measured.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self, TypeVar

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from typing_extensions import TypedDict

from prb.data.source import MAX_COLUMNS, BadRow, RawRow, Row, Source, dict_row, file_source, hub_snapshot, kind_of
from prb.errors import BadInput, Problem, by_kind
from prb.types import Aspect, Choice, Item, Pair, Post, Rating, Role, Turn

T = TypeVar("T")
Task = Literal["pairs", "ratings"]
Kind = Literal["pairs", "ratings", "records"]
"""What rows are: those of a task, or what `prb build` makes pairs of."""
MOST_SHOWN = 20
"""Kinds of problems of a file reported at once."""


def listed(answers: Any) -> list[Any]:
    """The answers of a field that holds one of them or a list."""
    return answers if type(answers) is list else [answers]


STRICT = ConfigDict(extra="ignore", strict=True, coerce_numbers_to_str=True)
"""Numbers become text only where a field is not strict: in ids."""
Text = Annotated[str, StringConstraints(pattern=r"\S")]
Id = Annotated[Text, Field(strict=False)]
NotEmpty = Annotated[list[T], Field(min_length=1)]
Answers = Annotated[NotEmpty[Text], BeforeValidator(listed)]


class _Open(TypedDict):
    """Other fields are allowed and not checked; rows are used as they are, not as pydantic would return them."""

    __pydantic_config__ = STRICT  # type: ignore[misc]


class PostRow(_Open):
    text: Text
    id: NotRequired[Id]
    category: NotRequired[str]


class AspectRow(_Open):
    aspect: Text
    evidence: NotRequired[str]
    reason: NotRequired[str]
    weight: NotRequired[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    polarity: NotRequired[Literal["positive", "negative"]]
    required: NotRequired[bool]


class ChoiceRow(_Open):
    question: Text
    chosen: Text
    rejected: Text


class TurnRow(_Open):
    role: Role
    text: Text


class _AnyRow(_Open):
    """What rows of all kinds have: the fields of the public benchmark, then ours. Other fields survive conversion."""

    question: Text
    id: NotRequired[Id]
    profile: NotRequired[list[PostRow]]
    rubric_aspects: NotRequired[list[AspectRow]]
    category: NotRequired[str]
    context: NotRequired[list[TurnRow]]
    choices: NotRequired[list[ChoiceRow]]
    split: NotRequired[str]
    groups: NotRequired[dict[str, str]]


class RecordRow(_AnyRow):
    user: NotRequired[Id]
    narrative: NotRequired[str]


class PairRow(RecordRow):
    chosen: Answers
    rejected: Answers
    tier: NotRequired[str]
    mirror: NotRequired[Id]
    topic: NotRequired[str]
    drift: NotRequired[bool]


class RatingRow(_AnyRow):
    user: Id
    answer: Text
    rating: Annotated[float, Field(ge=0, le=1)]


ROWS: dict[Kind, Any] = {"pairs": PairRow, "ratings": RatingRow, "records": RecordRow}
adapter = cache(TypeAdapter)


# columns

ALIASES = {"prompt": "question", "user_id": "user", "posts": "profile", "history": "profile"}
"""Other names under which a field is read if its own is not there."""
_LOOKS = {
    "user": r"(users?|usr|uid|person|reviewer|respondent|labeler|annotator|rater|worker|participant|voter|customer)s?"
    r"(_(id|uid|uuid|name|key|hash|email))?",
    "profile": r"(.+_)?(profiles?|history|histories|personas?|posts|memory|memories|bio)(_.+)?|past_.+",
}


@lru_cache(maxsize=1024)  # nearly all rows of a file have the same columns
def unread_column(names: tuple[str, ...], kind: Kind) -> str:
    """What is wrong with columns of which one seems to hold the user or the history, and is read as neither."""
    known: frozenset[str] = ROWS[kind].__required_keys__ | ROWS[kind].__optional_keys__
    for field, what in (("user", "the user"), ("profile", "the user's history")):
        if field in names or (field == "profile" and "choices" in names):
            continue
        for name in (name for name in names if name not in known):
            plain = re.sub(r"[\W_]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()
            near = get_close_matches(plain, [field], n=1, cutoff=0.85) if 4 < len(name) < 40 else []
            if near or re.fullmatch(_LOOKS[field], plain):
                return f"`{name}` looks like {what} but is not read; did you mean `{field}`?"
    return ""


# values


def prepared(row: RawRow, kind: Kind) -> Row:
    """The row in our own form, named after its place if it has no id. Raises `BadRow`."""
    given = row.fields()
    if len(given) > MAX_COLUMNS:
        raise BadRow(f"the row has {len(given):,} columns; at most {MAX_COLUMNS:,} are read")
    data = normalize(given, kind)
    return data if "id" in data else {**data, "id": f"{row.place}:{row.line}"}


def normalize(row: Row, kind: Kind = "pairs") -> Row:
    """Fields by our names, nothing that is null, messages as turns and answers, any form of profile as posts."""
    if None in row.values():
        row = {key: value for key, value in row.items() if value is not None}
    for name, field in ALIASES.items():
        if name in row and field not in row:
            row = {field if key == name else key: value for key, value in row.items()}
    if problem := unread_column(tuple(row), kind):
        raise BadRow(problem)
    changes: Row = {}
    for field in ("context", "choices", "groups", "rubric_aspects"):  # text in a CSV file
        if type(row.get(field)) is str:
            changes[field] = literal(row[field]) if row[field].strip() else {} if field == "groups" else []
    rubric = changes.get("rubric_aspects", row.get("rubric_aspects"))
    if type(rubric) is list and rubric and type(rubric[0]) is str:
        changes["rubric_aspects"] = [{"aspect": aspect} for aspect in rubric]
    profile = row.get("profile")
    if profile is not None and (type(profile) is not list or any(type(post) is str for post in profile)):
        changes["profile"] = _as_posts(profile)
    # question, context and answers, if any of them is given as messages
    for field in ("chosen", "rejected"):
        if are_messages(value := messages_or_text(row.get(field))):
            changes[field] = turns(value, field)[-1]["text"]
    question = messages_or_text(row.get("question"))
    return {**row, **changes, **(conversation(question, "question") if type(question) is list else {})}


def _as_posts(profile: Any) -> Any:
    """A profile that is a text, a list of texts or an attribute map; anything else as it is."""
    if type(profile) is str:
        parsed = literal(profile)
        profile = parsed if type(parsed) is not str else [profile] if profile.strip() else []
    if type(profile) is dict:
        facts = [(str(key), value) for key, value in profile.items() if key not in ("id", "user", "user_id")]
        return [{"id": key, "text": f"{key.replace('_', ' ')}: {value}"} for key, value in facts]
    return [{"text": post} if type(post) is str else post for post in profile] if type(profile) is list else profile


def read_posts(profile: Any) -> tuple[Post, ...]:
    """Posts of a profile in any of its forms, or of our own posts."""
    profile = [profile] if isinstance(profile, Post) else profile or []
    if isinstance(profile, Sequence) and not isinstance(profile, str):
        profile = [post._asdict() if isinstance(post, Post) else post for post in profile]
    row = {"question": "?", "answer": "!", "rating": 0, "user": "?", "profile": _as_posts(profile)}
    if problems := row_problems(row, "ratings"):
        raise BadInput("; ".join(problems))
    return to_posts(row)


# problems


def row_problems(row: Row, kind: Kind) -> list[str]:
    """Everything wrong with one prepared row on its own; `[]` means that it can be built."""
    form = adapter(ROWS[kind])
    if not form.validator.isinstance_python(row):  # cheaper than a validation that collects reasons
        try:
            form.validate_python(row)
        except ValidationError as error:
            return explain(error, row)
    if kind == "pairs" and {a.strip() for a in listed(row["chosen"])} & {a.strip() for a in listed(row["rejected"])}:
        return ["`chosen` and `rejected` are the same text"]
    return []


_EXPECTED = {"string_type": "text", "list_type": "a list", "dict_type": "an object", "bool_type": "true or false"}
_EXPECTED |= {"float_type": "a number", "float_parsing": "a number", "int_type": "an integer"}
_EXPECTED |= {"typed_dict_type": "an object", "model_type": "an object"}


def explain(report: ValidationError, row: Mapping[str, Any], *whole: str) -> list[str]:
    """pydantic's report in words for whoever edits the data file. Required fields that are missing are one problem,
    with the columns that there are. `whole` is the field that was validated, if it was not the row."""
    missing, reasons = [], []
    for error in report.errors(include_url=False):
        at, kind, value = (*whole, *error["loc"]), error["type"], error["input"]
        if at in (("chosen", 0), ("rejected", 0)) and type(row.get(at[0])) is not list:
            at = at[:1]  # it was made a list of one answer
        field = f"`{'.'.join(map(str, at))}`"
        if kind == "missing" and len(at) == 1:
            missing.append(field)
        elif kind == "missing":
            reasons.append(f"{field} is missing")
        elif kind == "string_pattern_mismatch" or (kind == "too_short" and not value):
            reasons.append(f"{field} is empty")
        elif kind == "literal_error":
            reasons.append(f"{field} must be {error['ctx']['expected']}, not {value!r}")
        elif kind in _EXPECTED:
            reasons.append(f"{field} must be {_EXPECTED[kind]}, not {kind_of(value)}")
        else:
            reasons.append(f"{field}: {error['msg']}")
    if missing:
        columns = [name for name in list(row)[:12] if name != "id"]
        given = f"; the columns are {', '.join(columns)}{', …' if len(row) > 12 else ''}" if columns else ""
        reasons.insert(0, f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing{given}")
    return reasons


# items


def to_pair(row: Mapping[str, Any]) -> Pair:
    """A checked row as a `Pair`; checks nothing itself, since it runs once per row and pass."""
    mirror, chosen = row.get("mirror"), listed(row["chosen"])
    return Pair(
        **_shared_fields(row),
        answers=(*chosen, *listed(row["rejected"])),
        n_best=len(chosen),
        narrative=row.get("narrative", ""),
        tier=row.get("tier"),
        mirror=None if mirror is None else str(mirror),
        topic=row.get("topic"),
        drift=row.get("drift", False),
    )


def _shared_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": str(row["id"]),
        "user": str(row.get("user", row["id"])),
        "question": row["question"],
        "profile": to_posts(row),
        "context": tuple([Turn(turn["role"], turn["text"]) for turn in row.get("context", ())]),
        "choices": to_choices(row),
        "category": row.get("category", ""),
        "rubric": to_rubric(row),
        "split": row.get("split"),
        "groups": row.get("groups", {}),
    }


def to_posts(row: Mapping[str, Any]) -> tuple[Post, ...]:
    posts = enumerate(row.get("profile", ()), 1)
    return tuple([Post(str(post.get("id", n)), post.get("category", ""), post["text"]) for n, post in posts])


def to_choices(row: Mapping[str, Any]) -> tuple[Choice, ...]:
    return tuple([Choice(c["question"], c["chosen"], c["rejected"]) for c in row.get("choices", ())])


def to_rubric(row: Mapping[str, Any]) -> tuple[Aspect, ...]:
    return tuple([Aspect.read(aspect) for aspect in row.get("rubric_aspects", ())])


BUILD: dict[Task, Callable[[Mapping[str, Any]], Item]] = {
    "pairs": to_pair,
    "ratings": lambda row: Rating(**_shared_fields(row), answer=row["answer"], rating=float(row["rating"])),
}


def read_items(path: Path, parse: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """One item per line. All wrong lines are reported together, and then nothing of the file is used."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give a .jsonl file")
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    items: list[T] = []
    problems = []
    for row in file_source(path).rows():
        try:
            items.append(parse(row.fields()))
        except ValueError as error:
            problems.append(Problem(row.place, row.line, str(error)))
    if problems:
        raise BadInput("\n  ".join([f"{path} has lines that cannot be used", *by_kind(problems, MOST_SHOWN)]))
    if not items:
        raise BadInput(f"{path} is empty")
    return items


# rows of other formats, converted to ours

ROLES = {"model": "assistant", "developer": "system"}
"""Of messages in PRISM, and of OpenAI's."""


def converted(source: Source, convert: Callable[[Row, RawRow], Iterable[T]]) -> Iterator[T | RawRow]:
    """What each row becomes, or the row with its problem."""
    for row in source.rows():
        try:
            results = list(convert(row.fields(), row))
        except BadRow as error:
            yield row._replace(problem=str(error))
        else:
            yield from results


AnyText = Annotated[str, BeforeValidator(str)]
"""Whatever it is, as text."""
Number = Annotated[float, Field(strict=False)]
"""A number, or the text of one."""


class Foreign(BaseModel):
    """A row of another format, or an object in it. Null is as good as absent; fields that are not named are ignored."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, row: Any) -> Any:
        return {key: value for key, value in row.items() if value is not None} if isinstance(row, dict) else row

    @classmethod
    def read(cls, row: Row) -> Self:
        try:
            return cls.model_validate(row)
        except ValidationError as error:
            raise BadRow("; ".join(explain(error, row))) from None


def pair(at: RawRow, **fields: Any) -> RawRow:
    """A row in our format. Posts, rubric and narrative may be left out; other empty fields are dropped."""
    row = {"profile": [], "rubric_aspects": [], "narrative": "", **fields}
    kept = {k: v for k, v in row.items() if v or k in ("profile", "rubric_aspects", "narrative", "chosen", "rejected")}
    return dict_row(at.place, at.line, kept)


def posts(texts: Iterable[str], prefix: str, category: str) -> list[dict[str, str]]:
    """Texts as posts with numbered ids; blank ones are left out."""
    return [{"id": f"{prefix}-{n}", "category": category, "text": t} for n, t in enumerate(texts) if t.strip()]


def about(user: str, facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a survey says of a user, one post per answer."""
    known = [(key, value) for key, value in facts.items() if value not in (None, "", [], {})]
    return [{"id": f"{user}-{key}", "category": "about", "text": f"{key}: {value}"} for key, value in known]


# their fields


def literal(value: Any) -> Any:
    """A list or object written as text in JSON or Python; anything else unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        try:
            return ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value


Parsed = BeforeValidator(literal)
"""Of a field that CSV files hold as text."""


def read_field(form: TypeAdapter[T], row: Mapping[str, Any], name: str) -> T:
    """A field that a row must have, checked as our own rows are. Raises `BadRow`."""
    if not isinstance(row, Mapping):
        raise BadRow(f"what holds `{name}` must be an object")
    if row.get(name) is None:
        raise BadRow(f"`{name}` is missing")
    try:
        return form.validate_python(row[name])
    except ValidationError as error:
        raise BadRow("; ".join(explain(error, row, name))) from None


field = partial(read_field, TypeAdapter(Any))
text = partial(read_field, TypeAdapter(Text))
identifier = partial(read_field, TypeAdapter(Id, config=STRICT))
number = partial(read_field, TypeAdapter(Number))
items = partial(read_field, TypeAdapter(Annotated[NotEmpty[Any], Parsed]))


# conversations


def messages_or_text(value: Any) -> Any:
    """Messages that a CSV file holds as text; any other text stays as it is, even one that looks like a list."""
    parsed = literal(value)
    return parsed if are_messages(parsed) else value


def are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "content" in m for m in value)


class Message(Foreign):
    role: Annotated[Role, BeforeValidator(lambda role: ROLES.get(str(role), role))] = "user"
    content: str


MESSAGES = TypeAdapter(NotEmpty[Message])


def turns(messages: Any, name: str) -> list[dict[str, str]]:
    """Messages as turns, with roles by our names."""
    return [{"role": m.role, "text": m.content} for m in read_field(MESSAGES, {name: messages}, name)]


def conversation(prompt: Any, name: str) -> dict[str, Any]:
    """A prompt, text or messages, as the fields `question` and, if there are earlier turns, `context`."""
    if isinstance(prompt, str):
        return {"question": text({name: prompt}, name)}
    *earlier, last = turns(prompt, name)
    if last["role"] != "user" or not last["text"].strip():
        raise BadRow(f"the last message of `{name}` must be the user's")
    context = [turn for turn in earlier if turn["text"].strip()]
    return {"question": last["text"], "context": context} if context else {"question": last["text"]}


# places


def folder_of(path: str, dataset: str) -> Path:
    """The folder of a dataset made of several files, local or on the hub."""
    folder = hub_snapshot(path)[1] if path.startswith("hub:") else Path(path)
    if not folder.exists():
        raise BadInput(f"dataset {dataset!r}: {path} does not exist")
    return folder


def main_file(path: str, dataset: str, name: str) -> Path:
    """The file of that name in the folder of a dataset, or the file that `path` names itself."""
    folder = folder_of(path, dataset)
    file = folder / name if folder.is_dir() else folder
    if not file.is_file():
        raise BadInput(f"dataset {dataset!r}: {file} does not exist")
    return file


def table(path: Path, *columns: str) -> Iterator[Row]:
    """The rows of a CSV file that a dataset needs whole, with these columns; an empty cell is `None`."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    for row in file_source(path).rows():
        try:
            data = row.fields()
            if missing := [name for name in columns if name not in data]:
                raise BadRow(f"there is no column {', '.join(missing)}")
        except BadRow as error:
            raise BadInput(f"{path}, line {row.line}: {error}") from None
        yield data
