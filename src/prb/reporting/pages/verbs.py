"""Pages of other verbs: downstream (bon, ppo, correlate), study, audit, and all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import convert

from prb.downstream.bon import BonSummary
from prb.downstream.correlate import CorrelationSummary
from prb.downstream.ppo import PpoSummary
from prb.evaluation.audit import AuditSummary
from prb.reporting.audit_results import audit_tables
from prb.reporting.downstream import PPO_PANELS, correlation_tables, families, set_sentences
from prb.reporting.gather import DataFile, Inputs, prepared, tables_of
from prb.reporting.results import dataset_label
from prb.work import chunks

Result = dict[str, Any]
MAX_STEPS = 200
"""Longer curves are drawn as means of neighboring steps."""


# --- downstream ---
def downstream_data(inputs: Inputs) -> list[DataFile] | None:
    data = {
        "bon": prepared(inputs, "bon", _bon),
        "ppo": prepared(inputs, "ppo", _ppo),
        "correlation": prepared(inputs, "correlation", _correlation),
    }
    return [("downstream", data)] if any(data.values()) else None


def _bon(summary: Result) -> Result:
    bon = convert(summary, BonSummary)
    keys = ("ks", "kl_bound", "random", "oracle", "results", "contrasts", "queries", "samples", "condition", "n")
    about = {"policy": bon.policy.spec, "dataset": bon.dataset.label, "trust": bon.grader.trust}
    return {**about, **{key: summary[key] for key in keys}}


def _ppo(summary: Result) -> Result:
    ppo, rows = convert(summary, PpoSummary), thinned(summary["curves"])
    return {
        "policy": ppo.policy.spec,
        "model": ppo.model.spec,
        "dataset": ppo.dataset.label,
        "condition": ppo.condition,
        "trust": ppo.grader.trust if ppo.grader else None,
        "train": summary["train"],
        "held_out": summary["held_out"],
        "panels": list(PPO_PANELS.items()),
        "curves": {name: [row[name] for row in rows] for name in ("step", *PPO_PANELS)},
        "thinned": len(summary["curves"]) > len(rows),
    }


def thinned(rows: Sequence[Mapping[str, float]], most: int = MAX_STEPS) -> list[dict[str, float]]:
    """At most `most` rows, each the mean of equally many neighbors."""
    size = max(1, -(-len(rows) // most))
    return [{key: sum(row[key] for row in some) / len(some) for key in some[0]} for some in chunks(rows, size)]


def _correlation(summary: Result) -> Result:
    result = convert(summary, CorrelationSummary)
    sentences = [{"set": s.set, "n": s.n, "sentences": list(set_sentences(s))} for s in result.sets]
    tables = [table._asdict() for table in correlation_tables(summary)]
    keys = ("models", "constructed", "left_out", "bench", "downstream", "sets")
    return {**{key: summary[key] for key in keys}, "families": families(result), "said": sentences, "tables": tables}


# --- study, audit ---
def study_data(inputs: Inputs) -> list[DataFile] | None:
    studies = prepared(inputs, "agreement", _study)
    return [("study", studies)] if studies else None


def _study(result: Result) -> Result:
    """The whole result, with its verdicts in words."""
    from prb.study.agreement import claims, verdict

    lines = verdict(result)
    gates = [{"name": n, "holds": result["verdicts"][n], "says": says} for n, says in claims(result).items()]
    return {**result, "gates": gates, "basis": lines[0], "next": lines[-1]}


def audit_data(inputs: Inputs) -> list[DataFile] | None:
    audits = prepared(inputs, "audit", _audit)
    return [("audit", audits)] if audits else None


def _audit(result: Result) -> Result:
    rows = [{"name": name, **e.as_dict()} for name, e in convert(result, AuditSummary).estimates.items()]
    tables = [table._asdict() for table in audit_tables(result)]
    return {"verdict": result["verdict"], "dataset": dataset_label(result), "rows": rows, "tables": tables}


# --- grade, license, train, build: the tables and lines that their commands print ---
def other_data(inputs: Inputs) -> list[DataFile] | None:
    results: list[Result] = []
    for kind in ("grade", "license", "train", "build"):
        results += [{"kind": kind, **run} for run in prepared(inputs, kind, partial(_other, kind))]
    return [("other", results)] if results else None


def _other(kind: str, content: Result) -> Result:
    return {"tables": [table._asdict() for table in tables_of(kind, content)]}
