"""What a build writes: rows in the public schema, rejects with reasons, all checks, a card, a folder for the hub."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from typing import Any

from prb import __version__
from prb.building.config import GATES, PROMPTS, STAGES, Stage
from prb.building.gates import BlindResult, BuildContext, Check
from prb.building.records import Record, Reject
from prb.building.stages import SIDES, Rubric, VerifiedPair
from prb.data.convert import convert
from prb.data.publish import HUB, CardText, write_folder
from prb.data.source import MemorySource
from prb.prompts import load
from prb.runs import write_lines, write_sealed

PAIRS, REJECTS, CHECKS, CARD = "pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json"


def write_output(
    context: BuildContext,
    pairs: Sequence[VerifiedPair],
    rejects: Sequence[Reject],
    blind: Sequence[BlindResult],
    *,
    records: int,
    posts_left_out: int,
    stopped_after: Stage | None,
) -> dict[str, Any]:
    """The card, after writing everything; if the build stopped early, only the checks are written."""
    config, usage = context.config, context.ledger.usage
    rows = [row for pair in pairs for row in pair_rows(pair)]
    prompts = sorted({"material", "build_avoid", *PROMPTS.values()})
    blind_gates = [gate for gate in ("blind-judge", "blind-learner") if gate not in config.skip_gate]
    card = {
        "prb": __version__,
        "settings": config.saved(),
        "llms": {role: llm.fingerprint for role, llm in context.llms.items()},
        "prompts": {name: hashlib.sha256(load(name).encode()).hexdigest()[:16] for name in prompts},
        "counts": {
            "records": records,
            "rows": len(rows),
            "people": len({row["user"] for row in rows}),
            "mirror_rows": sum("mirror" in row for row in rows),
            "rejected": len(rejects),
            "rejected_by_gate": dict(sorted(Counter(reject.gate for reject in rejects).items())),
            "posts_left_out": posts_left_out,
            "requests": context.ledger.asked,
        },
        "failures": dict(sorted(context.ledger.failures.items())),
        "gates": pass_rates(context.checks),
        "user_blind_accuracy": {
            **dict.fromkeys(blind_gates),
            **{result.name: result.accuracy(pairs) for result in blind},
        },
        "cost": {stage: asdict(usage[stage]) for stage in STAGES if stage in usage},
        "usd": context.ledger.usd,
        "stopped_after": stopped_after,
    }
    out = config.out
    write_lines(out / CHECKS, [check._asdict() for check in context.checks])
    if stopped_after:  # the pairs of an earlier, complete build stay as they are
        return card
    convert(MemorySource(PAIRS, rows), out / PAIRS)
    write_lines(out / REJECTS, [reject._asdict() for reject in rejects])
    write_sealed(out / CARD, card)
    if rows:
        _write_hub(out / HUB, rows, card)
    else:
        rmtree(out / HUB, ignore_errors=True)
    return card


def pair_rows(pair: VerifiedPair) -> Iterator[dict[str, Any]]:
    """One row, or the mirror rows of a couple: the same question and answers with swapped labels."""
    task, partner = pair.task, pair.task.partner
    row = _row(task.record, task.rubric, task.record.question, pair.chosen, pair.rejected)
    about: dict[str, Any] = {"round": pair.round}
    swapped = dict(about)
    if pair.quality:
        about["quality"] = dict(zip(SIDES, pair.quality, strict=True))
        swapped["quality"] = dict(zip(SIDES, reversed(pair.quality), strict=True))
    if pair.grades:
        about["grades"] = dict(zip(SIDES, (grades.aspects for grades in pair.grades), strict=True))
    if partner is None:
        yield row | {"negative_rubric": list(task.against), "build": about}
        return
    yield row | {"mirror": partner.record.id, "build": about}
    twin = _row(partner.record, partner.rubric, task.record.question, pair.rejected, pair.chosen)
    yield twin | {"mirror": task.record.id, "own_question": partner.record.question, "build": swapped}


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


def pass_rates(checks: Sequence[Check]) -> dict[str, dict[str, int]]:
    """How often each gate was applied and passed, over all rounds."""
    applied = Counter(check.gate for check in checks)
    passed = Counter(check.gate for check in checks if check.reason is None)
    return {gate: {"applied": applied[gate], "passed": passed[gate]} for gate in GATES if applied[gate]}


def _write_hub(folder: Path, rows: Sequence[dict[str, Any]], card: Mapping[str, Any]) -> None:
    """A folder that `prb data push` publishes and `datasets.load_dataset` reads, with the card as its README."""
    from jinja2 import Environment, StrictUndefined

    template = (files("prb.building") / "card.md.jinja").read_text("utf-8")
    # Markdown, not HTML: names of models and gates are ours
    environment = Environment(undefined=StrictUndefined, trim_blocks=False, autoescape=False)  # noqa: S701
    text = environment.from_string(template).render(**card, meanings=GATES)
    write_folder(MemorySource(PAIRS, rows), folder, CardText(text))
