"""every_eval_ever, schema 0.3.0: per model one record of its results and one file of its samples.

A failure is not a score: such rows are left out of the samples and counted beside the estimate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import groupby
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
from prb.types import Estimate, Pair

SCHEMA = "0.3.0"


def write(run: ExportedRun, out: Path) -> list[Path]:
    files = []
    for name, lines in groupby(run.lines(), key=lambda line: line["model"]):
        model = model_id(name, run.models[name])
        evaluation = f"{BENCHMARK}/{model}/{int(run.day.timestamp())}"
        uuid = UUID(
            bytes=digest(evaluation, name, to_builtins(run.about), run.evaluation.settings.saved())[:16], version=4
        )
        samples = b"".join(
            orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in _samples(run, evaluation, model, lines)
        )
        place = Path("data", BENCHMARK, *model.split("/", 1))
        record = _record(run, name, model, evaluation)
        if samples:
            record["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": (place / f"{uuid}_samples.jsonl").as_posix(),
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(samples).hexdigest(),
                "total_rows": samples.count(b"\n"),
            }
            files.append(write_file(out / place / f"{uuid}_samples.jsonl", samples))
        content = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        files.append(write_file(out / place / f"{uuid}.json", content))
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


def _samples(
    run: ExportedRun, evaluation: str, model: str, lines: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for line in lines:
        credit = line["credit"]
        if credit is None:
            continue
        item = run.items.get(line["pair"])
        asked: dict[str, Any] = {"raw": line["pair"], "reference": ["chosen"]}  # where texts are not exported
        if isinstance(item, Pair):
            turns = [f"{turn.role}: {turn.text}" for turn in item.context]
            asked = {
                "raw": "\n\n".join([*turns, item.question]),
                "reference": list(item.answers[: item.n_best]),
                "choices": list(item.answers),
            }
        replies = line["text"] if line["text"] and item else [str(v) for v in line["scores"] or line["verdicts"]]
        metadata = {name: str(line[name]) for name in ("user", "cluster", "condition", "margin", "tokens", "cost")}
        yield {
            "schema_version": SCHEMA,
            "evaluation_id": evaluation,
            "model_id": model,
            "evaluation_name": f"accuracy ({line['condition']})",
            "evaluation_result_id": f"accuracy/{line['condition']}",
            "sample_id": line["pair"],
            "sample_hash": hashlib.sha256((asked["raw"] + "".join(asked["reference"])).encode()).hexdigest(),
            "interaction_type": "single_turn",
            "input": asked,
            "output": {"raw": replies},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": "tie" if 0 < credit < 1 else "chosen" if credit else "rejected",
                    "extraction_method": "highest score" if line["verdicts"] is None else "verdicts in both orders",
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": credit, "is_correct": credit == 1},
            "performance": {"latency_ms": 1000 * line["seconds"]},
            "metadata": {**metadata, "posts_shown": str(len(line["post_ids"]))},
        }
