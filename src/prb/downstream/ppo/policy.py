"""A policy in training: weights, adapters, a value head, and answers as the tokens that were sampled.

The model's own forward pass is used throughout. Prompts are padded on the left and answers on the right, so that all
answers of a batch begin in the same column.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prb.data.load import Dataset, training_split
from prb.data.load import load as load_data
from prb.data.source import open_source
from prb.downstream.answers import clean
from prb.downstream.ppo import PpoConfig
from prb.engine.chat import fit
from prb.engine.load import Checkpoint, load
from prb.errors import BadInput, MissingExtra
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.hashing import draw
from prb.llm import Request
from prb.llm.transformers import NEVER, Row, Tokens, Transformers, generation
from prb.prompts import policy_chat
from prb.summary import CONDITIONS, needs_donors
from prb.types import Failure, Item, Query
from prb.weights import make_readable

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
        size, batch = len(self.train), self.config.batch
        places = [divmod(place, size) for place in range(step * batch, (step + 1) * batch)]
        orders = {}
        for epoch in {epoch for epoch, _ in places}:
            keys = [draw(self.config.seed, epoch, prompt.item.id, bits=SEED_BITS) for prompt in self.train]
            orders[epoch] = [self.train[n] for n in sorted(range(size), key=keys.__getitem__)]
        return [orders[epoch][n] for epoch, n in places]

    def views(self, prompts: Sequence[Prompt]) -> list[Views | Failure]:
        items, condition = [prompt.item for prompt in prompts], self.config.condition
        plans = self.policy.plans(items) if CONDITIONS[condition].planned else {}
        views: list[Views | Failure] = []
        for item in items:
            built = [side.build(item, condition, plans.get(item.id)) for side in (self.policy, self.reward)]
            queries = [made.query for made in built if isinstance(made, Built)]
            failures = [made for made in built if isinstance(made, Failure)]
            views.append(failures[0] if failures else Views(*queries))
        return views


def load_prompts(config: PpoConfig, model: object) -> Prompts:
    """`model` is the reward model: what it reads may be masked. The policy is trained here and reads everything."""
    source = open_source(config.dataset)
    splits = {str(row.data["split"]) for row in source.rows() if isinstance(row.data, dict) and "split" in row.data}
    split = config.split or (training_split(source) if splits & {"train", "dev"} else None)
    dataset = load_data(config.dataset, split=split, limit=config.limit, donors=needs_donors([config.condition]))
    test = load_data(config.dataset, split="test") if "test" in splits and dataset.split != "test" else None
    rows, pool = (list(map(Prompt, data, data.index.clusters)) for data in (dataset, test or dataset))
    # Held-out prompts are drawn by hash, and no cluster is in both. First one prompt of each cluster that is not
    # trained on, then a second one: more clusters are more informative. What is missing then comes from the other
    # clusters, all prompts of one before the next, so that training loses few.
    trained, taken = {prompt.cluster for prompt in rows}, Counter[str]()
    order: list[tuple[bool, int, int]] = []
    for prompt in pool:
        known = prompt.cluster in trained
        key = draw(config.seed, "held out", prompt.cluster, bits=SEED_BITS)
        order.append((known, 0 if known else taken[prompt.cluster], key))
        taken[prompt.cluster] += 1
    held_out = [pool[n] for n in sorted(range(len(pool)), key=order.__getitem__)[: config.holdout]]
    clusters = {prompt.cluster for prompt in held_out}
    train = [prompt for prompt in rows if prompt.cluster not in clusters]
    if not train:
        raise BadInput(f"holdout {config.holdout} leaves no prompt of {dataset.name} to train on")
    planner = PLANNERS.make(config.planner)
    reward = QueryBuilder.of(config, dataset, planner, reader=model, seed=config.seed)
    return Prompts(train, held_out, dataset, replace(reward, mask=False), reward, config)


FORBIDDEN = -1e9
"""A logit far below any other; unlike −∞, it times a probability of 0 is a number."""


@dataclass(frozen=True)
class Answer:
    """What the policy wrote, as text and as the tokens it sampled."""

    prompt: Tokens
    tokens: Tokens
    text: str
    """Empty if there are only blanks."""
    truncated: bool


class Policy(Transformers):
    """An LLM in training: `complete` as any other, and `write`, which keeps the tokens.

    Answers to learn from have at least one token. An empty answer gets no reward, so a policy rewarded for brevity
    would never learn to stop short of it. `ActorCritic` computes probabilities accordingly. An answer may still consist
    of blanks; see `empty_reward`.
    """

    _forbid_empty = False

    def write(self, requests: Sequence[Request | Failure]) -> list[Answer | Failure]:
        rows = [request if isinstance(request, Failure) else self.begin(request) for request in requests]
        waiting = {n: row for n, row in enumerate(rows) if isinstance(row, Row)}
        self._forbid_empty = True
        try:
            for group in self.groups(waiting):
                self.generate([waiting[n] for n in group])
        finally:
            self._forbid_empty = False
        return [
            Answer(row.prompt, row.written, clean(self.cut(row)[0]), row.ended == "length")
            if isinstance(row, Row)
            else row
            for row in rows
        ]

    def write_token(self, row: Row, logits: Tensor) -> None:
        if self._forbid_empty and not row.written:
            logits = logits.index_fill(0, torch.tensor(sorted(self.ends), device=logits.device), NEVER)
        super().write_token(row, logits)

    def fitted(self, view: Views | Failure, config: PpoConfig) -> tuple[Query, int] | Failure:
        """The policy's query, cut to `max_prompt` and to the room this model's context leaves beside the answer; and
        how many posts were cut."""
        if isinstance(view, Failure):
            return view
        first = self.prompt_tokens(policy_chat(view.policy, config.policy_prompt))
        if isinstance(first, Failure):
            return first
        limit = min(config.max_prompt, self.context - config.max_tokens)

        def fits(shorter: Query) -> bool:
            made = self.prompt_tokens(policy_chat(shorter, config.policy_prompt))
            return not isinstance(made, Failure) and len(made) <= limit

        return (view.policy, 0) if len(first) <= limit else fit(view.policy, fits)


class TokenBatch(NamedTuple):
    """Prompts with their answers, padded: prompts end, and answers begin, in the same column."""

    ids: Tensor
    attention: Tensor
    mask: Tensor
    """1 for the tokens of answers, 0 for padding; only the columns of answers."""

    def rows(self, rows: Tensor) -> TokenBatch:
        """Some of the rows, without columns that are padding in all of them."""
        width, longest = self.mask.shape[1], max(1, int(self.mask[rows].sum(1).max()))
        prompts = self.attention[rows][:, : self.ids.shape[1] - width]
        first, last = int(prompts.shape[1] - prompts.sum(1).max()), self.ids.shape[1] - width + longest
        return TokenBatch(
            self.ids[rows][:, first:last], self.attention[rows][:, first:last], self.mask[rows][:, :longest]
        )


def pad_batch(prompts: Sequence[Tokens], answers: Sequence[Tokens]) -> TokenBatch:
    """Which token pads does not matter: attention and mask leave it out."""
    left, right = max(map(len, prompts)), max(map(len, answers))
    pairs = list(zip(prompts, answers, strict=True))
    ids = [[0] * (left - len(p)) + [*p, *a] + [0] * (right - len(a)) for p, a in pairs]
    attention = [[0] * (left - len(p)) + [1] * (len(p) + len(a)) + [0] * (right - len(a)) for p, a in pairs]
    mask = [[1.0] * len(a) + [0.0] * (right - len(a)) for a in answers]
    return TokenBatch(torch.tensor(ids), torch.tensor(attention), torch.tensor(mask))


class TokenStats(NamedTuple):
    """For each answer token: its log-probability, the entropy of its distribution, and the value before it."""

    logp: Tensor
    entropy: Tensor
    value: Tensor


class ActorCritic(torch.nn.Module):
    """The LLM, and a value head on its last layer or on a trunk of its own."""

    def __init__(self, lm: Any, trunk: Any, ends: frozenset[int]) -> None:
        super().__init__()
        self.lm, self.trunk, self.ends = lm, trunk, sorted(ends)
        self.head = torch.nn.Linear(lm.config.get_text_config().hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)  # all values start at 0
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: TokenBatch) -> TokenStats:
        width = batch.mask.shape[1]
        logits, states = run(self.lm, batch, states=self.trunk is None)
        if self.trunk is not None:
            states = self.trunk(**inputs(self.trunk, batch), use_cache=False).last_hidden_state
        with torch.autocast(batch.ids.device.type, enabled=False):  # values are regressed, and bf16 has 8 bits
            value = self.head(states[:, -width - 1 : -1].float()).squeeze(-1)
        return TokenStats(*self.answer_logp(logits, batch), value)

    def answer_logp(self, logits: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each answer token, under the distribution it was sampled from."""
        logits = logits.float().clone()
        logits[:, 0, self.ends] = FORBIDDEN
        logp = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logp.exp() * logp).sum(-1)
        answers = batch.ids[:, -batch.mask.shape[1] :, None]
        return logp.gather(2, answers).squeeze(-1), entropy


def run(lm: Any, batch: TokenBatch, *, states: bool = False) -> tuple[Tensor, Any]:
    """Logits of the answer tokens and, if asked for, the last layer's states of all tokens."""
    width = batch.mask.shape[1]
    options = {"logits_to_keep": width + 1} if "logits_to_keep" in inspect.signature(lm.forward).parameters else {}
    out = lm(**inputs(lm, batch), output_hidden_states=states, use_cache=False, **options)
    return out.logits[:, -width - 1 : -1], out.hidden_states[-1] if states else None


def inputs(model: Any, batch: TokenBatch) -> dict[str, Tensor]:
    tensors = {"input_ids": batch.ids, "attention_mask": batch.attention}
    if "position_ids" in inspect.signature(model.forward).parameters:
        tensors["position_ids"] = (batch.attention.cumsum(1) - 1).clamp(min=0)
    return tensors


@dataclass
class Learner:
    checkpoint: Checkpoint
    policy: Policy
    net: ActorCritic
    reference: Any
    """A frozen copy; with LoRA, the model itself, whose adapters are switched off to act as the reference."""

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        if hasattr(self.reference, "disable_adapter"):
            with self.reference.disable_adapter():
                yield self.net.lm
        else:
            yield self.reference

    def trainable(self) -> dict[str, Tensor]:
        """The parameters that training changes, by name; tied weights once."""
        return {name: weight for name, weight in self.net.named_parameters() if weight.requires_grad}

    def save(self, folder: Path) -> None:
        """As a transformers checkpoint; with LoRA only the adapters."""
        weights = self.reference if hasattr(self.reference, "disable_adapter") else self.net.lm
        self.net.lm.generation_config = generation(eos_token_id=sorted(self.checkpoint.ends))
        weights.save_pretrained(folder, safe_serialization=True)
        self.checkpoint.tokenizer.save_pretrained(folder)
        make_readable(folder)


def load_learner(config: PpoConfig) -> Learner:
    spec, lora, loading = config.policy, config.lora, config.weights["loading"]
    if lora and loading.adapter:
        raise BadInput(f"policy {spec}: lora would put adapters on top of an adapter; merge that one first")
    if loading.dtype not in ("auto", "fp32"):
        raise BadInput(f"policy {spec}: weights stay in 32 bits in training; GPUs compute in bf16 anyway")
    # not the shared copy: a reward model of the same run may use these weights, and training changes ours
    checkpoint = load(config.weights["model"], "causal", replace(loading, dtype="fp32"))
    lm = checkpoint.model
    trunk = copy.deepcopy(lm.base_model) if config.recipe.separate_critic else None
    reference = with_lora(lm, lora, config.seed) if lora else copy.deepcopy(lm).requires_grad_(False)
    if lora and trunk is not None:
        with_lora(trunk, lora, config.seed)
    policy = Policy(checkpoint, batch=config.per_pass)
    return Learner(checkpoint, policy, ActorCritic(lm, trunk, checkpoint.ends), reference)


def with_lora(model: Any, rank: int, seed: int) -> Any:
    """Adapters on all linear layers, put into the model itself (Hu et al. 2021, arXiv 2106.09685)."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtra("LoRA", "train") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
