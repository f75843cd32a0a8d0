"""`prb ppo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prb.cli.parse import parse_or_repeat
from prb.cli.verbs import print_json
from prb.downstream.ppo_config import PpoConfig
from prb.errors import MissingExtra


def command(args: Sequence[str]) -> None:
    config = parse_or_repeat(PpoConfig, args, "ppo")
    from prb.progress import watch

    with watch(config.quiet) as progress:
        if config.engine == "verl":
            from prb.downstream.verl import verl

            print(verl(config, progress=progress))  # noqa: T201
            return
        try:
            from prb.downstream.ppo_run import ppo
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            raise MissingExtra("PPO", "torch") from None
        done = ppo(config, progress=progress)
    if config.json:
        print_json(done.summary)
    else:
        _show(done.folder, done.summary)


def _show(folder: Path, summary: Mapping[str, Any]) -> None:
    from prb.downstream.curves import trust
    from prb.reporting.table import Table, show

    held, train = summary["held_out"], summary["train"]
    if held["prompts"]:
        title = f"{held['prompts']} held-out prompts, one answer each, before and after {train['steps']} steps"
        columns = ("", "before", "after", "difference", "95 %", "p", "failed")
        rows = tuple(_cells(name, held[name]) for name in ("reward", "grade") if name in held)
        show(Table(title, columns, rows, notes=()))
    if summary["grader"]:
        print(trust(summary))  # noqa: T201
    if train["stopped"]:
        print(f"stopped early: {train['stopped']}")  # noqa: T201
    print(f"run: {folder}   curves: {folder / 'curves.csv'}   policy: transformers/{folder / 'policy'}")  # noqa: T201


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    difference = row["difference"]
    interval = "" if difference["low"] is None else f"{difference['low']:+.3f} … {difference['high']:+.3f}"
    numbers = [_number(row["before"]["value"]), _number(row["after"]["value"]), _number(difference["value"], "+")]
    p = "" if difference["p"] is None else f"{difference['p']:.2g}"
    return (name, *numbers, interval, p, str(difference["dropped"]))


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.3f}"
