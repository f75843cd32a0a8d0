"""`prb serve`."""

# ruff: noqa: T201

from __future__ import annotations

import sys
from collections.abc import Sequence

from prb.cli.parse import parse
from prb.serving.server import Ready, ServeConfig, serve


def command(args: Sequence[str]) -> None:
    config = parse(ServeConfig, args, "serve")
    import orjson

    def note(text: str) -> None:
        if not config.quiet:
            print(text, file=sys.stderr, flush=True)

    def ready(server: Ready) -> None:
        if config.json:
            print(orjson.dumps(server).decode(), flush=True)
        note(f"{server.model} at {server.url}; Ctrl-C answers accepted requests and stops")

    done = serve(config, ready=ready)
    note(f"stopped; {done.scored:,} answers scored, {done.failed:,} failed")
