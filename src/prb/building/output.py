"""What a build leaves: rows in the public schema, rejects with reasons, every check, a card; a folder for the hub."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from typing import Any

import orjson

from prb import __version__
from prb.building.answer import SIDES
from prb.building.blind import Finding
from prb.building.config import BuildConfig, Role, Stage, settings_of
from prb.building.estimate import PROMPTS
from prb.building.gates import GATES
from prb.building.job import Check, Made
from prb.building.ledger import Spent
from prb.building.records import Record, Reject, people_of
from prb.building.rubric import Rubric
from prb.data.convert import convert
from prb.data.source import MemorySource
from prb.prompts import load
from prb.runs import write_json

PAIRS, REJECTS, CHECKS, CARD, HUB = "pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json", "hub"


def write_all(
    config: BuildConfig,
    *,
    made: Sequence[Made],
    rejects: Sequence[Reject],
    checks: Sequence[Check],
    spent: Mapping[Stage, Spent],
    findings: Sequence[Finding],
    records: int,
    dropped_posts: int,
    llms: Mapping[Role, str],
    stopped_after: Stage | None,
) -> dict[str, Any]:
    rows = [row for pair in made for row in pair_rows(pair)]
    out = config.out
    card = {
        "prb": __version__,
        "settings": settings_of(config),
        "llms": dict(llms),
        "prompts": {name: _digest(name) for name in sorted({"material", "build_avoid", *PROMPTS.values()})},
        "counts": {
            "records": records,
            "rows": len(rows),
            "people": people_of([record for pair in made for record in _records(pair)]),
            "mirror_rows": sum("mirror" in row for row in rows),
            "rejected": len(rejects),
            "rejected_by_gate": dict(sorted(Counter(reject.gate for reject in rejects).items())),
            "posts_left_out": dropped_posts,
        },
        "gates": pass_rates(checks),
        "user_blind_accuracy": {
            **{name: None for name in ("blind-judge", "blind-learner") if name not in config.skip_gate},
            **{finding.name: finding.accuracy(made) for finding in findings},
        },
        "cost": {stage: asdict(cost) for stage, cost in spent.items()},
        "usd": sum(cost.usd for cost in spent.values()),
        "stopped_after": stopped_after,
    }
    _write_lines(out / CHECKS, [check._asdict() for check in checks])
    if stopped_after:  # the pairs of an earlier, whole build stay as they are
        return card
    convert(MemorySource(PAIRS, rows), out / PAIRS)
    _write_lines(out / REJECTS, [reject._asdict() for reject in rejects])
    write_json(out / CARD, card)
    rmtree(out / HUB, ignore_errors=True)
    if rows:
        _write_hub(out / HUB, rows, card)
    return card


def pair_rows(pair: Made) -> Iterator[dict[str, Any]]:
    """One row, or the two of a mirror couple: the same question and answers, labels swapped."""
    job, partner = pair.job, pair.job.partner
    question = job.record.question
    own = _row(job.record, job.rubric, question, pair.chosen, pair.rejected)
    about: dict[str, Any] = {"round": pair.round}
    swapped = dict(about)
    if pair.quality:
        about["quality"] = dict(zip(SIDES, pair.quality, strict=True))
        swapped["quality"] = dict(zip(SIDES, reversed(pair.quality), strict=True))
    if pair.grades:
        about["grades"] = dict(zip(SIDES, (grades.aspects for grades in pair.grades), strict=True))
    if partner is None:
        yield own | {"negative_rubric": list(job.against), "build": about}
        return
    yield own | {"mirror": partner.record.id, "build": about}
    twin = _row(partner.record, partner.rubric, question, pair.rejected, pair.chosen)
    yield twin | {"mirror": job.record.id, "own_question": partner.record.question, "build": swapped}


def _row(record: Record, rubric: Rubric, question: str, chosen: str, rejected: str) -> dict[str, Any]:
    return {
        **record.other,
        "id": record.id,
        "user": record.user,
        "question": question,
        "profile": [post._asdict() for post in record.posts],
        "rubric_aspects": [aspect._asdict() for aspect in rubric],
        "narrative": record.narrative,
        "category": record.category,
        "chosen": chosen,
        "rejected": rejected,
    }


def _records(pair: Made) -> list[Record]:
    return [pair.job.record] + ([pair.job.partner.record] if pair.job.partner else [])


def pass_rates(checks: Sequence[Check]) -> dict[str, dict[str, int]]:
    """How often each gate was applied and passed, over all rounds."""
    applied = Counter(check.gate for check in checks)
    passed = Counter(check.gate for check in checks if check.reason is None)
    return {gate: {"applied": applied[gate], "passed": passed[gate]} for gate in GATES if applied[gate]}


def _digest(name: str) -> str:
    return hashlib.sha256(load(name).encode()).hexdigest()[:16]


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    draft.replace(path)


def _write_hub(folder: Path, rows: Sequence[dict[str, Any]], card: Mapping[str, Any]) -> None:
    """What `huggingface_hub.upload_folder` or `datasets.load_dataset` takes as it is."""
    folder.mkdir(exist_ok=True)
    convert(MemorySource(PAIRS, rows), folder / "test.parquet")  # the file name is the split, by the hub's rules
    (folder / "README.md").write_text(_readme(rows, card), "utf-8")


def _readme(rows: Sequence[Mapping[str, Any]], card: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    template = (files("prb.building") / "card.md.jinja").read_text("utf-8")
    splits = ", ".join(sorted({str(row["split"]) for row in rows if "split" in row})) or "none"
    # Markdown, not HTML: names of models and gates are ours
    environment = Environment(undefined=StrictUndefined, trim_blocks=False, autoescape=False)  # noqa: S701
    return environment.from_string(template).render(**card, meanings=GATES, splits=splits)
