"""Inspect logs (`.eval`), written by inspect_ai itself: one per model and condition, a pair is a sample, credit its
score. A failure is an unscored sample with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from prb import __version__
from prb.errors import BadInput, explain_import
from prb.hashing import digest
from prb.reporting.formats import BENCHMARK, ExportedRun, file_names, write_file
from prb.summary import PairResult
from prb.types import Pair

SCORER = "preference"
Lines = list[dict[str, Any]]


def write(run: ExportedRun, out: Path) -> list[Path]:
    if run.summary.task != "pairs":
        raise BadInput(f"{run.evaluation.folder} has no pairs; inspect logs hold pairs as samples")
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise explain_import("prb export --to inspect", error) from None
    lines: dict[tuple[str, str], Lines] = {}
    for line in run.lines():
        lines.setdefault((line["model"], line["condition"]), []).append(line)
    names = file_names(list(run.models))
    files = []
    for result in run.summary.pairs:
        cell = result.model, result.condition
        path = write_file(out / f"{names[cell[0]]}_{cell[1]}.eval", b"")  # a folder that cannot be written is one line
        write_eval_log(_log(run, result, lines[cell]), str(path))
        files.append(path)
    return files


def _log(run: ExportedRun, result: PairResult, lines: Lines) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalMetric, EvalResults, EvalScore, EvalSpec, EvalStats

    about, time = run.about, run.day.isoformat()
    identity = digest(result.model, result.condition, to_builtins(about), run.evaluation.settings.saved()).hex()
    estimate = result.accuracy
    values = {"accuracy": estimate.value, "low": estimate.low, "high": estimate.high}
    score = EvalScore(
        name=SCORER,
        scorer=SCORER,
        scored_samples=estimate.n,
        unscored_samples=len(lines) - estimate.n,
        metrics={name: EvalMetric(name=name, value=value) for name, value in values.items() if value is not None},
    )
    return EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=identity[:22],
            run_id=identity[:22],
            task_id=identity[:22],
            created=time,
            task=f"{BENCHMARK}/{result.condition}",
            dataset=EvalDataset(name=about.name, samples=about.rows),
            model=result.model,
            config=EvalConfig(),
            packages={BENCHMARK: __version__},
            metadata={
                "condition": result.condition,
                "spec": run.models[result.model],
                "dataset": to_builtins(about),
                "settings": run.evaluation.settings.saved(),
            },
        ),
        results=EvalResults(total_samples=len(lines), completed_samples=len(lines), scores=[score]),
        stats=EvalStats(started_at=time, completed_at=time),
        samples=[_sample(run, line) for line in lines],
    )


def _sample(run: ExportedRun, line: Mapping[str, Any]) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
    from inspect_ai.scorer import Score

    item = run.items.get(line["pair"])
    roles = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    asked: Any = line["pair"]
    texts: dict[str, Any] = {}
    right = 1
    if isinstance(item, Pair):
        turns = [roles[turn.role](content=turn.text) for turn in item.context]
        asked = [*turns, ChatMessageUser(content=item.question)] if turns else item.question
        texts, right = {"choices": list(item.answers)}, item.n_best
    names = ("user", "cluster", "margin", "scores", "verdicts", "post_ids", "cut", "tokens", "seconds", "cost")
    about = {name: line[name] for name in names}
    explanation = "\n\n".join(line["text"]) if run.items and line["text"] else None
    if line["credit"] is None:
        reason = line["failure"] or "no answer is right"
        score = Score.unscored(explanation=explanation or reason, metadata={**about, "failure": line["failure"]})
    else:
        answer = "A" if line["credit"] else "B"  # of duels only the winner of two is known
        if 0 < line["credit"] < 1:
            answer = "tie"
        elif scores := line["scores"]:
            answer = chr(ord("A") + scores.index(max(scores)))
        score = Score(value=line["credit"], answer=answer, explanation=explanation, metadata=about)
    return EvalSample(
        id=line["pair"],
        epoch=1,
        input=asked,
        target=[chr(ord("A") + n) for n in range(right)],
        scores={SCORER: score},
        metadata={"user": line["user"], "condition": line["condition"]},
        **texts,
    )
