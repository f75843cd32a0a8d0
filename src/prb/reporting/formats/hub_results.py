"""Hugging Face: `.eval_results/*.yaml` for the repository of each model, `eval.yaml` for that of the benchmark.

One task per metric and condition, values in percent. The hub shows results on the page of the model and on that of the
benchmark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prb import __version__
from prb.errors import BadInput
from prb.reporting.formats import BENCHMARK, HUB_ID, Estimated, ExportedRun, file_names, write_file

FRAMEWORK = "inspect-ai"
"""The hub takes names from its own list only, and ours is not on it. Inspect reads what `--to inspect` writes."""
DESCRIPTION = """\
Does a reward model know whose preference it judges? Accuracy counts as personalization only to the extent that the \
right user's history (profile) beats no history (gain) and beats another user's history (control)."""


def write(run: ExportedRun, out: Path) -> list[Path]:
    if run.hub is None:
        raise BadInput(f"{run.about['name']!r} is not on the hub; give the benchmark's --dataset-id owner/name")
    dataset, options = run.hub
    if not HUB_ID.fullmatch(dataset):
        raise BadInput(f"--dataset-id {dataset!r} is not owner/name")
    files, tasks = [], dict[str, None]()
    for model, name in file_names(list(run.models)).items():
        entries = [_entry(run, dataset, options.get("revision"), estimate) for estimate in run.estimates(model)]
        tasks |= dict.fromkeys(entry["dataset"]["task_id"] for entry in entries)
        path = out / "models" / name / ".eval_results" / f"{BENCHMARK}.yaml"
        files.append(write_file(path, _yaml(entries)))
    about = {"config": options.get("subset"), "split": run.about["split"]}
    about = {name: value for name, value in about.items() if value}
    benchmark = {
        "name": "Personalized RewardBench",
        "description": DESCRIPTION,
        "evaluation_framework": FRAMEWORK,
        "tasks": [{"id": task, **about} for task in tasks],
    }
    return [*files, write_file(out / "benchmark" / "eval.yaml", _yaml(benchmark))]


def _yaml(content: Any) -> bytes:
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1_000)
    return text.encode()


def _entry(run: ExportedRun, dataset: str, revision: str | None, estimate: Estimated) -> dict[str, Any]:
    entry, url = estimate.entry, run.settings.source_url
    interval = (
        f"95 % interval {100 * entry['low']:.2f} to {100 * entry['high']:.2f}, " if entry["low"] is not None else ""
    )
    failed = f", {entry['failed']} failed" if entry.get("failed") else ""
    about = f"{run.about['rows']} rows" + (f" of split {run.about['split']}" if run.about["split"] else "")
    return {
        "dataset": {"id": dataset, "task_id": task_id(estimate), **({"revision": revision} if revision else {})},
        "value": round(100 * entry["value"], 4),
        "date": f"{run.finished:%Y-%m-%d}",
        **({"source": {"url": url, "name": "prb report"}} if url else {}),
        "notes": f"{interval}n = {entry['n']}{failed}; {about}; {run.models[estimate.model]}; prb {__version__}",
    }


def task_id(estimate: Estimated) -> str:
    return estimate.metric if estimate.is_difference else f"{estimate.metric}_{estimate.condition}"
