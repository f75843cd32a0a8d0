"""A run as one page that opens from disk: no server, no network, nothing to install."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prb.errors import BadInput
from prb.report.table import as_csv, interval, leaderboard, markdown, p_value, percent, signed, stars
from prb.store import CONFIG, SUMMARY, read_json

BLIND = 0.5


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """`index.html`, `table.md` and `table.csv` of finished runs; the path of the page."""
    if not runs:
        raise BadInput("name at least one run folder")
    summaries = [finished(run) for run in runs]
    out.mkdir(parents=True, exist_ok=True)
    tables = [leaderboard(summary) for summary in summaries]
    (out / "table.md").write_text("\n".join(markdown(table) for table in tables), "utf-8")
    (out / "table.csv").write_text("\n".join(as_csv(table) for table in tables), "utf-8")
    page = out / "index.html"
    page.write_text(render([_section(run, s) for run, s in zip(runs, summaries, strict=True)]), "utf-8")
    return page


def finished(run: Path) -> dict[str, Any]:
    if not (run / SUMMARY).exists():
        state = "is not finished; run the same `prb evaluate` again" if (run / CONFIG).exists() else "is not a run"
        raise BadInput(f"{run} {state}")
    summary: dict[str, Any] = read_json(run / SUMMARY)
    return summary


def render(sections: Sequence[Mapping[str, Any]]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("prb.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(sections=sections)


def _section(run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    table = leaderboard(summary)
    pairs = summary["task"] == "pairs"
    return {
        "run": run.name,
        "title": table.title,
        "notes": table.notes,
        "table": table,
        "bars": [_bars(model, summary) for model in _models(summary)] if pairs else [],
        "conditions": list(dict.fromkeys(row["condition"] for row in summary["results"])),
        "contrasts": [_contrast(row) for row in summary["contrasts"]],
        "breakdowns": [b for b in (_breakdown(summary, "by_category"), _breakdown(summary, "by_tier")) if b]
        if pairs
        else [],
    }


def _models(summary: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in summary["results"]))


def _bars(model: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    rows = [row for row in summary["results"] if row["model"] == model]
    return {"model": model, "rows": [_bar(row["condition"], row["accuracy"]) for row in rows]}


def _bar(condition: str, accuracy: Mapping[str, Any]) -> dict[str, Any]:
    known = accuracy["value"] is not None
    return {
        "condition": condition,
        "text": interval(accuracy),
        "failed": accuracy["failed"],
        "low": 100 * accuracy["low"] if known else None,
        "width": max(0.4, 100 * (accuracy["high"] - accuracy["low"])) if known else None,
        "at": 100 * accuracy["value"] if known else None,
    }


def _contrast(row: Mapping[str, Any]) -> dict[str, str]:
    bounds = "–" if row["low"] is None else f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
    smallest = row["smallest_detectable"]
    return {
        "model": row["model"],
        "kind": row["kind"],
        "value": signed(row),
        "bounds": bounds,
        "p": p_value(row["p"]),
        "p_holm": p_value(row["p_holm"]) + stars(row["p_holm"]),
        "flips": percent(row["flip_rate"]),
        "smallest": "–" if smallest is None else f"{100 * smallest:.1f}",
        "n": str(row["n"]),
        "dropped": str(row["dropped"]),
    }


def _breakdown(summary: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """Accuracy under the condition people would use, split by category or tier."""
    conditions = [row["condition"] for row in summary["results"]]
    shown = "profile" if "profile" in conditions else conditions[0]
    rows = [row for row in summary["results"] if row["condition"] == shown]
    labels = sorted({label for row in rows for label in row[field]})
    if not labels:
        return None
    cells = [(row["model"], [interval(row[field].get(label)) for label in labels]) for row in rows]
    name = {"by_category": "category", "by_tier": "tier"}[field]
    return {
        "title": f"Accuracy by {name}, condition {shown}",
        "labels": [x.replace("_", " ") for x in labels],
        "rows": cells,
    }
