"""What the converters of foreign formats share: fields with clear errors, messages as turns, paths and names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import orjson

from prb.data.source import HubSource, RawRow, Row, Source, dict_row, file_source
from prb.errors import BadInput
from prb.registry import Spec

T = TypeVar("T")
ROLES = dict.fromkeys(("user", "human", "prompter"), "user")
ROLES |= dict.fromkeys(("assistant", "model", "bot", "gpt", "chatbot", "ai"), "assistant")
ROLES |= dict.fromkeys(("system", "developer"), "system")
KNOWN_ROLES = "user, assistant, model, system and their usual synonyms"
SPLIT_NAMES = {"val": "validation", "valid": "validation", "dev": "validation"}


class BadRow(ValueError):
    """What is wrong with a row; `converted` reports it with the line."""


def converted(source: Source, convert: Callable[[Row, RawRow], Iterable[T]]) -> Iterator[T | RawRow]:
    """What each row becomes, or the row with its problem."""
    for row in source.rows():
        if row.problem:
            yield row
            continue
        try:
            if not isinstance(row.data, dict):
                raise BadRow("a row must be an object")
            results = list(convert(row.data, row))
        except BadRow as error:
            yield row._replace(problem=str(error))
        else:
            yield from results


@dataclass(frozen=True)
class ConvertedSource:
    name: str
    inner: Source
    convert: Callable[[Row, RawRow], Iterable[RawRow]]

    def rows(self) -> Iterator[RawRow]:
        return converted(self.inner, self.convert)


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


# fields


def field(row: Mapping[str, Any], name: str) -> Any:
    if not isinstance(row, Mapping):
        raise BadRow(f"what holds `{name}` must be an object")
    if row.get(name) is None:
        raise BadRow(f"`{name}` is missing")
    return row[name]


def text(row: Mapping[str, Any], name: str) -> str:
    value = field(row, name)
    if not isinstance(value, str):
        raise BadRow(f"`{name}` must be text")
    if not value.strip():
        raise BadRow(f"`{name}` is empty")
    return value


def identifier(row: Mapping[str, Any], name: str) -> str:
    value = field(row, name)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise BadRow(f"`{name}` must be text or an integer")
    return str(value)


def number(row: Mapping[str, Any], name: str) -> float:
    value = field(row, name)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadRow(f"`{name}` must be a number") from None


def items(row: Mapping[str, Any], name: str) -> list[Any]:
    """A list, or the text of one in JSON or Python, as CSV files have it."""
    value = literal(field(row, name))
    if not isinstance(value, list) or not value:
        raise BadRow(f"`{name}` must be a list that is not empty")
    return value


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


def split_of(row: Mapping[str, Any], name: str = "split") -> dict[str, str]:
    """The split of a row, by its usual name, as a field to add; nothing if it has none."""
    return {"split": SPLIT_NAMES.get(str(row[name]), str(row[name]))} if row.get(name) else {}


# conversations


def messages_or_text(value: Any) -> Any:
    """Messages that a CSV file holds as text; any other text stays as it is, even one that looks like a list."""
    parsed = literal(value)
    return parsed if are_messages(parsed) else value


def are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "content" in m for m in value)


def turns(messages: Any, name: str) -> list[dict[str, str]]:
    """Messages as turns: roles by our names, parts of one message as one text."""
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"`{name}` must be a list of messages")
    made = []
    for n, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRow(f"`{name}.{n}` must be a message")
        role = ROLES.get(str(message.get("role", message.get("from", "user"))).lower())
        if role is None:
            raise BadRow(f"`{name}.{n}.role` is {message.get('role')!r}; known are {KNOWN_ROLES}")
        content = message.get("content", message.get("value"))
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
        if not isinstance(content, str):
            raise BadRow(f"`{name}.{n}.content` must be text")
        made.append({"role": role, "text": content})
    return made


def conversation(prompt: Any, name: str) -> dict[str, Any]:
    """A prompt, text or messages, as the fields `question` and, if there are earlier turns, `context`."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise BadRow(f"`{name}` is empty")
        return {"question": prompt}
    if not isinstance(prompt, list):
        raise BadRow(f"`{name}` must be text or a list of messages")
    *earlier, last = turns(prompt, name)
    if last["role"] != "user" or not last["text"].strip():
        raise BadRow(f"the last message of `{name}` must be the user's")
    context = [turn for turn in earlier if turn["text"].strip()]
    return {"question": last["text"], "context": context} if context else {"question": last["text"]}


# places


def folder_of(path: str, dataset: str) -> Path:
    """The folder of a dataset made of several files, local or on the hub."""
    folder = HubSource.parse(path).folder if path.startswith("hub:") else Path(path)
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
            if row.problem or not isinstance(row.data, dict):
                raise BadRow(row.problem or "a row must be an object")
            if missing := [name for name in columns if name not in row.data]:
                raise BadRow(f"there is no column {', '.join(missing)}")
        except BadRow as error:
            raise BadInput(f"{path}, line {row.line}: {error}") from None
        yield row.data


def spec_name(name: str, path: str, *settings: Any) -> str:
    """The spec that makes a source again: what differs from the defaults of its settings."""
    changed = {f.name: v for s in settings for f in fields(s) if (v := getattr(s, f.name)) != f.default}
    options = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in changed.items()}
    return str(Spec(name, ({"path": path} if path else {}) | options))
