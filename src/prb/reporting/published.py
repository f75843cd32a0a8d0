"""Published results beside ours: rows of a YAML file, shown if they are about the run's dataset, never computed with.

- dataset: reward-bench-2
  model: QRM-Gemma-2-27B
  value: 76.7
  source: arXiv 2506.01937
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from prb.config import ConditionName, Count
from prb.errors import BadInput

DEFAULT = "default"
"""Names the file that comes with the package."""
SHIPPED = files("prb.reporting") / "published.yaml"
METADATA = "models.yaml"
Row = TypeVar("Row", bound=BaseModel)
Text = Annotated[str, StringConstraints(pattern=r"\S")]


class PublishedResult(BaseModel):
    """A number that others published."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: Text
    """A name that is part of the name of the run's dataset, such as a hub repository or a file without its ending."""
    model: Text
    value: Annotated[float, Field(gt=1, le=100)]
    """In percent, as papers print it; a share below 1 is refused."""
    source: Text
    """Where it was published."""
    metric: Text = "accuracy"
    condition: ConditionName | None = None
    """Under which the model was shown the user, if the source says so."""
    rows: Count | None = None
    """How many rows the number is about."""
    note: str = ""

    def is_about(self, dataset: str) -> bool:
        """Whether the name occurs in the dataset's: `reward-bench` is not part of `reward-bench-2`."""
        name = re.escape(self.dataset.lower())
        return re.search(rf"(?<![\w-]){name}(?![\w-])", dataset.lower()) is not None


def read_published(place: str) -> tuple[PublishedResult, ...]:
    """The rows of a file, or of the one that is shipped."""
    return read_rows(SHIPPED if place == DEFAULT else Path(place), PublishedResult)


def read_rows(place: Path | Traversable, kind: type[Row]) -> tuple[Row, ...]:
    """A YAML file that is a list of rows of a kind."""
    try:
        content = place.read_bytes()
    except OSError as error:
        raise BadInput(f"{place} cannot be read: {error.strerror or error}") from None
    return parse_rows(content, str(place), kind)


def parse_rows(content: bytes, place: str, kind: type[Row]) -> tuple[Row, ...]:
    import yaml

    try:
        rows = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2025-13-01 is a ValueError
        raise BadInput(f"{place} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return tuple(TypeAdapter(list[kind]).validate_python(rows))  # type: ignore[valid-type]
    except ValidationError as error:
        first = error.errors()[0]
        row, *field = first["loc"] or ("",)
        where = f"row {row + 1}" if isinstance(row, int) else "content"
        raise BadInput(f"{place}, {where}: {''.join(f'{name}: ' for name in field)}{first['msg']}") from None


def published_about(published: Sequence[PublishedResult], dataset: str) -> list[dict[str, Any]]:
    """Those about a dataset, as the page needs them: shares instead of percent, best first by metric."""
    rows = [row for row in published if row.is_about(dataset)]
    rows.sort(key=lambda row: (row.metric, -row.value))
    return [{**row.model_dump(exclude={"dataset"}), "value": row.value / 100} for row in rows]


class ModelMetadata(BaseModel):
    """A row of `models.yaml`; only `model` is required."""

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


def read_metadata(folder: Path) -> tuple[ModelMetadata, ...]:
    """The rows of `models.yaml` in a run folder, then of the one beside it."""
    places = [place / METADATA for place in (folder, folder.resolve().parent)]
    return tuple(row for place in places if place.is_file() for row in read_rows(place, ModelMetadata))
