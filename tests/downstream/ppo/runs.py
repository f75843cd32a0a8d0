"""Small PPO runs: a tiny policy, people who say what they want, and rewards anybody can check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from prb.downstream.ppo import PpoConfig
from prb.grading import Answered, Grades
from prb.models.scripted import ScriptedScorer
from prb.types import Ask, Failure
from tests.conftest import make_row
from tests.llm.tiny import tokenizer

BRIEF, LONG = "keep it short", "the quick brown fox jumps over the lazy dog"


def writer(folder: Path, *, end: float = 2.5, seed: int = 0) -> Path:
    """A tiny GPT-2 with random weights that ends an answer now and then: `end` is added to that token's logit."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    words = tokenizer()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    size = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    shape = GPT2Config(vocab_size=len(words), **size, **ids, tie_word_embeddings=False, initializer_range=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = GPT2LMHeadModel(shape)
    with torch.no_grad():  # a constant part of the last layer, which one token's logit picks up
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight.sub_(model.lm_head.weight.mean(1, keepdim=True))
        model.lm_head.weight[2] += end / 32
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def people(path: Path, rows: int, *posts: str) -> Path:
    """One question; each person's only post is one of these, in turn."""
    made = [
        make_row(n, question="the lazy dog", profile=[{"id": "1", "category": "", "text": posts[n % len(posts)]}])
        for n in range(rows)
    ]
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in made))
    return path


def brevity(ask: Ask) -> float:
    """Brevity, for a person who wants it; from 4 characters down it is brief enough."""
    return -max(len(ask.answer), 4) / 10 if ask.query.posts[0].text == BRIEF else 0.0


def length(ask: Ask) -> float:
    """Brevity for one kind of person, and as much as 30 characters for the other."""
    worth = min(max(len(ask.answer), 4), 30) / 10
    return -worth if ask.query.posts[0].text == BRIEF else worth


def scorer(function: Callable[[Ask], float | Failure] = brevity) -> ScriptedScorer:
    return ScriptedScorer(function, function.__name__)


class ShortIsGood:
    """A grader that needs no model: an answer of 8 characters or less meets every aspect."""

    fingerprint, remote, validity = "short-is-good", False, "validity: made up for tests"

    def grade(self, answers: Any) -> list[Grades | Failure]:
        return [self._one(answered) for answered in answers]

    def _one(self, answered: Answered) -> Grades:
        return Grades(aspects=tuple(2.0 * (len(answered.answer) <= 8) for _ in answered.rubric))


def config(weights: Path, data: Path, out: Path, /, **changes: Any) -> PpoConfig:
    settings: dict[str, Any] = {
        "policy": f"transformers/{weights}?batch=16",
        "model": "mine",
        "dataset": str(data),
        "steps": 3,
        "batch": 8,
        "minibatch": 4,
        "epochs": 2,
        "lr": 1e-3,
        "max_tokens": 6,
        "max_prompt": 128,
        "holdout": 4,
        "grader": None,
        "out": out,
    }
    return PpoConfig(**{**settings, **changes})
