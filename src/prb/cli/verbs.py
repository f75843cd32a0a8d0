"""What verbs share: choosing a sub-verb, printing JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from prb.errors import BadInput, unknown


def choose(verb: str, args: Sequence[str], subs: Mapping[str, Callable[[Sequence[str]], None]]) -> None:
    if not args:
        raise BadInput(f"prb {verb} wants one of: {', '.join(subs)}")
    if args[0] in ("-h", "--help"):
        print(f"usage: prb {verb} {{{','.join(subs)}}} …   (each has its own --help)")  # noqa: T201
        return
    if args[0] not in subs:
        raise unknown(f"verb of prb {verb}", args[0], subs)
    subs[args[0]](args[1:])


def print_json(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()
