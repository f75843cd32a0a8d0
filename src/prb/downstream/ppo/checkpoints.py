"""What a PPO run writes while it trains: curves (CSV) and checkpoints (safetensors and JSON, no pickles)."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prb.runs import draft, read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

CURVES, CHECKPOINTS, POLICY, ANSWERS = "curves.csv", "checkpoints", "policy", "answers.jsonl"
ANSWER_LINES = (("stage", "pair"), ("cluster", "reward", "grade"))
"""What identifies a line of `answers.jsonl`, and the fields it must have."""
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"

CurveRow = Mapping[str, float]


def write_curves(path: Path, rows: Sequence[CurveRow]) -> None:
    """Rewritten as a whole, so that nobody reads half a line; floats keep all their digits."""
    with draft(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["step"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: repr(value) for key, value in row.items()} for row in rows)


def read_curves(path: Path, up_to: int) -> list[dict[str, float]]:
    """The rows up to a step: those that a checkpoint covers; later ones are done again."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if row["step"] <= up_to]


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
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Whole or not there; the ones before it are removed."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{checkpoint.step:08d}"
    with draft(target) as part:
        part.mkdir()
        for name, tensors in ((WEIGHTS, checkpoint.weights), (OPTIMIZER, checkpoint.optimizer)):
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, part / name)
        write_json(part / STATE, {"step": checkpoint.step, "kl": checkpoint.kl})
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    from safetensors.torch import load_file

    complete = sorted(path for path in folder.glob("*") if path.name.isdigit())
    if not complete:
        return None
    latest, state = complete[-1], read_json(complete[-1] / STATE)
    return Checkpoint(state["step"], state["kl"], load_file(latest / WEIGHTS), load_file(latest / OPTIMIZER))


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
