"""`--protocol paper`: the procedure of the paper's released scripts, step by step, to compare with published numbers.

It does on purpose what the rest of this project avoids: no profile, bf16, special tokens twice, truncation on the right
at 8,192 tokens, batches of 8 in file order, one random answer order drawn in file order, unparsed verdicts counted as
"A", ties as lost. Every run made this way says so in its config and summary. Only the judge prompt's wording is ours.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from prb.config import Condition
from prb.errors import BadInput, Unreachable
from prb.llm import LLM, Message, Request, Sampling, make_llm
from prb.prompts import fill, load
from prb.registry import Spec
from prb.types import Failure, Item, Outcome

BATCH, MAX_LENGTH, SEED, JUDGE_TOKENS = 8, 8192, 42, 512


class Logits(Protocol):
    """A tokenizer and a head: texts of one padded batch in, a row of logits each out."""

    fingerprint: str

    def template(self, question: str, answer: str) -> str: ...
    def logits(self, texts: Sequence[str]) -> list[list[float]]: ...


@dataclass(frozen=True)
class PaperScoring:
    """The scalar evaluator: chosen and rejected of each row, eight texts a batch."""

    name: str
    head: Logits

    def batch(
        self, items: Sequence[Item], clusters: Sequence[str], conditions: Sequence[Condition]
    ) -> Iterator[Outcome]:
        texts = iter([self.head.template(item.question, answer) for item in items for answer in item.answers])
        rows: list[list[float]] = []
        while part := list(islice(texts, BATCH)):
            rows += self.head.logits(part)
        for n, item in enumerate(items):
            chosen, rejected = (paper_score(row) for row in rows[2 * n : 2 * n + 2])
            won = float(chosen > rejected)
            yield _outcome(self.name, item, clusters[n], conditions[0], won, scores=(chosen, rejected))

    def recall(self, *_: Any) -> None:
        """Nothing is remembered between rows."""


def paper_score(logits: Sequence[float]) -> float:
    """One logit as it is; of several the last softmax probability."""
    if len(logits) == 1:
        return float(logits[0])
    from scipy.special import softmax

    return float(softmax(logits)[-1])


@dataclass(frozen=True)
class PaperJudging:
    """The generative evaluator: one order a row, drawn before anything is asked."""

    name: str
    llm: LLM
    template: str
    chosen_is_a: Mapping[str, bool]

    def batch(
        self, items: Sequence[Item], clusters: Sequence[str], conditions: Sequence[Condition]
    ) -> Iterator[Outcome]:
        sampling = Sampling(temperature=0.0, max_tokens=JUDGE_TOKENS)
        replies = self.llm.complete([Request((Message("user", self._prompt(item)),), sampling) for item in items])
        for n, (item, reply) in enumerate(zip(items, replies, strict=True)):
            if isinstance(reply, Failure):
                raise Unreachable(
                    f"{item.id}: {reply}; the paper's procedure has no place for failures, so the run stops"
                )
            verdict = paper_verdict(reply.text)
            won = float((verdict == "A") == self.chosen_is_a[item.id])
            first = "first" if won else "second"
            verdicts = (first, None) if self.chosen_is_a[item.id] else (None, "second" if won else "first")
            yield _outcome(self.name, item, clusters[n], conditions[0], won, verdicts=verdicts, text=(reply.text,))

    def recall(self, *_: Any) -> None:
        """Nothing is remembered between rows."""

    def _prompt(self, item: Item) -> str:
        a, b = item.answers if self.chosen_is_a[item.id] else item.answers[::-1]  # type: ignore[misc]
        return fill(self.template, question=item.question, answer_a=a, answer_b=b)


def paper_verdict(text: str) -> str:
    """What follows the first `result:` after any reasoning; everything that is not clearly B counts as A."""
    said = text.rsplit("</think>", maxsplit=1)[-1].replace('"', "").replace("*", "").lower()
    return "B" if said.partition("result:")[2].strip().startswith("b") else "A"


def paper_orders(ids: Sequence[str], subsets: Sequence[str]) -> dict[str, bool]:
    """Whether chosen is A: one draw a row in file order, from a generator seeded anew for each subset."""
    generators = {subset: random.Random(SEED) for subset in subsets}  # noqa: S311
    return {own: generators[subset].random() < 0.5 for own, subset in zip(ids, subsets, strict=True)}


def _outcome(name: str, item: Item, cluster: str, condition: Condition, won: float, **more: Any) -> Outcome:
    scores = more.get("scores")
    margin = scores[0] - scores[1] if scores else won - 0.5
    return Outcome(
        pair=item.id,
        user=item.user,
        cluster=cluster,
        model=name,
        condition=condition,
        credit=won,
        margin=margin,
        **more,
    )


def paper_scoring(
    name: str, text: str, ids: Sequence[str], subsets: Sequence[str], prompt: Path | None
) -> tuple[PaperScoring | PaperJudging, str]:
    """The evaluator for the spec `text`, called `name` in outcomes, and its fingerprint."""
    spec = Spec.parse(text)
    if spec.name == "classifier":
        head = Classifier(spec.options["path"], spec.options.get("device", "cpu"))
        return PaperScoring(name, head), head.fingerprint
    if spec.name == "judge":
        llm = make_llm(spec.options["llm"])
        template = prompt.read_text("utf-8") if prompt else load("paper_judge")
        wording = hashlib.sha256(template.encode()).hexdigest()[:12]
        return PaperJudging(name, llm, template, paper_orders(ids, subsets)), f"paper-{llm.fingerprint}-{wording}"
    raise BadInput(f"{name!r}: the paper's procedure knows `classifier?path=…` and `judge?llm=…` only")


class Classifier:
    def __init__(self, path: str, device: str) -> None:
        from prb.engine.load import Loading
        from prb.engine.load import load as load_checkpoint

        checkpoint = load_checkpoint(path, "classifier", Loading(dtype="bf16", device=device))
        self.fingerprint = f"paper-{checkpoint.fingerprint}"
        self._tokenizer, self._model = checkpoint.tokenizer, checkpoint.model

    def template(self, question: str, answer: str) -> str:
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text: str = self._tokenizer.apply_chat_template(turns, tokenize=False)
        return text

    def logits(self, texts: Sequence[str]) -> list[list[float]]:
        import torch

        settings = {"padding": True, "truncation": True, "max_length": MAX_LENGTH, "return_tensors": "pt"}
        inputs = self._tokenizer(list(texts), **settings).to(self._model.device)
        with torch.inference_mode():
            rows: list[list[float]] = self._model(**inputs).logits.float().tolist()
        return rows
