"""Personalized reward models: heads on frozen features (`run.train`) or whole models (`full.finetune`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Trained:
    """What `prb train` made."""

    folder: Path
    model: str
    """What to give to `prb evaluate --model`."""
    card: dict[str, Any]
    """The content of `card.json`: data, settings, curves and validation."""
