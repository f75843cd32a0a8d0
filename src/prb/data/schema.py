"""The row formats: how columns and values of many shapes are read, what is wrong with a row, what is built from it.

Only `question`, `chosen` and `rejected` are required. Columns may have other usual names, a prompt and answers may be
messages, and a profile may be a text, a list of texts, an attribute map or a list of posts. A column that looks like
the user or the history but is read as neither is an error: without it, another question would be measured.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeVar

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from prb.data.rows import BadRow, are_messages, conversation, literal, messages_or_text, turns
from prb.data.source import MAX_COLUMNS, RawRow, Row, file_source
from prb.errors import BadInput, Problem, by_kind
from prb.types import Aspect, Choice, Item, Pair, Post, Rating, Role, Turn

T = TypeVar("T")
Task = Literal["pairs", "ratings"]
MOST_SHOWN = 20
"""Kinds of problems of a file reported at once."""
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
    weight: NotRequired[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    polarity: NotRequired[Literal["positive", "negative"]]
    required: NotRequired[bool]


class ChoiceRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    question: Text
    chosen: Text
    rejected: Text


class TurnRow(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    role: Role
    text: Text


class _AnyRow(TypedDict):
    """What rows of both kinds have: the fields of the public benchmark, then ours. Other fields survive conversion."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    question: Text
    id: NotRequired[Id]
    profile: NotRequired[list[PostRow]]
    rubric_aspects: NotRequired[list[AspectRow]]
    category: NotRequired[str]
    context: NotRequired[list[TurnRow]]
    choices: NotRequired[list[ChoiceRow]]
    split: NotRequired[str]
    groups: NotRequired[dict[str, str]]


class PairRow(_AnyRow):
    chosen: Answers
    rejected: Answers
    user: NotRequired[Id]
    narrative: NotRequired[str]
    tier: NotRequired[str]
    mirror: NotRequired[Id]
    topic: NotRequired[str]
    drift: NotRequired[bool]


class RatingRow(_AnyRow):
    user: Id
    answer: Text
    rating: Annotated[float, Field(ge=0, le=1)]


ROWS: dict[Task, Any] = {"pairs": PairRow, "ratings": RatingRow}
FIELDS: dict[Task, frozenset[str]] = {task: row.__required_keys__ | row.__optional_keys__ for task, row in ROWS.items()}


@cache
def _adapter(task: Task) -> TypeAdapter[Any]:
    return TypeAdapter(ROWS[task])


# columns

_PEOPLE = ["user", "annotator", "rater", "worker", "participant", "person", "respondent", "voter", "labeler"]
_PEOPLE += ["evaluator", "customer"]
SYNONYMS: dict[str, list[str]] = {
    "user": [*_PEOPLE[1:], *(f"{person}_id" for person in _PEOPLE), "persona_id", "user_name", "username", "userid"],
    "profile": [
        "history",
        "persona",
        "posts",
        "user_profile",
        "user_history",
        "user_persona",
        "user_posts",
        "past_posts",
    ],
    "choices": ["past_choices", "past_preferences", "preference_history"],
    "question": ["prompt", "instruction", "query", "user_query", "user_prompt"],
    "chosen": ["chosen_response", "chosen_answer", "preferred", "preferred_response", "preferred_answer"],
    "rejected": ["rejected_response", "rejected_answer", "dispreferred"],
    "rubric_aspects": ["rubric", "aspects"],
    "answer": ["response", "output", "completion", "model_output"],
    "rating": ["score", "human_preference_score"],
}
"""Other names under which a field is read, whatever their case and separators."""
IDENTIFIERS = frozenset({"id", "user", "user_id"})
"""Keys of an attribute map that identify the user and are no preference."""
_HISTORY_WORDS = {*SYNONYMS["profile"][:3], "profile", "profiles", "histories", "personas", "memory", "memories", "bio"}
_ID_WORDS = {"id", "ids", "uid", "uuid", "name", "key", "hash", "index", "idx", "number", "no", "email", "handle"}


class Columns(NamedTuple):
    """How the columns of a row are read."""

    renamed: Mapping[str, str]
    """Field by column, where their names differ."""
    problem: str = ""


@lru_cache(maxsize=1024)  # nearly all rows of a file have the same columns
def read_columns(names: tuple[str, ...], task: Task) -> Columns:
    fields = FIELDS[task]
    field_of = {name: field for field in fields for name in (field, *SYNONYMS.get(field, ()))}
    columns: dict[str, list[str]] = {}
    others = []
    for name in names:
        field = name if name in fields else field_of.get(plain(name))
        columns.setdefault(field, []).append(name) if field else others.append(name)
    renamed = {}
    for field, candidates in columns.items():
        if field in candidates:
            continue
        exact = [name for name in candidates if plain(name) == field] or candidates
        if len(exact) > 1:
            several = " and ".join(f"`{name}`" for name in exact)
            return Columns({}, f"{several} may all be the `{field}`; rename the right one to `{field}`")
        renamed[exact[0]] = field
    for field, look in (("user", _like_a_user), ("profile", _like_a_history)):
        if field not in columns and not (field == "profile" and "choices" in columns):
            for name in filter(look, others):
                what = "the user" if field == "user" else "the user's history"
                return Columns({}, f"`{name}` looks like {what} but is not read; did you mean `{field}`?")
    return Columns(renamed)


def plain(name: str) -> str:
    """`User ID`, `userId` and `user-id` are `user_id`."""
    return re.sub(r"[\W_]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()


def _like_a_user(name: str) -> bool:
    first, *rest = plain(name).split("_")
    if first in (*_PEOPLE, *(f"{person}s" for person in _PEOPLE), "usr", "uid", "reviewer"):
        return set(rest) <= _ID_WORDS
    return _near(name, ["user", *SYNONYMS["user"]])


def _like_a_history(name: str) -> bool:
    return bool(_HISTORY_WORDS & set(plain(name).split("_"))) or _near(name, ["profile", *SYNONYMS["profile"]])


def _near(name: str, known: list[str]) -> bool:
    return 4 < len(name) < 40 and bool(get_close_matches(plain(name), known, n=1, cutoff=0.85))


# values


def prepared(row: RawRow, task: Task) -> Row:
    """The row in our own form, named after its place if it has no id. Raises `BadRow`."""
    if row.problem:
        raise BadRow(row.problem)
    if type(row.data) is not dict:
        raise BadRow(f"a row must be an object, not {_kind(row.data)}")
    if len(row.data) > MAX_COLUMNS:
        raise BadRow(f"the row has {len(row.data):,} columns; at most {MAX_COLUMNS:,} are read")
    data = normalize(row.data, task)
    return data if "id" in data else {**data, "id": f"{row.place}:{row.line}"}


def normalize(row: Row, task: Task = "pairs") -> Row:
    """Columns by our names, nothing that is null, messages as turns and answers, any form of profile as posts."""
    if None in row.values():
        row = {key: value for key, value in row.items() if value is not None}
    renamed, problem = read_columns(tuple(row), task)
    if problem:
        raise BadRow(problem)
    added = row.get("input")
    if renamed:
        row = {renamed.get(key, key): value for key, value in row.items()}
        if "instruction" in renamed and type(added) is str and added.strip():
            row["question"] = f"{row['question']}\n\n{added}"
    changes = _changes(row)
    return {**row, **changes} if changes else row


def _changes(row: Row) -> Row:
    """The fields that are not yet in our own form, in it."""
    changes: Row = {}
    for field in ("context", "choices", "groups", "rubric_aspects"):
        if type(row.get(field)) is str:
            changes[field] = literal(row[field]) if row[field].strip() else {} if field == "groups" else []
    rubric = changes.get("rubric_aspects", row.get("rubric_aspects"))
    if rubric and (type(rubric) is str or (type(rubric) is list and type(rubric[0]) is str)):
        changes["rubric_aspects"] = [{"aspect": aspect} for aspect in listed(rubric)]
    profile = row.get("profile")
    if profile and (type(profile) is not list or any(type(post) is not dict or "text" not in post for post in profile)):
        changes |= _history(profile)
    elif profile in ("", {}):
        changes["profile"] = []
    return changes | _messages(row)


def _history(profile: Any) -> Row:
    """The profile as posts, or as choices if it is a list of past preferences."""
    if type(profile) is str:
        value = literal(profile)
        profile = [profile] if type(value) is str and value.strip() else value
    if type(profile) is dict:
        posts = [(str(key), value) for key, value in profile.items() if key not in IDENTIFIERS]
        return {"profile": [{"id": key, "text": f"{key.replace('_', ' ')}: {value}"} for key, value in posts]}
    if type(profile) is not list:
        return {"profile": profile if type(profile) is not str else []}
    if all(type(post) is dict and {"chosen", "rejected"} <= post.keys() for post in profile):
        return {"profile": [], "choices": [normalize(choice) for choice in profile]}
    if any(type(post) is dict and "role" in post for post in profile):
        raise BadRow("`profile` holds messages; earlier turns belong in `context`, what the user wrote in texts")
    return {"profile": [_post(post) for post in profile]}


def read_posts(profile: Any) -> tuple[Post, ...]:
    """Posts of a profile in any of its forms, or of our own posts."""
    profile = [profile] if isinstance(profile, Post) else profile or []
    if isinstance(profile, Sequence) and not isinstance(profile, str):
        profile = [post._asdict() if isinstance(post, Post) else post for post in profile]
    row = {"question": "?", "answer": "!", "rating": 0, "user": "?", **_history(profile)}
    if problems := row_problems(row, "ratings"):
        raise BadInput("; ".join(problems))
    return to_posts(row)


def _post(post: Any) -> Any:
    if type(post) is str:
        return {"text": post}
    if type(post) is dict and "text" not in post:
        name = next((name for name in ("content", "body", "post", "comment", "message") if name in post), None)
        return {**post, "text": post[name]} if name else post
    return post


def _messages(row: Row) -> Row:
    """Question, context and answers, if any of them is given as messages."""
    question, chosen, rejected = (messages_or_text(row.get(field)) for field in ("question", "chosen", "rejected"))
    changes: Row = {
        field: turns(value, field)[-1]["text"]
        for field, value in (("chosen", chosen), ("rejected", rejected))
        if are_messages(value)
    }
    if question is None and len(changes) == 2:
        if chosen[:-1] != rejected[:-1] or len(chosen) < 2:
            raise BadRow("`question` is missing, and `chosen` and `rejected` do not begin with the same messages")
        question = chosen[:-1]
    return {**changes, **conversation(question, "question")} if type(question) is list else changes


def row_problems(row: Row, task: Task) -> list[str]:
    """Everything wrong with one prepared row on its own; `[]` means that it can be built."""
    adapter = _adapter(task)
    if not adapter.validator.isinstance_python(row):  # cheaper than a validation that collects reasons
        try:
            adapter.validate_python(row)
        except ValidationError as error:
            return _explain_all([dict(e) for e in error.errors(include_url=False) if not _repeats(e)], row)
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


def _explain_all(errors: list[Mapping[str, Any]], row: Row) -> list[str]:
    """Required fields that are missing are one problem, with the columns that there are."""
    missing = [f"`{e['loc'][0]}`" for e in errors if e["type"] == "missing" and len(e["loc"]) == 1]
    reasons = [_explain(e) for e in errors if not (e["type"] == "missing" and len(e["loc"]) == 1)]
    if missing:
        columns = [name for name in list(row)[:12] if name != "id"]
        given = f"; the columns are {', '.join(columns)}{', …' if len(row) > 12 else ''}" if columns else ""
        reasons.insert(0, f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing{given}")
    return reasons


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


# items


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
        category=get("category", ""),
        rubric=_rubric(row),
        narrative=get("narrative", ""),
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
        rubric=_rubric(row),
        split=row.get("split"),
        groups=row.get("groups", {}),
    )


def to_posts(row: Mapping[str, Any]) -> tuple[Post, ...]:
    posts = enumerate(row.get("profile", ()), 1)
    return tuple([Post(str(post.get("id", n)), post.get("category", ""), post["text"]) for n, post in posts])


def to_context(row: Mapping[str, Any]) -> tuple[Turn, ...]:
    return tuple([Turn(turn["role"], turn["text"]) for turn in row.get("context", ())])


def to_choices(row: Mapping[str, Any]) -> tuple[Choice, ...]:
    return tuple([Choice(c["question"], c["chosen"], c["rejected"]) for c in row.get("choices", ())])


def _rubric(row: Mapping[str, Any]) -> tuple[Aspect, ...]:
    aspects = row.get("rubric_aspects", ())
    return tuple([Aspect.read(a) for a in aspects])


BUILD: dict[Task, Callable[[Mapping[str, Any]], Item]] = {"pairs": to_pair, "ratings": to_rating}


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
            if row.problem or not isinstance(row.data, dict):
                raise ValueError(row.problem or "a line must be a JSON object")
            items.append(parse(row.data))
        except ValueError as error:
            problems.append(Problem(row.place, row.line, str(error)))
    if problems:
        raise BadInput("\n  ".join([f"{path} has lines that cannot be used", *by_kind(problems, MOST_SHOWN)]))
    if not items:
        raise BadInput(f"{path} is empty")
    return items
