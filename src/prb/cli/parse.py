"""From words on the command line to a frozen config, by tyro."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import tyro


class Config(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


C = TypeVar("C", bound=Config)


def parse(config: type[C], args: Sequence[str], verb: str, default: C | None = None) -> C:
    """Flags of a config class; with a default, a repeatable flag replaces what it holds instead of adding to it."""
    if default is None:
        return tyro.cli(config, args=list(args), prog=f"prb {verb}")
    emptied = dataclasses.replace(default, **{name: () for name in _repeatable(default) if _given(name, args)})
    return tyro.cli(config, args=list(args), prog=f"prb {verb}", default=emptied)


def parse_or_repeat(
    config: type[C], args: Sequence[str], verb: str, held: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> C:
    """`--config runs/x/config.json` repeats a run; flags beside it change what it holds.

    `held` reads the settings from the file's content where that is more than the part under the verb's name.
    """
    path, rest = _take_option(args, "--config")
    if path is None:
        return parse(config, args, verb)
    from prb.errors import BadInput
    from prb.runs import read_json

    content = read_json(path)
    if not isinstance(content, dict) or verb not in content:
        raise BadInput(f"{path} is no config of `prb {verb}`")
    return parse(config, rest, verb, _saved(config, held(content) if held else content[verb]))


def refuse_repeated(args: Sequence[str], flag: str) -> None:
    """For a flag that takes one value here and several elsewhere: the last one must not win silently."""
    if sum(word == flag or word.startswith(flag + "=") for word in args) > 1:
        from prb.errors import BadInput

        raise BadInput(f"{flag} takes one value; run the command once for each")


def _saved(config: type[C], values: dict[str, Any]) -> C:
    from pydantic import TypeAdapter, ValidationError

    from prb.errors import BadInput

    try:
        return TypeAdapter(config).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"--config: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _take_option(args: Sequence[str], name: str) -> tuple[Path | None, list[str]]:
    """Pull `--name VALUE` or `--name=VALUE` out of the words."""
    rest: list[str] = []
    found = None
    words = iter(args)
    for word in words:
        if word == name:
            found = next(words, None)
        elif word.startswith(name + "="):
            found = word.removeprefix(name + "=")
        else:
            rest.append(word)
    return (Path(found) if found else None), rest


def _given(field: str, args: Sequence[str]) -> bool:
    flag = "--" + field.replace("_", "-")
    return any(word == flag or word.startswith(flag + "=") for word in args)


def _repeatable(config: Config) -> list[str]:
    return [f.name for f in dataclasses.fields(config) if isinstance(getattr(config, f.name), tuple)]
