"""Random damage to bytes and to JSON: what bit rot, half copies and careless clients do."""

from __future__ import annotations

import random
from typing import Any

import orjson

VALUES = (None, True, 0, -1, 9.5, 1e308, "", "x", [], {}, [None], {"a": 1})


def change_byte(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content) or 1)
    return content[:at] + bytes([draws.randrange(256)]) + content[at + 1 :]


def remove_bytes(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content) + 1)
    return content[:at] + content[at + draws.randint(1, 40) :]


def repeat_bytes(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content) + 1)
    return content[: at + draws.randint(1, 40)] + content[at:]


def cut_off(content: bytes, draws: random.Random) -> bytes:
    return content[: draws.randrange(len(content) + 1)]


def empty(content: bytes, draws: random.Random) -> bytes:
    return b""


def edit_line(content: bytes, draws: random.Random) -> bytes:
    """Another value somewhere in one line, as an editor would leave it."""
    lines = content.splitlines(keepends=True) or [b""]
    at = draws.randrange(len(lines))
    lines[at] = edit_json(lines[at], draws).strip() + b"\n"
    return b"".join(lines)


def edit_json(content: bytes, draws: random.Random) -> bytes:
    """Another value, or none, at a random place of a JSON document."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
    return orjson.dumps(_edited(value, draws), option=orjson.OPT_INDENT_2 if b"\n  " in content else 0)


def _edited(value: Any, draws: random.Random) -> Any:  # noqa: PLR0911 - one for each type
    if isinstance(value, dict) and value and draws.random() < 0.9:
        key = draws.choice(list(value))
        if draws.random() < 0.15:
            return {name: other for name, other in value.items() if name != key}
        return {**value, key: _edited(value[key], draws)}
    if isinstance(value, list) and value and draws.random() < 0.9:
        at = draws.randrange(len(value))
        return [*value[:at], *([] if draws.random() < 0.15 else [_edited(value[at], draws)]), *value[at + 1 :]]
    if isinstance(value, float) and draws.random() < 0.5:
        return value / 2 + 0.1
    if isinstance(value, int) and draws.random() < 0.5:
        return value + 1
    if isinstance(value, str) and draws.random() < 0.5:
        return value + "x"
    return draws.choice(VALUES)
