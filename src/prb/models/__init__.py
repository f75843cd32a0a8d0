"""Reward models, one file per family. To add one: a file here, a factory, one decorator.

    @MODELS.register("shortest")
    def shortest() -> Scorer:
        '''Prefers the shorter answer.'''
        return Shortest()

Modules import heavy libraries only inside their factories, so that listing the names is cheap.
"""

from __future__ import annotations

from pathlib import Path

from prb.errors import BadInput
from prb.registry import Registry, Spec
from prb.runs import read_json
from prb.types import Recorded, RewardModel, Scorer, TrainedOn

MODELS: Registry[RewardModel] = Registry("model", package="prb.models", group="prb.models")
RECORDED = {"scores": "history not stated", "reader": "the whole history", "personal-recorded": "the whole history"}
"""Models whose scores were given elsewhere, and how much of a history they saw. Listed, since what a factory returns is
known only once it has been called, and reports ask about models whose files may be gone; a test compares it with the
registry."""
NOT_RECORDED = "not recorded under this condition"


def make_model(spec: str) -> RewardModel:
    """What `MODELS.make` makes, as a function that another process can be told to call."""
    return MODELS.make(spec)


def refuse_recorded(name: str, model: object, use: str) -> None:
    """Refuse a model that knows only the answers that were scored elsewhere."""
    if isinstance(model, Recorded):
        raise BadInput(f"{name!r} holds recorded scores; {use} a model that can score new answers")


def check_scorer(name: str, model: object, use: str) -> Scorer:
    """The model as a scorer; refused if it only compares answers, or holds recorded scores."""
    refuse_recorded(name, model, use)
    if not isinstance(model, Scorer):
        raise BadInput(f"{name!r} only compares answers; {use} a model that scores them")
    return model


def trained_on(model: object, spec: str) -> TrainedOn:
    """What a model was fitted on: its attribute `trained_on`, or what the card in its folder says."""
    stated = getattr(model, "trained_on", None)
    if isinstance(stated, TrainedOn):
        return stated
    folder = Spec.parse(spec).options.get("path")
    card = Path(folder) / "card.json" if folder else None
    return TrainedOn.read(read_json(card)) if card and card.is_file() else TrainedOn()


PREFIXES_SHARED = "prefixes shared"
"""How the engine runs a model unless the model does not allow it."""


def execution_of(model: object) -> str:
    """How the engine runs a model, for the record; empty for models that it does not run."""
    return str(getattr(model, "execution", ""))
