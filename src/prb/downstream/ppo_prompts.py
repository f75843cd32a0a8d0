"""The prompts of a PPO run: which are trained on, which are held out, and what policy and reward model see of each."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prb.data.load import Dataset, load
from prb.data.retrieve import ranker
from prb.data.source import open_source
from prb.downstream.ppo_config import PpoConfig
from prb.errors import BadInput
from prb.evaluation.conditions import Asked, Asker
from prb.evaluation.plan import PLANNERS
from prb.models import is_remote
from prb.types import Failure, Item, Query


class Prompt(NamedTuple):
    item: Item
    cluster: str


class Shown(NamedTuple):
    """One prompt as the two sides see it: the reward model's may have personal data masked."""

    policy: Query
    reward: Query


@dataclass(frozen=True)
class Prompts:
    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    dataset: Dataset
    policy: Asker
    reward: Asker
    config: PpoConfig

    def batch(self, step: int) -> list[Prompt]:
        """Each pass over the prompts has an order of its own, drawn by hash: a step needs no memory of others."""
        size, start = len(self.train), step * self.config.batch
        places = range(start, start + self.config.batch)
        orders = {turn: self._order(turn) for turn in {place // size for place in places}}
        return [self.train[orders[place // size][place % size]] for place in places]

    def _order(self, turn: int) -> list[int]:
        keys = [draw(self.config.seed, turn, prompt.item.id) for prompt in self.train]
        return sorted(range(len(keys)), key=keys.__getitem__)

    def show(self, prompts: Sequence[Prompt]) -> list[Shown | Failure]:
        items, condition = [prompt.item for prompt in prompts], self.config.condition
        plans = self.policy.plans(items) if condition == "plan" else {}
        return [
            _shown(self.policy.ask(i, condition, plans.get(i.id)), self.reward.ask(i, condition, plans.get(i.id)))
            for i in items
        ]


def _shown(policy: Asked | Failure, reward: Asked | Failure) -> Shown | Failure:
    if isinstance(policy, Failure):
        return policy
    return reward if isinstance(reward, Failure) else Shown(policy.query, reward.query)


def draw(*parts: object) -> int:
    """A number for these parts, the same in every process."""
    return int.from_bytes(hashlib.sha256(":".join(map(str, parts)).encode()).digest()[:6], "big")


def load_prompts(config: PpoConfig, model: object) -> Prompts:
    """`model` is the reward model: what leaves the machine with it is masked."""
    donors = config.condition == "shuffled"
    splits = _splits(config.dataset)
    split = config.split or ("train" if "train" in splits else None)
    dataset = load(config.dataset, split=split, limit=config.limit, donors=donors)
    rows = [Prompt(item, cluster) for item, cluster in zip(dataset, dataset.index.clusters, strict=True)]
    train, held = _held_out(config, rows, load(config.dataset, split="test") if _has_test(splits, dataset) else None)
    if not train:
        raise BadInput(f"--holdout {config.holdout} leaves no prompt of {dataset.name} to train on")
    planner = PLANNERS.make(config.planner)
    everything = {
        "rank": ranker(config.ranker),
        "planner": planner,
        "people": dataset.people,
        "k": config.k,
        "budget": config.budget,
        "seed": config.seed,
        "mask_for_planner": masked(config, planner),
    }
    policy, reward = Asker(**everything), Asker(**everything, mask=masked(config, model))  # type: ignore[arg-type]
    return Prompts(train, held, dataset, policy, reward, config)


def masked(config: PpoConfig, reader: object) -> bool:
    return config.mask_pii == "on" or (config.mask_pii == "auto" and is_remote(reader))


def _splits(spec: str) -> set[str]:
    rows = (row.data for row in open_source(spec).rows())
    return {str(data["split"]) for data in rows if isinstance(data, dict) and "split" in data}


def _has_test(splits: set[str], dataset: Dataset) -> bool:
    return "test" in splits and dataset.split != "test"


def _held_out(config: PpoConfig, rows: list[Prompt], test: Dataset | None) -> tuple[list[Prompt], list[Prompt]]:
    """Drawn by hash, so that nobody, and nobody's twin, is trained on and held out.

    Of people who are not trained on anyway one prompt each, then a second one: the more people, the more is known.
    What is missing then comes from the others, all of one person before the next: so few are lost to training.
    """
    pool = rows if test is None else [Prompt(i, c) for i, c in zip(test, test.index.clusters, strict=True)]
    trained = {prompt.cluster for prompt in rows}
    turn: Counter[str] = Counter()
    order: list[tuple[bool, int, int]] = []
    for prompt in pool:
        known = prompt.cluster in trained
        order.append((known, 0 if known else turn[prompt.cluster], draw(config.seed, "held out", prompt.cluster)))
        turn[prompt.cluster] += 1
    held = [pool[n] for n in sorted(range(len(pool)), key=order.__getitem__)[: config.holdout]]
    people = {prompt.cluster for prompt in held}
    return [prompt for prompt in rows if prompt.cluster not in people], held
