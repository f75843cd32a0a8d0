"""From the command line to a config: one flag per field, grouped by the class that declares it.

Values stay text here; the config class converts and checks them, as it does for Python and for files.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from prb.config import Flag, OneOf, Settings, read_config
from prb.errors import BadInput
from prb.registry import names_code

C = TypeVar("C", bound=Settings)
METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
Argument = tuple[list[str], dict[str, Any]]


def parse(config: type[C], args: Sequence[str], command: str) -> C:
    """The config that a command line describes; `--config FILE` supplies what no flag does."""
    parser = parser_of(config, command, everything="--help-all" in args)
    either = [name for name, field in fields_of(config).items() if _flag(field).either]
    values = vars(parser.parse_intermixed_args(_positional_first(args, either)))
    given = {name: value for name, value in values.items() if value is not None}
    path = given.pop("config", None) if config.verb else None
    saved = read_config(path, config) if path else {}
    for name, value in saved.items():
        for text in value if isinstance(value, (list, tuple)) else (value,):
            if name not in given and isinstance(text, str) and names_code(text):
                flag = f"--{name.replace('_', '-')}"
                raise BadInput(f"{path} names code, {text!r}; if you trust it, give it yourself: {flag} {text!r}")
    try:
        return config(**{**saved, **given})
    except BadInput as error:
        names = "|".join(name for name in fields_of(config) if name not in saved or name in given)
        named = re.compile(rf"(?m)^( *)({names})(?= must be | is required)")
        said = named.sub(lambda match: f"{match[1]}--{match[2].replace('_', '-')}", str(error))
        raise BadInput(said + f"; see `{parser.prog} --help`" * said.endswith(" is required")) from None


def fields_of(config: type[Settings]) -> dict[str, FieldInfo]:
    fields: dict[str, FieldInfo] = config.__pydantic_fields__  # type: ignore[attr-defined]
    return fields


def parser_of(config: type[Settings], command: str, *, everything: bool) -> Parser:
    """One flag per field, grouped by the class that declares it; `everything` shows those that few people need."""
    parser = Parser(
        prog=f"prb {command}",
        description=config.__doc__ or "",
        formatter_class=HelpFormatter,
        add_help=False,
        allow_abbrev=False,
        usage=argparse.SUPPRESS,
    )
    groups: dict[str, list[Argument]] = {"options": []}
    hidden = 0
    for name, field in fields_of(config).items():
        home = next(cls for cls in config.__mro__ if name in vars(cls).get("__annotations__", {}))
        title = "options" if home is config else (home.__doc__ or "").rstrip(".").lower()
        described = home.__pydantic_fields__[name].description or ""  # type: ignore[attr-defined]
        words, options = _argument(name, field, described)
        if home is Settings or (_flag(field).rare and not everything):
            hidden += home is not Settings
            options["help"] = argparse.SUPPRESS
        groups.setdefault(title, []).append((words, options))
    if config.verb:
        hidden += not everything
        about = "Take settings from a config.json or a run folder." if everything else argparse.SUPPRESS
        groups["settings"] = [(["--config"], {"type": Path, "metavar": "PATH", "help": about})]
    for title, arguments in groups.items():
        group = parser.add_argument_group(title)
        for words, options in arguments:
            group.add_argument(*words, **options)
    parser.add_argument("-h", "--help", "--help-all", action="help", help=argparse.SUPPRESS)
    more = f"`{parser.prog} --help-all` lists {hidden} more setting{'s' * (hidden > 1)}. " if hidden else ""
    parser.epilog = f"{more}Every command takes --json (the result as JSON) and --quiet (no progress)."
    return parser


def _positional_first(args: Sequence[str], names: Sequence[str]) -> list[str]:
    """`--dataset X` as the first positional argument, for verbs that take it as one."""
    words = list(args)
    for flag in ("--" + name.replace("_", "-") for name in names):
        for n, word in enumerate(words):
            if word.startswith(f"{flag}="):
                return [word.partition("=")[2], *words[:n], *words[n + 1 :]]
            if word == flag and n + 1 < len(words):
                return [words[n + 1], *words[:n], *words[n + 2 :]]
    return words


def _flag(field: FieldInfo) -> Flag:
    """What the marks of a field say together: `Rare[Repeated[str]]` is both."""
    marks = [item for item in field.metadata if isinstance(item, Flag)]
    return Flag(**{name: any(getattr(mark, name) for mark in marks) for name in Flag.__dataclass_fields__})


def _argument(name: str, field: FieldInfo, description: str) -> Argument:
    """What argparse must know about a field: its flag, and how many values it takes."""
    flag, default = _flag(field), field.default
    kind, marks = _kind(field.annotation)
    if flag.repeated:
        kind, marks = _kind(get_args(kind)[0])
    text = description.replace("%", "%%").replace("\n", " ") + " --dataset X also works." * flag.either
    if field.is_required():
        text += " (required)"
    elif default is not None and default is not False and default != ():
        text += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
    elif flag.repeated and not flag.positional:
        text += " (repeatable)"
    options: dict[str, Any] = {"help": text, "default": None}
    if flag.positional:
        optional = not field.is_required()
        nargs = ("*" if optional else "+") if flag.repeated else "?" if optional else None
        return [name], options | {"metavar": name.upper(), "nargs": nargs}
    options["dest"], words = name, ["--" + name.replace("_", "-")]
    if kind is bool:
        return words, options | {"action": argparse.BooleanOptionalAction if default is True else "store_true"}
    choices: Iterable[Any] = get_args(kind) if get_origin(kind) is Literal else ()
    choices = next((mark.names for mark in (*field.metadata, *marks) if isinstance(mark, OneOf)), choices)
    options["metavar"] = "{" + ",".join(choices) + "}" if choices else METAVARS.get(kind, "TEXT")
    if flag.repeated:
        options |= {"action": "extend", "nargs": "+"} if flag.words else {"action": "append"}
    elif flag.once:
        options["action"] = Once
    return words, options


def _kind(annotation: Any) -> tuple[Any, Sequence[Any]]:
    """A type without `None` and without its constraints, and these."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kind = next(member for member in members if member is not NoneType)
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())


class Once(argparse.Action):
    """For a flag that may be repeated with other verbs: given twice, the last one must not win silently."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} takes one value here")
        setattr(namespace, self.dest, values)


class HelpFormatter(argparse.HelpFormatter):
    """As wide as the terminal; what is piped is not wrapped."""

    def __init__(self, prog: str) -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
        super().__init__(prog, max_help_position=30, width=width)


class Parser(argparse.ArgumentParser):
    """Errors are one line, and say what was probably meant."""

    def format_help(self) -> str:
        shapes = {"?": "[{}]", "+": "{}…", "*": "[{}…]"}
        positional = [action for action in self._actions if not action.option_strings]
        words = [shapes.get(str(action.nargs), "{}").format(action.metavar) for action in positional]
        return f"usage: {' '.join([self.prog, *words])} [options]\n\n{super().format_help().lstrip()}"

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments: ") and words[0].startswith("-"):
            flags = [flag for action in self._actions for flag in action.option_strings]
            near = difflib.get_close_matches(words[0].partition("=")[0], flags, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists them"
            raise BadInput(f"there is no flag {words[0]}; {hint}")
        raise BadInput(f"{message}; see `{self.prog} --help`")


def answer(settings: Settings, content: Any, text: str) -> None:
    """What a command found, as JSON or in words."""
    print_json(content) if settings.json else print(text)  # noqa: T201


def print_json(value: Any) -> None:
    import orjson

    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()
