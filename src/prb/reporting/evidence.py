"""What a site shows beside evaluations: best-of-N and PPO runs, correlations, audits, studies.

Each page's function turns what was given into the page's data file, or into nothing if there is nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prb.downstream.curves import trust
from prb.errors import BadInput
from prb.reporting.downstream_tables import PPO_PANELS, correlation_tables, set_sentences
from prb.reporting.gather import Given, called, result_of
from prb.reporting.tables import audit_estimates, audit_tables

Data = dict[str, Any]
Pages = Iterable[tuple[str, Any]] | None
MOST_STEPS = 200
"""A longer curve is drawn as the means of stretches of steps."""


def downstream_page(given: Given) -> Pages:
    made = {"bon": _each(given, "bon", bon), "ppo": _each(given, "ppo", ppo)}
    made["correlation"] = _each(given, "correlation", correlated)
    return [("downstream", made)] if any(made.values()) else None


def study_page(given: Given) -> Pages:
    made = _each(given, "agreement", study)
    return [("study", made)] if made else None


def audit_page(given: Given) -> Pages:
    made = _each(given, "audit", audited)
    return [("audit", made)] if made else None


def _each(given: Given, kind: str, tell: Callable[[Data], Data]) -> list[Data]:
    return [{"name": called(place), **_sound(place, tell)} for place in given.others.get(kind, ())]


def _sound(place: Path, tell: Callable[[Data], Data]) -> Data:
    try:
        return tell(result_of(place))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadInput(f"{place} is damaged or of another version of prb: {error!r}") from None


def bon(summary: Data) -> Data:
    kept = ("ks", "kl_bound", "random", "oracle", "results", "contrasts", "queries", "samples", "condition", "n")
    about = {"policy": summary["policy"]["spec"], "dataset": _dataset(summary), "trust": trust(summary)}
    return {**about, **{key: summary[key] for key in kept}}


def ppo(summary: Data) -> Data:
    train, rows = summary["train"], thinned(summary["curves"])
    return {
        "policy": summary["policy"]["spec"],
        "model": summary["model"]["spec"],
        "dataset": _dataset(summary),
        "condition": summary["condition"],
        "trust": trust(summary) if summary["grader"] else None,
        "train": {key: train[key] for key in ("prompts", "steps", "stopped", "samples", "failed", "truncated")},
        "held_out": summary["held_out"],
        "panels": list(PPO_PANELS.items()),
        "curves": {name: [row[name] for row in rows] for name in ("step", *PPO_PANELS)},
        "thinned": len(summary["curves"]) > len(rows),
    }


def thinned(rows: Sequence[Mapping[str, float]], most: int = MOST_STEPS) -> list[dict[str, float]]:
    """At most so many rows, each the mean of as many neighbours."""
    size = max(1, -(-len(rows) // most))
    stretches = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [{key: sum(row[key] for row in some) / len(some) for key in some[0]} for some in stretches]


def correlated(result: Data) -> Data:
    kept = ("models", "constructed", "left_out", "bench", "downstream", "sets")
    tables = [table._asdict() for table in correlation_tables(result)]
    said = [{"set": s["set"], "n": s["n"], "sentences": list(set_sentences(s))} for s in result["sets"]]
    return {**{key: result[key] for key in kept}, "said": said, "tables": tables}


def study(result: Data) -> Data:
    """All of it, with the verdicts in words."""
    from prb.study.verdict import SENTENCES, verdict

    said = verdict(result)
    gates = [{"name": name, "holds": result["verdicts"][name], "says": say(result)} for name, say in SENTENCES.items()]
    return {**result, "gates": gates, "basis": said[0], "next": said[-1]}


def audited(result: Data) -> Data:
    rows = [{"name": name, **estimate} for name, estimate in audit_estimates(result)]
    tables = [table._asdict() for table in audit_tables(result)]
    return {"verdict": result["verdict"], "dataset": _dataset(result), "rows": rows, "tables": tables}


def _dataset(result: Data) -> str:
    data = result["dataset"]
    return Path(data["name"]).name + (f", split {data['split']}" if data["split"] else "")
