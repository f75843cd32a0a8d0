"""What a PPO run writes while it trains: curves (CSV) and checkpoints (safetensors and JSON, no pickles).

A checkpoint carries the digests of its files and the curves so far, so what was changed is never trained on.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prb.downstream.candidates import Finite
from prb.downstream.stages import LineShape
from prb.errors import BadInput
from prb.runs import check_unchanged, content_digest, draft, read_sealed, write_sealed

if TYPE_CHECKING:
    from torch import Tensor

CURVES, CHECKPOINTS, POLICY, ANSWERS = "curves.csv", "checkpoints", "policy", "answers.jsonl"
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"

CurveRow = Mapping[str, float]


@dataclass(frozen=True)
class Scored:
    """A reward or a grade, or why there is none."""

    score: Finite | None
    failure: str | None = None


@dataclass(frozen=True)
class HeldOutAnswer:
    """What is read of a line of `answers.jsonl`."""

    stage: Literal["before", "after"]
    pair: str
    cluster: str
    reward: Scored | None
    grade: Scored | None
    failure: str | None


ANSWER_LINES = LineShape(HeldOutAnswer, ("stage", "pair"))


def write_curves(path: Path, rows: Sequence[CurveRow]) -> None:
    """Rewritten as a whole, so that nobody reads half a line; floats keep all their digits."""
    with draft(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["step"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: repr(value) for key, value in row.items()} for row in rows)


def read_curves(path: Path, up_to: int) -> list[dict[str, float]]:
    """The rows up to a step."""
    if not path.exists():
        raise BadInput(f"{path.parent} is incomplete: it has no {path.name}")
    check_unchanged(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
        return [row for row in rows if row["step"] <= up_to]
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise BadInput(f"{path} is damaged: {error}") from None


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the next step depends on. All draws are hashed from the step, so there is no random state."""

    step: int
    kl: float
    """The KL penalty coefficient, which an adaptive run changes."""
    curves: Sequence[CurveRow]
    """A row for each step so far."""
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Whole or not there; the ones before it are removed."""
    from safetensors.torch import save_file

    target = folder / f"{checkpoint.step:08d}"
    with draft(target) as part:
        part.mkdir(parents=True)
        for name, tensors in ((WEIGHTS, checkpoint.weights), (OPTIMIZER, checkpoint.optimizer)):
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, part / name)
        digests = {name: content_digest(part / name) for name in (WEIGHTS, OPTIMIZER)}
        state = {"step": checkpoint.step, "kl": checkpoint.kl, "curves": checkpoint.curves, "digests": digests}
        write_sealed(part / STATE, state)
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    complete = sorted(path for path in folder.glob("*") if path.name.isdigit())
    if not complete:
        return None
    latest = complete[-1]
    try:
        state = read_sealed(latest / STATE)
        for name, expected in state["digests"].items():
            if content_digest(latest / name) != expected:
                raise ValueError(f"{name} was changed")
        weights, optimizer = load_file(latest / WEIGHTS), load_file(latest / OPTIMIZER)
        return Checkpoint(state["step"], state["kl"], state["curves"], weights, optimizer)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise BadInput(f"{latest} is damaged ({error}); remove {folder} to train again from the start") from None


def trainable(model: Any) -> dict[str, Tensor]:
    """The parameters that training changes, by name; tied weights once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def optimizer_tensors(optimizer: Any) -> dict[str, Tensor]:
    """The optimizer's moments and counts, flat: `parameter.name`."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def restore(model: Any, optimizer: Any, checkpoint: Checkpoint) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(checkpoint.weights[name])
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.optimizer.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
