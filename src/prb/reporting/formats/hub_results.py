"""Hugging Face: `.eval_results/*.yaml` for the repository of each model, one entry per metric and condition, in %.

The `eval.yaml` that makes a dataset a benchmark on the hub must name a framework of the hub's own list, and what to run
in it. Ours is not on that list, so none is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prb import __version__
from prb.errors import BadInput
from prb.reporting.formats import BENCHMARK, HUB_ID, Estimated, ExportedRun, file_names, write_file


def write(run: ExportedRun, out: Path) -> list[Path]:
    if run.hub is None:
        raise BadInput(f"{run.about.name!r} is not on the hub; name the benchmark there: --to 'hf?dataset=owner/name'")
    dataset, options = run.hub
    if not HUB_ID.fullmatch(dataset):
        raise BadInput(f"dataset={dataset!r} is not owner/name")
    files = []
    for model, name in file_names(list(run.models)).items():
        entries = [_entry(run, dataset, options.get("revision"), estimate) for estimate in run.estimates(model)]
        path = out / "models" / name / ".eval_results" / f"{BENCHMARK}.yaml"
        files.append(write_file(path, _yaml(entries)))
    return files


def _yaml(content: Any) -> bytes:
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1_000)
    return text.encode()


def _entry(run: ExportedRun, dataset: str, revision: str | None, estimate: Estimated) -> dict[str, Any]:
    value, url = estimate.value, run.settings.options.url
    assert value.value is not None
    interval = ""
    if value.low is not None and value.high is not None:
        interval = f"95 % interval {100 * value.low:.2f} to {100 * value.high:.2f}, "
    failed = f", {count} failed" if (count := getattr(value, "failed", 0)) else ""
    about = f"{run.about.rows} rows" + (f" of split {run.about.split}" if run.about.split else "")
    return {
        "dataset": {"id": dataset, "task_id": task_id(estimate), **({"revision": revision} if revision else {})},
        "value": round(100 * value.value, 4),
        **({"date": f"{run.settings.options.date}"} if run.settings.options.date else {}),
        **({"source": {"url": url, "name": "prb report"}} if url else {}),
        "notes": f"{interval}n = {value.n}{failed}; {about}; {run.models[estimate.model]}; prb {__version__}",
    }


def task_id(estimate: Estimated) -> str:
    return estimate.metric.key if estimate.metric.needs else f"{estimate.metric.key}_{estimate.condition}"
