"""Random damage to the files of a folder: what bit rot, editors, half copies and curious people do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from prb.runs import LOCK, json_line

VALUES = (None, True, 0, -1, 9.5, 1e308, "", "x", [], {}, [None], {"a": 1})
Change = Callable[[bytes, random.Random], bytes]


def damage(folder: Path, draws: random.Random) -> str:
    """Change one file of a folder at random; returns what was done."""
    path = draws.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK))
    anywhere: list[Change] = [change_byte, remove_bytes, repeat_bytes, cut_off, empty]
    by_suffix: dict[str, list[Change]] = {
        ".jsonl": [drop_line, repeat_line, replace_line, swap_lines, join_lines, edit_line],
        ".json": [edit_json, edit_json],
    }
    change = draws.choice([*anywhere, *by_suffix.get(path.suffix, [])])
    path.write_bytes(change(path.read_bytes(), draws))
    return f"{change.__name__} in {path.relative_to(folder)}"


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


def drop_line(content: bytes, draws: random.Random) -> bytes:
    lines = _lines(content)
    del lines[draws.randrange(len(lines))]
    return b"".join(lines)


def repeat_line(content: bytes, draws: random.Random) -> bytes:
    lines = _lines(content)
    lines.insert(draws.randrange(len(lines) + 1), draws.choice(lines))
    return b"".join(lines)


def replace_line(content: bytes, draws: random.Random) -> bytes:
    """By a copy of another one, so that there are as many as before."""
    lines = _lines(content)
    lines[draws.randrange(len(lines))] = draws.choice(lines)
    return b"".join(lines)


def swap_lines(content: bytes, draws: random.Random) -> bytes:
    lines = _lines(content)
    a, b = draws.randrange(len(lines)), draws.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def join_lines(content: bytes, draws: random.Random) -> bytes:
    return content.replace(b"\n", draws.choice((b"", b"\r", b"\n\n", b"\r\n")), draws.randint(1, 3))


def edit_line(content: bytes, draws: random.Random) -> bytes:
    """Another value somewhere in one line, as an editor would leave it."""
    lines = _lines(content)
    at = draws.randrange(len(lines))
    lines[at] = edit_json(lines[at], draws).strip() + b"\n"
    return b"".join(lines)


def edit_sealed_line(path: Path, draws: random.Random) -> None:
    """Another value in one line, with a checksum that fits, as somebody who knows the format would leave it."""
    lines = _lines(path.read_bytes())
    at = draws.randrange(len(lines))
    line = {name: value for name, value in orjson.loads(lines[at]).items() if name != "crc"}
    edited = _edited(line, draws)
    lines[at] = json_line(edited) if isinstance(edited, dict) and edited else b"{}\n"
    path.write_bytes(b"".join(lines))


def edit_json(content: bytes, draws: random.Random) -> bytes:
    """Another value, or none, at a random place of a JSON document."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
    return orjson.dumps(_edited(value, draws), option=orjson.OPT_INDENT_2 if b"\n  " in content else 0)


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True) or [b""]


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
