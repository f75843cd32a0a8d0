"""Small results of every kind for the evidence pages and figures: real ones where that is quick, else by hand."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec

from prb.downstream.bon import best_of_n
from prb.downstream.correlate import CorrelateConfig, correlate
from prb.downstream.ppo import CurveRow, write_curves
from prb.runs import write_json, write_lines
from prb.study.agreement import summarize
from tests.conftest import make_row
from tests.downstream.fakes import Marks, errs, knows, policy, settings
from tests.study.test_agreement import judged, rated, row

EVIL = "<img src=x onerror=alert(1)>"
CRITERIA = ("correctness", "relevance", "helpfulness")


def bon_run(folder: Path, **changes: Any) -> Path:
    """Ten people, four answers each: `knows` picks well, and the harder the evil one picks the worse it gets."""
    from prb.models.scripted import ScriptedScorer

    folder.mkdir(parents=True)
    data = folder / "data.jsonl"
    write_lines(data, [make_row(n) for n in range(10)])
    models = {"knows": ScriptedScorer(knows, "knows"), EVIL: ScriptedScorer(errs, "errs")}
    config = settings(data, folder / "run", **{"model": tuple(models), **changes})
    best_of_n(config, models=models, policy=policy(), grader=Marks())
    return folder / "run"


def ends(before: float, after: float) -> dict[str, Any]:
    means = [{"value": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 12, "failed": 0} for mean in (before, after)]
    test = {"p": 0.02, "n": 12, "dropped": 1, "test": "sign-flip"}
    difference = {"value": after - before, "low": 0.01, "high": 0.4, **test}
    return {"before": means[0], "after": means[1], "difference": difference}


def ppo_run(folder: Path, *, steps: int = 12, graded: bool = True, stopped: str | None = None) -> Path:
    folder.mkdir(parents=True)
    rest = dict.fromkeys((field.name for field in fields(CurveRow)), 0)
    rows = [
        {**rest, "step": n, "reward": n / 10, "kl": n * 0.3, "length": 20.0 - n % 3, "entropy": 3 - n / 50}
        for n in range(1, steps + 1)
    ]
    write_curves(folder / "curves.csv", [CurveRow(**row) for row in rows])
    write_json(folder / "config.json", {"ppo": {}})
    train = {"prompts": 32, "steps": steps, "stopped": stopped, "samples": 32 * steps, "failed": 1, "truncated": 5}
    held = {"prompts": 12, "reward": ends(0.1, 0.9), **({"grade": ends(0.4, 0.55)} if graded else {})}
    summary = {
        "dataset": {"name": "people.jsonl", "split": None},
        "condition": "profile",
        "policy": {"spec": "transformers/tiny"},
        "model": {"spec": EVIL},
        "grader": {"spec": "marks", "validity": "Right on 3 of 4 known pairs."} if graded else None,
        "train": {**train, "cut": 0, "first": rows[0], "last": rows[-1]},
        "held_out": held,
    }
    write_json(folder / "summary.json", summary)
    return folder


def correlation(folder: Path, models: int = 6) -> Path:
    folder.mkdir(parents=True)
    table = [
        f"{EVIL if n == 0 else f'model-{n}'},{cluster},{0.5 + n / 50 + off},{0.4 + ((n * 2) % models) / 60 + off}"
        for n in range(models)
        for cluster, off in (("u", 0.02), ("v", -0.02))
    ]
    (folder / "scores.csv").write_text("\n".join(["model,cluster,mirror,bon", *table]), "utf-8")
    config = CorrelateConfig(
        table=folder / "scores.csv", downstream=("bon",), measure=("spearman", "ndcg"), constructed=("model-1",)
    )
    write_json(folder / "correlation.json", msgspec.to_builtins(correlate(config)))
    return folder


def judgments() -> list[dict[str, Any]]:
    """Three annotators on eight items and a careless fourth; of the first item they prefer the other answer."""
    rows = [row(item, who, ratings=rated(4 + (item + who) % 2, 4)) for item in range(8) for who in range(3)]
    rows = [{**r, "after": "rejected", "difference": "quality"} if r["item"] == "i0" else r for r in rows]
    careless = [row(1, 9), *(row(100 + n, 9, check=True, before="rejected") for n in range(2))]
    rows += [{**r, "annotator": EVIL} for r in careless]
    return [*rows, row(7, 2, skipped="unsure", before=None, after=None)]


def agreement(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, msgspec.to_builtins(summarize(judged(judgments()), draws=50)))
    return path


def share(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 40, "failed": 0, "ties": 0}


def audit(folder: Path) -> Path:
    folder.mkdir(parents=True)
    counts = {"rows": 40, "users": 40, "clusters": 20, "mirror_rows": 0, "restraint_rows": 0, "left_out": 0}
    names = {"name": f"{EVIL}.jsonl", "split": "test", "clustered_by": "users", "fingerprint": "f"}
    learner = {"features": "static vectors", "groups": 20, "grouped_by": "cluster"}
    word = {"word": EVIL, "chosen": 9, "rejected": 1, "p": 0.01}
    result = {
        "prb": "0",
        "dataset": {**names, **counts},
        "floors": [{"model": "length", "accuracy": share(0.5)}, {"model": "lexical", "accuracy": share(0.61)}],
        "blind": {"answer": share(0.55), "question_and_answer": share(0.57), **learner},
        "ceiling": {"model": "aspect-match", "accuracy": share(0.8)},
        "headroom": None,
        "length": {"chosen_longer": share(0.5), "median_ratio": 1.0, "within_a_tenth": 0.9},
        "giveaways": {"words": [word], "more_than_chance": 1, "looked_at": 30},
        "verdict": "set: a user-blind learner reaches 57.0 %.",
    }
    write_json(folder / "audit.json", result)
    return folder


def svg_texts(path: Path) -> list[str]:
    return [node.text or "" for node in Xml.parse(path).iter() if node.tag.rpartition("}")[2] in ("text", "tspan")]
