"""Named datasets; a factory returns a `Source`. Files, folders and hub ids need no name."""

from __future__ import annotations

from prb.data.source import Source
from prb.registry import Registry

DATASETS: Registry[Source] = Registry("dataset", package="prb.data.named", group="prb.datasets")
