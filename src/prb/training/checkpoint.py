"""The state of an unfinished training, written whole after every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from prb.errors import BadInput


class Checkpoint:
    """One safetensors file; the curve is in its header. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def exists(self) -> bool:
        return self._path is not None and self._path.exists()

    def write(self, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        from safetensors.numpy import save_file

        if self._path is None:
            return
        draft = self._path.with_name(f"{self._path.name}.part")
        solid = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in arrays.items()}
        save_file(solid, draft, metadata={"about": orjson.dumps(about).decode()})
        draft.replace(self._path)

    def read(self) -> tuple[dict[str, Any], Any]:
        from safetensors import SafetensorError, safe_open

        assert self._path is not None
        try:
            with safe_open(self._path, framework="np") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, orjson.loads(file.metadata()["about"])  # noqa: SIM118
        except (SafetensorError, OSError, KeyError) as error:
            raise BadInput(f"{self._path} is damaged ({error}); remove it to begin again") from None

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
