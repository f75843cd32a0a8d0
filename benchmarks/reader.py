"""Can a 1.5B LLM read what a user wants? `axes` on its states, with posts weighed by the question.

prb models pull qwen2.5-1.5b
python benchmarks/reader.py               (on `dev`; half an hour for the states of all texts, which are then cached)
python benchmarks/reader.py --split test  (each call is a look: docs/tables/training.md counts them)

The head is that of `prb train axes`. Posts are centered on the mean post of the bank, which takes out what all users
share, and weighed by how near they are to the question, so that an exception counts where it applies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import prb
from prb.data.source import open_source
from prb.models.personal.features import Cached
from prb.models.personal.methods import Axes
from prb.text.encoders import ENCODERS, Matrix, Vector
from prb.training.learning import encode_lessons
from prb.types import Ask, Failure
from prb.weights import resolve_weights

LLM, LAYER = "qwen2.5-1.5b", 18
SHARP = 1.0
"""By how much a post counts more that is nearer to the question by one standard deviation: e to this."""
TOKENS = 1600
"""In a forward pass."""


class InChat:
    """Mean states of a text as the message of a user: the token that all others attend to is then none of its own."""

    fingerprint = f"in-chat-{LLM}-{LAYER}"

    def __init__(self) -> None:
        self._loaded: tuple[Any, Any] | None = None

    def texts(self, texts: Sequence[str]) -> Matrix:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if self._loaded is None:
            folder = resolve_weights(LLM)
            body = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).model.eval()
            body.layers, body.norm = body.layers[:LAYER], torch.nn.Identity()
            self._loaded = body, AutoTokenizer.from_pretrained(folder)
        body, tokenizer = self._loaded

        def tokens(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

        start, end, written = tokens("<|im_start|>user\n"), tokens("<|im_end|>"), [tokens(text) for text in texts]
        states = np.zeros((len(texts), body.config.hidden_size), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda n: len(written[n]))
        while order:
            room = max(1, TOKENS // (len(written[order[-1]]) + len(start) + len(end)))
            batch, order = order[-room:], order[:-room]
            longest = max(len(written[n]) for n in batch) + len(start) + len(end)
            rows = [[*start, *written[n], *end] for n in batch]
            padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            with torch.inference_mode():
                found = body(input_ids=padded, attention_mask=mask, use_cache=False).last_hidden_state
            for row, n in enumerate(batch):
                states[n] = found[row, len(start) : len(start) + len(written[n])].float().mean(dim=0).numpy()
        return states

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        return list(self.texts([ask.answer for ask in asks]))


class Reader:
    """A reward model: the mean match of the user's posts with an answer."""

    fingerprint = f"reader-{InChat.fingerprint}-{SHARP:g}"

    def __init__(self) -> None:
        self._features, self._near = Cached(InChat()), ENCODERS.make("static")
        lessons = encode_lessons(open_source("mirror?split=train&users=2"), self._features)
        self._match = Axes().teach(lessons)["match"]
        self._mean_post = np.concatenate([posts for lesson in lessons for posts in lesson[:2]]).mean(axis=0)

    def score(self, asks: Sequence[Ask]) -> list[float]:
        rewards = []
        for query, answer in asks:
            texts = [post.text for post in query.posts]
            if not texts:
                rewards.append(0.0)
                continue
            posts, suited = self._features.texts(texts) - self._mean_post, self._features.texts([answer])[0]
            near = self._near.encode(texts) @ self._near.encode([query.question])[0]
            weights = np.exp(SHARP * (near - near.mean()) / max(near.std(), 1e-9))
            rewards.append(float(np.average(posts @ (self._match @ suited), weights=weights)))
        return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="dev", choices=("dev", "test", "hard"))
    split = parser.parse_args().split
    result = prb.evaluate(models={LLM: Reader()}, split=split, k=160, condition=("none", "profile", "shuffled"))
    print(result)
    print(f"person effect: {result.metric('person_effect')}")


if __name__ == "__main__":
    main()
