"""Datasets on the Hugging Face hub, downloaded once into its own cache and read from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from prb.data.source import RawRow, dict_row, unfold, with_split
from prb.errors import BadInput, MissingExtra, unknown
from prb.registry import Spec


@dataclass(frozen=True)
class HubSource:
    """`hub:owner/name?subset=…&revision=…`: a dataset on the Hugging Face hub at a pinned revision.

    The repository is downloaded once into the hub's own cache (so `HF_HUB_OFFLINE=1` works afterwards) and read from
    there like any folder. The revision that was read is part of the name, hence of the run.
    """

    repo: str
    folder: Path
    revision: str
    subset: str | None = None

    @property
    def name(self) -> str:
        return f"hub:{self.repo}?revision={self.revision}" + (f"&subset={self.subset}" if self.subset else "")

    @classmethod
    def parse(cls, text: str) -> HubSource:
        spec = Spec.parse(text.removeprefix("hub:"))
        for key in spec.options:
            if key not in ("revision", "subset"):
                raise unknown("option of a hub dataset", key, ["revision", "subset"])
        folder = _snapshot(spec.name, spec.options.get("revision"))
        return cls(spec.name, folder, folder.name, spec.options.get("subset"))

    def rows(self) -> Iterator[RawRow]:
        datasets = _hub_library("datasets")
        try:
            subsets = list(datasets.get_dataset_config_names(str(self.folder)))
            if self.subset is not None and self.subset not in subsets:
                raise unknown(f"subset of {self.repo}", self.subset, subsets)
            for subset in [self.subset] if self.subset else subsets:
                splits = datasets.load_dataset(str(self.folder), name=subset, streaming=True)
                for split, rows in splits.items():
                    for line, row in enumerate(rows, 1):
                        yield with_split(dict_row(f"{subset}/{split}", line, unfold(dict(row))), str(split))
        except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
            lines = str(error).split("\n")  # the last one names the cause
            raise BadInput(f"{self.name} cannot be read: {' '.join(dict.fromkeys((lines[0], lines[-1])))}") from None


def _snapshot(repo: str, revision: str | None) -> Path:
    hub = _hub_library("huggingface_hub")
    wrong = (hub.errors.HFValidationError, hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError)
    try:
        return Path(hub.snapshot_download(repo, repo_type="dataset", revision=revision))
    except wrong as error:
        raise BadInput(f"hub:{repo}: {str(error).splitlines()[0]}") from None
    except (hub.errors.LocalEntryNotFoundError, hub.errors.OfflineModeIsEnabled, OSError) as error:
        raise BadInput(
            f"hub:{repo} is not in the local cache and the hub cannot be reached ({type(error).__name__})"
        ) from None


def _hub_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("reading from the hub", "hub") from None
