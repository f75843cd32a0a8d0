"""The prompts of a PPO run: which are trained on, which are held out, and what policy and reward model see of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from prb.data.load import Dataset, load, training_split
from prb.data.source import open_source
from prb.downstream.ppo import PpoConfig
from prb.errors import BadInput
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.hashing import draw
from prb.types import Failure, Item, Query

SEED_BITS = 48
"""Wide enough that no two answers share their noise, and exact in every JSON reader."""


class Prompt(NamedTuple):
    item: Item
    cluster: str


class Views(NamedTuple):
    """One prompt as each side sees it: the reward model's query may have personal data masked."""

    policy: Query
    reward: Query


@dataclass(frozen=True)
class Prompts:
    train: Sequence[Prompt]
    held_out: Sequence[Prompt]
    dataset: Dataset
    policy: QueryBuilder
    reward: QueryBuilder
    config: PpoConfig

    def batch(self, step: int) -> list[Prompt]:
        """The prompts of a step. Each epoch has its own order, drawn by hash, so a step depends on no other."""
        size, start = len(self.train), step * self.config.batch
        places = range(start, start + self.config.batch)
        orders = {epoch: self._order(epoch) for epoch in {place // size for place in places}}
        return [self.train[orders[place // size][place % size]] for place in places]

    def _order(self, epoch: int) -> list[int]:
        keys = [draw(self.config.seed, epoch, prompt.item.id, bits=SEED_BITS) for prompt in self.train]
        return sorted(range(len(keys)), key=keys.__getitem__)

    def views(self, prompts: Sequence[Prompt]) -> list[Views | Failure]:
        items, condition = [prompt.item for prompt in prompts], self.config.condition
        plans = self.policy.plans(items) if condition == "plan" else {}
        views: list[Views | Failure] = []
        for item in items:
            policy = self.policy.build(item, condition, plans.get(item.id))
            reward = self.reward.build(item, condition, plans.get(item.id))
            if isinstance(policy, Failure):
                views.append(policy)
            else:
                views.append(reward if isinstance(reward, Failure) else Views(policy.query, reward.query))
        return views


def load_prompts(config: PpoConfig, model: object) -> Prompts:
    """`model` is the reward model: what it reads may be masked. The policy is trained here and reads everything."""
    source = open_source(config.dataset)
    splits = {str(row.data["split"]) for row in source.rows() if isinstance(row.data, dict) and "split" in row.data}
    split = config.split or (training_split(source) if splits & {"train", "dev"} else None)
    dataset = load(config.dataset, split=split, limit=config.limit, donors=config.condition == "shuffled")
    test = load(config.dataset, split="test") if "test" in splits and dataset.split != "test" else None
    train, held_out = _hold_out(config, _prompts(dataset), None if test is None else _prompts(test))
    if not train:
        raise BadInput(f"holdout {config.holdout} leaves no prompt of {dataset.name} to train on")
    planner = PLANNERS.make(config.planner)
    reward = QueryBuilder.of(config, dataset, planner, reader=model, seed=config.seed)
    return Prompts(train, held_out, dataset, replace(reward, mask=False), reward, config)


def _prompts(dataset: Dataset) -> list[Prompt]:
    return [Prompt(item, cluster) for item, cluster in zip(dataset, dataset.index.clusters, strict=True)]


def _hold_out(config: PpoConfig, rows: list[Prompt], test: list[Prompt] | None) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to train on and held-out ones, drawn by hash; no cluster is in both.

    First one prompt of each cluster that is not trained on, then a second one: more clusters are more informative. What
    is missing then comes from the other clusters, all prompts of one before the next, so that training loses few.
    """
    pool = rows if test is None else test
    trained = {prompt.cluster for prompt in rows}
    taken: Counter[str] = Counter()
    order: list[tuple[bool, int, int]] = []
    for prompt in pool:
        known = prompt.cluster in trained
        key = draw(config.seed, "held out", prompt.cluster, bits=SEED_BITS)
        order.append((known, 0 if known else taken[prompt.cluster], key))
        taken[prompt.cluster] += 1
    held_out = [pool[n] for n in sorted(range(len(pool)), key=order.__getitem__)[: config.holdout]]
    clusters = {prompt.cluster for prompt in held_out}
    return [prompt for prompt in rows if prompt.cluster not in clusters], held_out
