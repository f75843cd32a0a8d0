"""`prb serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from prb.cli.parse import parse
from prb.serving.config import ServeConfig


def command(args: Sequence[str]) -> None:
    config = parse(ServeConfig, args, "serve")
    import orjson

    from prb.serving.run import Ready, serve

    def say(text: str) -> None:
        if not config.quiet:
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def ready(server: Ready) -> None:
        if config.json:
            print(orjson.dumps(server).decode(), flush=True)  # noqa: T201
        say(f"{server.model} at {server.url}; Ctrl-C answers what was accepted and stops")

    done = serve(config, ready=ready)
    say(f"stopped; {done.scored:,} answers scored, {done.failed:,} failed")
