"""What callers of the Python API have at hand: data frames, lists of rows, models as objects or plain functions."""

from __future__ import annotations

import hashlib
import inspect
import marshal
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import CodeType
from typing import Any

import orjson

from prb.errors import BadInput
from prb.hashing import short_digest
from prb.runs import write_lines
from prb.types import Ask, Failure, RewardModel


def as_dataset(dataset: Any) -> str:
    """A name or a path as it is. Rows and data frames are written to a file in `runs/` that is named after its content,
    so that a run on them can be resumed and reported."""
    if isinstance(dataset, str | Path):
        return str(dataset)
    if hasattr(dataset, "to_dict") and hasattr(dataset, "columns"):
        rows = dataset.to_dict("records")
    elif isinstance(dataset, Sequence) and all(isinstance(row, Mapping) for row in dataset):
        rows = list(dataset)
    else:
        raise BadInput(f"dataset must be a name, a path, a data frame or a list of rows, not {type(dataset).__name__}")
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        rows = orjson.loads(orjson.dumps(rows, default=_plain, option=options))
    except TypeError as error:
        raise BadInput(f"rows must hold texts, numbers, lists and maps: {error}") from None
    path = Path("runs") / f"rows-{short_digest(rows)}.jsonl"
    if not path.exists():
        write_lines(path, rows)
    return str(path)


def _plain(value: Any) -> Any:
    """Arrays of objects, as in frames that were read from Parquet, and times. Empty cells are null."""
    if isinstance(value, date):
        return value.isoformat() if value == value else None  # noqa: PLR0124 - NaT differs from itself
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def as_models(models: Mapping[str, Any] | Sequence[Any] | None) -> tuple[tuple[str, ...], dict[str, RewardModel]]:
    """The specs to evaluate, with the names of those that are objects, and these objects by name."""
    if models is None:
        return (), {}
    if isinstance(models, Mapping | Sequence) and not models:
        raise BadInput("models is empty; leave it out for all embedded models")
    if isinstance(models, Mapping):
        objects = {name: _model(model) for name, model in models.items() if not isinstance(model, str)}
        return tuple(f"{name}:={m}" if isinstance(m, str) else name for name, m in models.items()), objects
    if isinstance(models, str) or not isinstance(models, Sequence):
        models = [models]
    specs: list[str] = []
    objects = {}
    for model in models:
        if isinstance(model, str):
            specs.append(model)
            continue
        name = model.__name__ if inspect.isroutine(model) or inspect.isclass(model) else type(model).__name__
        name = "function" if name == "<lambda>" else name
        taken = sum(spec.partition(" #")[0] == name for spec in specs)
        specs.append(f"{name} #{taken + 1}" if taken else name)
        objects[specs[-1]] = _model(model)
    return tuple(specs), objects


def _model(model: Any) -> RewardModel:
    if inspect.isclass(model):
        model = model()
    return FunctionModel(model) if inspect.isroutine(model) else model


class FunctionModel:
    """A plain function of (prompt, response) as a reward model.

    Its fingerprint covers its code and what it closes over, so that a changed function is another model.
    """

    def __init__(self, function: Any) -> None:
        required = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty and parameter.kind in (0, 1)
        ]
        if len(required) != 2:
            raise BadInput(f"{function.__name__} must take (prompt, response)")
        self._function = function
        code, identity = getattr(function, "__code__", None), repr(getattr(function, "__qualname__", function))
        if isinstance(code, CodeType):
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
            about = repr((cells, function.__defaults__, function.__kwdefaults__)).encode("utf-8", "replace")
            identity = hashlib.sha256(marshal.dumps(_without_place(code)) + about).hexdigest()[:16]
        self.fingerprint = f"function-{identity}"

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        return [self._function(ask.query.question, ask.answer) for ask in asks]


def _without_place(code: CodeType) -> CodeType:
    """The same code wherever in whichever file it is written."""
    constants = tuple(_without_place(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=constants)
