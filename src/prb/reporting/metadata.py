"""What a reader wants to know of a model besides its numbers: size, license, date, kind, link.

From `models.yaml` beside the runs, or `prb report --models FILE`:

- model: skywork
  size: 0.6B
  license: apache-2.0
  date: 2025-07-04
  kind: reward head
  link: https://huggingface.co/Skywork/Skywork-Reward-V2-Qwen3-0.6B

A model that `prb train` wrote says itself what it is, as far as its card knows.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

from prb.errors import PrbError
from prb.registry import Spec
from prb.reporting.published import Text, read_rows
from prb.runs import read_json

FILE = "models.yaml"


class ModelMetadata(BaseModel):
    """A row of the file; only `model` is required."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Text
    """Its name in the run, or its spec."""
    size: Text | None = None
    """Parameters, such as 8B."""
    license: Text | None = None
    date: datetime.date | None = None
    """Of its release."""
    kind: Text | None = None
    """Such as classifier, judge or trained head."""
    link: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None


def read_metadata(file: Path | None, runs: Iterable[Path]) -> tuple[ModelMetadata, ...]:
    """The rows of a file, else of every `models.yaml` in or beside a run folder."""
    beside = dict.fromkeys(place / FILE for run in runs for place in (run, run.resolve().parent))
    files = [file] if file else [path for path in beside if path.is_file()]
    return tuple(row for path in files for row in read_rows(path, ModelMetadata))


def metadata_of(rows: Sequence[ModelMetadata], name: str, spec: str) -> ModelMetadata | None:
    """The row about a model, else its own card."""
    found = next((row for row in rows if row.model in (name, spec)), None)
    return found or _from_card(name, spec)


def _from_card(name: str, spec: str) -> ModelMetadata | None:
    try:
        content = read_json(Path(Spec.parse(spec).options.get("path", ""), "card.json"))
    except PrbError:
        return None
    try:
        return ModelMetadata(model=name, kind=f"{content['method']}, trained on {Path(content['data']['name']).name}")
    except (KeyError, TypeError):  # some other program's card
        return None


def card_of(metadata: ModelMetadata | None) -> dict[str, Any]:
    """As the pages need it."""
    return metadata.model_dump(mode="json", exclude={"model"}, exclude_none=True) if metadata else {}
