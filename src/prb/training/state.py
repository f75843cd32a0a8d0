"""The state of a training loop between two steps, so that a killed run resumes: one safetensors file, no pickles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prb.progress import Progress
from prb.runs import draft

OPTIMIZER = "optimizer."


def save_state(path: Path, tensors: Mapping[str, Tensor], optimizer: Any, about: Any) -> None:
    """Tensors by name, the moments of an optimizer, and `about`, any JSON, which is in the file's header."""
    state = optimizer.state_dict()["state"]
    moments = {f"{OPTIMIZER}{n}.{name}": value for n, values in state.items() for name, value in values.items()}
    with draft(path) as part:
        solid = {name: tensor.detach().cpu().contiguous() for name, tensor in {**tensors, **moments}.items()}
        save_file(solid, part, metadata={"about": orjson.dumps(about).decode()})


def load_state(path: Path, tensors: Mapping[str, Tensor], optimizer: Any, progress: Progress) -> Any:
    """Put tensors and optimizer back to what they were, and return `about`; `None` if there is nothing to resume."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = orjson.loads(file.metadata()["about"])
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        copies = [(tensor, saved[name].view_as(tensor)) for name, tensor in tensors.items()]
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        progress.note(f"{path} cannot be read ({error}); training starts again")
        return None
    with torch.no_grad():
        for tensor, value in copies:
            tensor.copy_(value)
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in saved.items():
        if key.startswith(OPTIMIZER):
            number, _, name = key.removeprefix(OPTIMIZER).partition(".")
            moments.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return about
