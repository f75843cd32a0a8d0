"""How results are stored and compared, and what is said where they differ."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from tests.golden.shell import Json

EXPECTED = Path(__file__).parent / "expected"
DIGITS = 9
"""Stored precision. Further digits depend on the processor and on how many threads add up a matrix product."""
RELATIVE, ABSOLUTE = 1e-6, 1.5e-6
"""Encoders compute in float32, so even fewer digits are the same on two machines; rounding alone would leave values
that fall on either side of a rounding boundary, and scores are written with six decimals."""
LINE = 240


PORT = re.compile(r"(127\.0\.0\.1|localhost):\d{5}\b")
"""Of servers that tests start; ports that we choose have four digits."""


def rounded(value: Json) -> Json:
    """As it is stored: no more digits than machines agree on, no ports that differ from run to run."""
    match value:
        case str():
            return PORT.sub(r"\1:PORT", value)
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item) for item in value]
    return value


def load(name: str) -> Json:
    return json.loads((EXPECTED / f"{name}.json").read_text("utf-8"))


def save(name: str, value: Json) -> None:
    EXPECTED.mkdir(exist_ok=True)
    (EXPECTED / f"{name}.json").write_text(pretty(rounded(value)) + "\n", "utf-8")


def pretty(value: Json, indent: int = 0) -> str:
    """JSON in which everything that fits on a line is on one line: short files, readable diffs."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= LINE or not value or not isinstance(value, dict | list):
        return flat
    inner, pad = indent + 1, " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(key, ensure_ascii=False)}: {pretty(item, inner)}" for key, item in value.items()]
        opening, closing = "{}"
    else:
        parts = [pad + pretty(item, inner) for item in value]
        opening, closing = "[]"
    return f"{opening}\n" + ",\n".join(parts) + f"\n{' ' * indent}{closing}"


def differences(expected: Json, actual: Json, path: str = "$") -> Iterator[str]:
    """One line per JSON path that differs."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            place = f"{path}.{key}"
            if key not in actual:
                yield f"{place}: missing, expected {brief(expected[key])}"
            elif key not in expected:
                yield f"{place}: unexpected {brief(actual[key])}"
            else:
                yield from differences(expected[key], actual[key], place)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(actual)} items, expected {len(expected)}"
        for n, (one, other) in enumerate(zip(expected, actual, strict=False)):
            yield from differences(one, other, f"{path}[{n}]")
    elif not alike(expected, actual):
        yield f"{path}: {brief(actual)}, expected {brief(expected)}"


def alike(expected: Json, actual: Json) -> bool:
    """Equal, or numbers that differ in their last digits only; 1 is not true."""
    kinds = {type(expected), type(actual)}
    if kinds <= {int, float}:
        return math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return len(kinds) == 1 and bool(expected == actual)


def brief(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:150]}…{text[-9:]}"
