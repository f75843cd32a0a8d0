"""Runs that give every part of a site something to show, and a site's data as Python sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.progress import SILENT, Progress
from prb.reporting.site import ReportConfig, report
from prb.runs import write_lines
from prb.types import Ask, Duel, Failure, RewardModel, Verdict
from tests.conftest import Row, make_row, make_twins
from tests.runs import by_length, settings

EVIL = "<script>alert(1)</script>"
LONG = "a-model-with-a-very-long-name?and=many&options=" + "x" * 60
CONDITIONS = ("none", "profile", "plan", "shuffled", "oracle")


def write_site(runs: Sequence[Path], out: Path, *, progress: Progress = SILENT, **settings: Any) -> Path:
    """What `prb report RUN … --out OUT` writes; its `index.html`."""
    return report(ReportConfig(runs=tuple(runs), out=out, **settings), progress=progress)


def rows() -> list[Row]:
    """Three twins in two tiers, and one row of somebody else whose labels would like to be markup."""
    twins = [row for n in (1, 2, 3) for row in make_twins(n, tier="easy" if n == 1 else "hard")]
    return [*twins, make_row(9, question=f"What {EVIL} is this?", category=EVIL, tier='"><img src=x onerror=alert(2)>')]


def knows(ask: Ask) -> float:
    """Right wherever it is shown the person's own posts: short answers, but long ones for people called `b…`."""
    shortness = -float(len(ask.answer))
    own = [post.id for post in ask.query.posts]
    return -shortness if any(name.startswith("b") for name in own) else shortness


def judge(duel: Duel) -> Verdict | Failure:
    if "plant number 2" in duel.query.question:
        return Failure("no verdict found", "the model rambled")
    return Verdict(choice="first", text=f"I like the first. {EVIL}", tokens=10, cost=0.25)


def models() -> dict[str, RewardModel]:
    return {
        "knows": ScriptedScorer(knows),
        EVIL: ScriptedComparer(judge),
        LONG: ScriptedScorer(by_length),
        "failing": ScriptedScorer(lambda _: Failure("busy")),
    }


def site_of(folder: Path, rows: Sequence[Row], models: Mapping[str, RewardModel] | None = None, **changes: Any) -> Path:
    """The folder of the site of one run on these rows, of the models above under all conditions, or of others."""
    data = folder / "set.jsonl"
    write_lines(data, rows)
    if models is None:
        make_run(data, folder / "run", **changes)
    else:
        evaluate(settings(data, folder / "run", model=tuple(models), **changes), models=models)
    return write_site([folder / "run"], folder / "site").parent


def make_run(data: Path, folder: Path, **changes: Any) -> Path:
    own = models()
    evaluate(settings(data, folder, model=tuple(own), condition=CONDITIONS, **changes), models=own)
    return folder


def data_of(site: Path, name: str) -> Any:
    """What `prb.load(name)` gives a page; the file must be that one call and nothing else."""
    text = (site / "data" / f"{name}.js").read_bytes()
    start, end = b"prb.data(" + orjson.dumps(name) + b",", b");\n"
    assert text.startswith(start)
    assert text.endswith(end)
    return orjson.loads(text[len(start) : -len(end)])
