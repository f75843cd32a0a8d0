"""A dataset on the terminal: its figures, one row to read, the prompt a model would be shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from prb.config import Condition
from prb.data.load import load
from prb.data.retrieve import ranker
from prb.data.schema import normalize, row_problems, to_pair
from prb.data.source import find_row
from prb.errors import BadData, PrbError
from prb.evaluation.conditions import Asker
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.plan import PLANNERS
from prb.prompts import render
from prb.types import Failure, Pair


def show_stats(found: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in _flat(found):
        grid.add_row(name.replace("_", " "), Text(_say(value)))
    console = Console() if Console().is_terminal else Console(width=140)
    console.print(grid)


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Groups of groups are spread out, one line a group."""
    for name, value in found.items():
        if isinstance(value, Mapping) and all(isinstance(v, Mapping) for v in value.values()):
            yield from ((f"{name}: {key}", item) for key, item in value.items())
        elif name == "review":
            yield from _flat(value)
        else:
            yield name, value


def _say(value: Any) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"min", "median", "max"}:
            return f"{_say(value['median'])}  ({_say(value['min'])} to {_say(value['max'])})"
        return ", ".join(f"{key} {_say(item)}" for key, item in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def show_pair(spec: str, wanted: str, *, as_json: bool = False) -> None:
    if as_json:
        _print_json(find_row(spec, wanted))
        return
    from rich.columns import Columns
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.text import Text

    pair = _pair(spec, wanted)
    about = [pair.category, pair.tier, pair.topic, pair.split, f"mirror of {pair.mirror}" if pair.mirror else None]
    console = Console()
    console.print(Text(pair.id, style="bold"), Text("  ·  ".join(filter(None, about)), style="dim"))
    posts = [Text.assemble((f"{post.id}  ", "dim"), post.text) for post in pair.profile]
    who = Text(f"{pair.user}: {len(posts)} posts, oldest first")
    console.print(Panel(Group(*posts), title=who, title_align="left"))
    console.print(Panel(Text(pair.question, style="bold"), title="question", title_align="left"))
    width = (console.width - 2) // 2
    answers = [("chosen", pair.chosen, "green"), ("rejected", pair.rejected, "red")]
    panels = [Panel(Text(text), title=name, border_style=style, width=width) for name, text, style in answers]
    console.print(Columns(panels, padding=(0, 1)))
    rubric = [Text.assemble((a.aspect, "bold"), f"  “{a.evidence}”  ", (a.reason, "dim")) for a in pair.rubric]
    hidden = Group(Text(pair.narrative), Text(), *rubric)
    console.print(Panel(hidden, title="hidden from reward models", title_align="left", border_style="dim"))


def show_prompt(spec: str, wanted: str, condition: Condition, *, as_json: bool = False) -> None:
    """Exactly what `prb evaluate` with default settings would put before a model."""
    pair = _pair(spec, wanted)
    settings = EvaluateConfig()
    dataset = load(spec, split=pair.split, donors=condition == "shuffled")
    asker = Asker(
        rank=ranker(settings.ranker),
        planner=PLANNERS.make(settings.planner),
        people=dataset.people,
        k=settings.k,
        budget=settings.budget,
        seed=settings.seed,
    )
    asked = asker.ask(pair, condition)
    if isinstance(asked, Failure):
        raise PrbError(f"{wanted}: {asked}")
    prompt = render(asked.query)
    if as_json:
        _print_json({"id": pair.id, "condition": condition, "prompt": prompt})
    else:
        print(prompt)  # noqa: T201


def _pair(spec: str, wanted: str) -> Pair:
    row = normalize(find_row(spec, wanted))
    problems = row_problems(row, "pairs")
    if problems:
        raise BadData(f"{spec} {wanted}", problems)
    return to_pair(row)


def _print_json(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()
