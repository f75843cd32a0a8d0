"""What a PPO run leaves on disk as it goes: curves (CSV) and checkpoints (safetensors and JSON, no pickles)."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prb.runs import read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

CURVES, CHECKPOINTS, POLICY, ANSWERS = "curves.csv", "checkpoints", "policy", "answers.jsonl"
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"

CurveRow = Mapping[str, float]


def write_curves(path: Path, rows: Sequence[CurveRow]) -> None:
    """The whole file at once, so that nobody ever reads half a line; numbers to their last digit."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["step"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: repr(value) for key, value in row.items()} for row in rows)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text.getvalue(), "utf-8")
    draft.replace(path)


def read_curves(path: Path, up_to: int) -> list[dict[str, float]]:
    """The rows of finished steps that a checkpoint knows of; later ones are done again."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if row["step"] <= up_to]


def _number(text: str) -> float:
    return float(text) if any(c in text for c in ".naife") else int(text)


@dataclass(frozen=True)
class Saved:
    """A checkpoint: everything that the next step depends on. Draws are hashed from step and row, so the number of
    the step is all there is to know of randomness."""

    step: int
    kl: float
    """The price of a nat, which an adaptive run changes."""
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


def save_checkpoint(folder: Path, saved: Saved) -> None:
    """Complete or not there; the ones before it go."""
    from safetensors.torch import save_file

    target = folder / f"{saved.step:08d}"
    draft = folder / f"{saved.step:08d}.part"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    save_file(_plain(saved.weights), draft / WEIGHTS)
    save_file(_plain(saved.optimizer), draft / OPTIMIZER)
    write_json(draft / STATE, {"step": saved.step, "kl": saved.kl})
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other)


def latest_checkpoint(folder: Path) -> Saved | None:
    from safetensors.torch import load_file

    whole = sorted(path for path in folder.glob("*") if path.suffix != ".part") if folder.is_dir() else []
    if not whole:
        return None
    state = read_json(whole[-1] / STATE)
    return Saved(state["step"], state["kl"], load_file(whole[-1] / WEIGHTS), load_file(whole[-1] / OPTIMIZER))


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def trainable(model: Any) -> dict[str, Tensor]:
    """What training changes, by name; tied weights once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def optimizer_tensors(optimizer: Any) -> dict[str, Tensor]:
    """Its moments and counts, flat: `parameter.what`."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def restore(model: Any, optimizer: Any, saved: Saved) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(saved.weights[name])
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in saved.optimizer.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
