"""Downstream page: best-of-N and PPO runs, and correlations of benchmarks with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prb.downstream.bon import trust
from prb.reporting.downstream_tables import PPO_PANELS, correlation_tables, set_sentences
from prb.reporting.gather import Inputs, dataset_label, prepared

Data = dict[str, Any]
MAX_STEPS = 200
"""Longer curves are drawn as means of neighboring steps."""


def build(inputs: Inputs) -> list[tuple[str, Any]] | None:
    data = {
        "bon": prepared(inputs, "bon", bon),
        "ppo": prepared(inputs, "ppo", ppo),
        "correlation": prepared(inputs, "correlation", correlation),
    }
    return [("downstream", data)] if any(data.values()) else None


def bon(summary: Data) -> Data:
    keys = ("ks", "kl_bound", "random", "oracle", "results", "contrasts", "queries", "samples", "condition", "n")
    about = {"policy": summary["policy"]["spec"], "dataset": dataset_label(summary), "trust": trust(summary)}
    return {**about, **{key: summary[key] for key in keys}}


def ppo(summary: Data) -> Data:
    train, rows = summary["train"], thinned(summary["curves"])
    return {
        "policy": summary["policy"]["spec"],
        "model": summary["model"]["spec"],
        "dataset": dataset_label(summary),
        "condition": summary["condition"],
        "trust": trust(summary) if summary["grader"] else None,
        "train": {key: train[key] for key in ("prompts", "steps", "stopped", "samples", "failed", "truncated")},
        "held_out": summary["held_out"],
        "panels": list(PPO_PANELS.items()),
        "curves": {name: [row[name] for row in rows] for name in ("step", *PPO_PANELS)},
        "thinned": len(summary["curves"]) > len(rows),
    }


def thinned(rows: Sequence[Mapping[str, float]], most: int = MAX_STEPS) -> list[dict[str, float]]:
    """At most `most` rows, each the mean of equally many neighbors."""
    size = max(1, -(-len(rows) // most))
    stretches = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [{key: sum(row[key] for row in some) / len(some) for key in some[0]} for some in stretches]


def correlation(result: Data) -> Data:
    keys = ("models", "constructed", "left_out", "bench", "downstream", "sets")
    sentences = [{"set": s["set"], "n": s["n"], "sentences": list(set_sentences(s))} for s in result["sets"]]
    tables = [table._asdict() for table in correlation_tables(result)]
    return {**{key: result[key] for key in keys}, "said": sentences, "tables": tables}
