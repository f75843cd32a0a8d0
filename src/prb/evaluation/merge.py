"""Shards of a run, made by `prb evaluate --shard i/n`, as the run that one process would have made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import orjson

from prb import __version__
from prb.batches import chunks
from prb.config import OutputConfig, Place, PositionalWords, config
from prb.data.load import Shard
from prb.errors import BadInput, RunConflict, differences
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.run import identity, load_rows, writing_outcomes
from prb.evaluation.summary import summarize
from prb.progress import SILENT, Progress
from prb.runs import (
    OUTCOMES,
    REPLIES,
    SUMMARY,
    USERS,
    Finished,
    RunFolder,
    draft,
    json_line,
    read_identity,
    read_lines,
    read_result,
)


@config
class MergeConfig(OutputConfig):
    """Make one run of all shards that `prb evaluate --shard` made."""

    verb: ClassVar[str] = "merge"
    from_file: ClassVar[bool] = False

    runs: PositionalWords[Place]
    """The run folders of all shards, in any order."""


@dataclass(frozen=True)
class Part:
    """A finished shard."""

    folder: Path
    shard: Shard
    identity: dict[str, Any]
    """Of the folder, without what differs between shards."""
    executions: dict[str, str]
    """How each model was run, which may differ between machines."""


def merge(config: MergeConfig, progress: Progress = SILENT) -> Finished:
    parts = check_parts([read_part(folder) for folder in config.runs])
    stored = parts[0].identity
    settings = EvaluateConfig(**EvaluateConfig.restore(stored))
    progress.begin(f"checking {settings.dataset}")
    dataset = load_rows(settings)
    if dataset.fingerprint != stored["dataset"]["fingerprint"]:
        raise RunConflict(f"{settings.dataset} has changed since {parts[0].folder} was made")
    if stored["prb"] != __version__:
        raise RunConflict(f"{parts[0].folder} was made by prb {stored['prb']}, and this is prb {__version__}")
    about = identity(settings, dataset, stored["planner"])
    folder = config.out or settings.folder(Path(settings.dataset).name, dataset.fingerprint)
    if folder.resolve() in [part.folder.resolve() for part in parts]:
        raise BadInput(f"{folder} is one of the shards; choose another --out")
    with RunFolder(folder, about) as run:
        for name, fingerprint in stored["models"].items():
            run.confirm_model(name, fingerprint, ways(parts, name))
        with draft(folder / REPLIES) as part, part.open("wb") as file:
            for shard in parts:  # whoever extends the run finds all replies
                file.write((shard.folder / REPLIES).read_bytes())
        outcomes = Outcomes(dataset.index.ids, [(m, c) for m in settings.names for c in settings.condition])
        progress.begin("merging", total=len(dataset) * len(settings.model))
        lines = read_outcome_lines(parts)
        with writing_outcomes(folder) as write:
            for model in settings.names:
                for batch in chunks(dataset.index.ids, settings.batch):
                    for key in ((model, condition, pair) for condition in settings.condition for pair in batch):
                        if key not in lines:
                            raise BadInput(
                                f"no shard has {key[0]!r} under {key[1]!r} on row {key[2]!r}; run them again"
                            )
                        outcomes.read(orjson.loads(lines[key]), "an outcome of a shard")
                        write(lines[key])
                    progress.advance(len(batch))
        summary, users = summarize(settings, dataset, outcomes)
        run.finish({USERS: users, SUMMARY: summary})
    return Finished(folder, summary)


def read_outcome_lines(parts: Sequence[Part]) -> dict[tuple[str, str, str], bytes]:
    """All lines of the shards by model, condition and pair."""
    lines: dict[tuple[str, str, str], bytes] = {}
    for part in parts:
        for line in read_lines(part.folder / OUTCOMES):
            lines[line["model"], line["condition"], line["pair"]] = json_line(line)
    return lines


def ways(parts: Sequence[Part], model: str) -> str:
    """How the shards ran a model, each way once."""
    return "; ".join(dict.fromkeys(part.executions[model] for part in parts if model in part.executions))


def read_part(folder: Path) -> Part:
    """A finished shard; anything else is refused."""
    stored = read_identity(folder)
    settings = stored.get("evaluate")
    if not isinstance(settings, dict) or not isinstance(settings.get("shard"), str):
        raise BadInput(f"{folder} is not a shard of an evaluation: it was made without --shard")
    read_result(folder, SUMMARY)
    executions = stored.get("execution", {})
    shared = {key: value for key, value in stored.items() if key != "execution"}
    shared["evaluate"] = {key: value for key, value in settings.items() if key != "shard"}
    shared["dataset"] = {key: value for key, value in stored["dataset"].items() if key != "rows"}
    return Part(folder, Shard.parse(settings["shard"]), shared, executions)


def check_parts(parts: Sequence[Part]) -> list[Part]:
    """All shards of one run, in order, each once."""
    if not parts:
        raise BadInput("prb merge needs the folders of all shards")
    first = parts[0]
    for part in parts[1:]:
        differing = differences(first.identity, part.identity)
        if part.shard.total != first.shard.total:
            differing.append(f"shards: {first.shard.total} → {part.shard.total}")
        if differing:
            raise RunConflict(f"{first.folder} and {part.folder} differ:\n  " + "\n  ".join(differing))
    by_number: dict[int, Part] = {}
    for part in parts:
        other = by_number.setdefault(part.shard.number, part)
        if other is not part:
            raise BadInput(f"{other.folder} and {part.folder} are both shard {part.shard.number}/{part.shard.total}")
    numbers = range(1, first.shard.total + 1)
    missing = [f"{number}/{first.shard.total}" for number in numbers if number not in by_number]
    if missing:
        listed = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise BadInput(f"missing shards: {listed}")
    return [by_number[number] for number in numbers]
