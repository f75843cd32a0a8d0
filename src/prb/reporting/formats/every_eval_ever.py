"""every_eval_ever, schema 0.3.0: one record per model. A failure is not a score: it is counted beside the estimate."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from msgspec import to_builtins

from prb import __version__
from prb.hashing import digest
from prb.reporting.formats import BENCHMARK, ExportedRun, model_id, write_file
from prb.summary import Contrast, Metric, short_name
from prb.types import Estimate

SCHEMA = "0.3.0"


def write(run: ExportedRun, out: Path) -> list[Path]:
    files = []
    for name, spec in run.models.items():
        model = model_id(name, spec)
        evaluation = f"{BENCHMARK}/{model}/{int(run.day.timestamp())}"
        identity = digest(evaluation, name, to_builtins(run.about), run.evaluation.settings.saved())
        record = _record(run, name, model, evaluation)
        content = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        place = out / Path("data", BENCHMARK, *model.split("/", 1), f"{UUID(bytes=identity[:16], version=4)}.json")
        files.append(write_file(place, content))
    return files


def _record(run: ExportedRun, name: str, model: str, evaluation: str) -> dict[str, Any]:
    time, settings = str(int(run.day.timestamp())), run.evaluation.settings.saved()
    return {
        "schema_version": SCHEMA,
        "evaluation_id": evaluation,
        **({"evaluation_timestamp": time} if run.settings.options.date else {}),
        "retrieved_timestamp": time,
        "source_metadata": {
            "source_name": "Personalized RewardBench",
            "source_type": "evaluation_run",
            "source_organization_name": run.settings.options.organization,
            "evaluator_relationship": run.settings.options.relationship,
        },
        "eval_library": {
            "name": "prb",
            "version": __version__,
            "additional_details": {
                key: short_name(str(value)) if key == "dataset" else str(value)
                for key, value in settings.items()
                if key != "model"
            },
        },
        "model_info": {
            "name": name,
            "id": model,
            "additional_details": {
                "deployment_type": "unknown",
                "model_availability": "unknown",
                "spec": run.models[name],
                "fingerprint": run.evaluation.fingerprints.get(name, ""),
            },
        },
        "evaluation_results": [_result(run, *estimate) for estimate in run.estimates(name)],
    }


def _result(run: ExportedRun, condition: str, metric: Metric, value: Estimate | Contrast) -> dict[str, Any]:
    interval = {}
    if value.low is not None:
        method = "inverted sign-flip test" if metric.needs else "clustered by user"
        bounds = {"lower": value.low, "upper": value.high, "confidence_level": 0.95, "method": method}
        interval = {"confidence_interval": bounds}
    parts = {part: getattr(value, part, None) for part in ("failed", "ties", "p", "p_holm")}
    return {
        "evaluation_result_id": f"{metric.key}/{condition}",
        "evaluation_name": f"{metric.key} ({condition})",
        "source_data": _source(run),
        "metric_config": {
            "metric_id": metric.key if metric.key == "accuracy" else f"prb.{metric.key}",
            "metric_name": metric.key,
            "metric_unit": "proportion",
            "metric_parameters": {"condition": condition},
            "lower_is_better": metric.better == "lower",
            "score_type": "continuous",
            "min_score": metric.limits[0] if isfinite(metric.limits[0]) else "-Infinity",
            "max_score": metric.limits[1],
        },
        "score_details": {
            "score": value.value,
            "details": {part: str(number) for part, number in parts.items() if number is not None},
            "uncertainty": {**interval, "num_samples": value.n},
        },
    }


def _source(run: ExportedRun) -> dict[str, Any]:
    about = run.about
    details = {"fingerprint": about.fingerprint, "users": str(about.users), "clusters": str(about.clusters)}
    if run.hub is None:
        rows = {"split": about.split or "all", "rows": str(about.rows)}
        return {
            "dataset_name": short_name(about.name),
            "source_type": "other",
            "additional_details": {**details, **rows},
        }
    split = {"hf_split": about.split} if about.split else {}
    return {
        "dataset_name": run.hub[0].partition("/")[2],
        "source_type": "hf_dataset",
        "hf_repo": run.hub[0],
        **split,
        "samples_number": about.rows,
        "additional_details": details,
    }
