"""`--protocol paper`: the procedure of the paper's released scripts, step by step, to compare with published numbers.

It does on purpose what the rest of this project avoids: no profile, bf16 (softmax included, so that scores tie),
special tokens twice, truncation on the right at 8,192 tokens, batches of 8 in file order, one random answer order drawn
in file order, empty and unparsed replies counted as "A", ties as lost. Subsets are scored one after the other, as the
scripts do. Every run made this way says so in its config and summary. Only the wording of the judge prompt is ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from prb.config import ConditionName
from prb.data.schema import read_posts
from prb.errors import BadInput, PrbError, Unreachable
from prb.evaluation.conditions import Built, PlannedRow
from prb.evaluation.config import EvaluateConfig, Paper
from prb.hashing import settings_digest
from prb.llm import Request, Sampling, make_llm
from prb.models import MODELS, check_scorer
from prb.models.baselines import wish_for_brevity
from prb.models.judge import read_template
from prb.prompts import fill, load
from prb.registry import Spec, split_alias
from prb.text.pii import mask
from prb.types import Ask, Failure, Item, Outcome, Post, Query, RewardModel, Turn
from prb.work import Call, CalledModel, Replies, call_key, chunks

BATCH, MAX_LENGTH, SEED, JUDGE_TOKENS = 8, 8192, 42, 512
ROWS = BATCH // 2
FIXED = ("k", "history", "planner", "orders", "seed")
"""Settings that the scripts leave no choice about."""
OPTIONS = {"classifier": {"path", "revision", "device", "device_map", "adapter", "trust_remote_code"}, "judge": {"llm"}}
"""Models that the scripts know, and the options that leave their procedure as it is."""
SLOTS = {"Response_A": "answer_a", "Response_B": "answer_b"}
"""Names that the scripts' own prompts use, and ours."""


def paper_config(config: EvaluateConfig, paper: Paper) -> EvaluateConfig:
    """The config with what the paper fixes; whatever cannot be honored is refused before anything is read."""
    if config.condition not in ((), ("none",)) or config.task != "pairs":
        raise BadInput("--protocol paper shows no profile and scores pairs only: omit --condition and --task")
    if config.batch % ROWS:
        raise BadInput(f"--protocol paper: --batch {config.batch} must be a multiple of {ROWS} (8 texts)")
    defaults = EvaluateConfig()
    for name in FIXED:
        if getattr(config, name) != getattr(defaults, name):
            raise BadInput(f"--protocol paper leaves no choice of {name}: omit --{name.replace('_', '-')}")
    specs = [Spec.parse(split_alias(model)[1]) for model in config.model]
    needed = {"classifier": "path", "judge": "llm"}
    if not specs or any(needed.get(spec.name) not in spec.options for spec in specs):
        raise BadInput("--protocol paper knows --model classifier?path=… and judge?llm=… only")
    for spec in specs:
        for option in sorted(spec.options.keys() - OPTIONS[spec.name]):
            raise BadInput(f"--protocol paper leaves no choice of {option}: omit it from {str(spec)!r}")
    if paper.prompt and not any(spec.name == "judge" for spec in specs):
        raise BadInput("--protocol paper?prompt=… is for a judge, and no --model is one")
    judge_prompt(paper.prompt)
    return replace(config, condition=("none",))


def judge_prompt(path: Path | None) -> tuple[Turn, ...]:
    """System and user message with slots: ours, those in a folder such as the paper's `prompts/`, or one file alone."""
    names = {"question", *SLOTS.values()}
    if path is None:
        return Turn("system", load("paper_system").strip()), Turn("user", load("paper_user").strip())
    if not path.is_dir():
        return (Turn("user", read_template(path, names, SLOTS).strip()),)
    system, user = read_template(path / "pairwise_system.txt", set()), path / "pairwise_user.txt"
    return Turn("system", system.strip()), Turn("user", read_template(user, names, SLOTS).strip())


def paper_orders(subsets: Sequence[tuple[str, int]]) -> list[bool]:
    """Whether chosen is A: one draw per row in file order, from a generator seeded anew for each subset."""
    generator = random.Random(SEED)  # noqa: S311
    draws = [generator.random() < 0.5 for _ in range(1 + max(number for _, number in subsets))]
    return [draws[number] for _, number in subsets]


class PaperScoring:
    """The scalar evaluator: a tokenizer and a classification head, chosen and rejected of each row, eight texts per
    batch."""

    def __init__(self, name: str, spec: Spec) -> None:
        from prb.engine.load import load as load_checkpoint

        arguments = MODELS.check(spec)
        path = arguments["path"]
        checkpoint = load_checkpoint(path, "classifier", replace(arguments["loading"], dtype="bf16"))
        self._tokenizer, self._model = checkpoint.tokenizer, checkpoint.model
        if not self._tokenizer.chat_template:
            raise BadInput(f"{path} has no chat template, so the paper's script cannot score it")
        if not checkpoint.came_with_padding:
            raise BadInput(f"{path} has no padding token, so the paper's script cannot score it")
        self.name = name
        self.called = CalledModel(name, self._answer, f"paper-{checkpoint.fingerprint}")
        self._start = self.called.key_start()

    def _answer(self, texts: Sequence[str]) -> list[float]:
        """One logit as it is; of several the last softmax probability, row by row and in the model's own dtype."""
        import torch

        settings = {"padding": True, "truncation": True, "max_length": MAX_LENGTH, "return_tensors": "pt"}
        device, scores = self._model.get_input_embeddings().weight.device, list[float]()
        for batch in chunks(texts, BATCH):
            with torch.inference_mode():
                rows = self._model(**self._tokenizer(batch, **settings).to(device)).logits
                scores += [float(row[0] if len(row) == 1 else torch.softmax(row, dim=-1)[-1]) for row in rows]
        return scores

    def plan_row(self, item: Item, cluster: str, condition: ConditionName, plans: Mapping[str, object]) -> PlannedRow:  # noqa: ARG002
        asked = {"role": "user", "content": item.question}
        chats = [[asked, {"role": "assistant", "content": answer}] for answer in item.answers]
        texts = [str(self._tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats]
        # by row: what a text scores depends on its batch, so none may be left out of it
        calls = tuple(Call(call_key(self._start, item.id, str(n), text), text) for n, text in enumerate(texts))
        return PlannedRow(item, cluster, condition, Built(Query(question=item.question)), calls)

    def outcome(self, row: PlannedRow, replies: Replies) -> Outcome:
        replied = [replies[call.key] for call in row.calls]
        if failures := [reply.failure for reply in replied if reply.failure]:
            raise PrbError(f"{row.item.id}: {failures[0]}; the paper's procedure has no place for it")
        chosen, rejected = (float(reply.value) for reply in replied)  # type: ignore[arg-type]
        won, margin = float(chosen > rejected), chosen - rejected
        return Outcome(model=self.name, scores=(chosen, rejected), credit=won, margin=margin, **row.about)


class PaperJudging:
    """The generative evaluator: one order per row, drawn before anything is asked."""

    def __init__(self, name: str, spec: Spec, config: EvaluateConfig, chosen_is_a: Mapping[str, bool]) -> None:
        llm = make_llm(spec.options["llm"])
        self.name, self._chosen_is_a, self._masked = name, chosen_is_a, config.masks(llm)
        self._prompt = judge_prompt(config.paper.prompt if config.paper else None)
        fingerprint = f"paper-{llm.fingerprint}-{settings_digest(self._prompt)}"
        self.called = CalledModel(name, llm.complete, fingerprint, llm.remote)
        self._start = self.called.key_start()

    def plan_row(self, item: Item, cluster: str, condition: ConditionName, plans: Mapping[str, object]) -> PlannedRow:  # noqa: ARG002
        a, b = item.answers if self._chosen_is_a[item.id] else item.answers[::-1]
        question = mask(item.question) if self._masked else item.question
        chat = tuple(Turn(r, fill(text, question=question, answer_a=a, answer_b=b)) for r, text in self._prompt)
        request = Request(chat, Sampling(temperature=0.0, max_tokens=JUDGE_TOKENS))
        call = Call(call_key(self._start, *(part for turn in chat for part in turn)), request)
        return PlannedRow(item, cluster, condition, Built(Query(question=item.question)), (call,))

    def outcome(self, row: PlannedRow, replies: Replies) -> Outcome:
        item, reply = row.item, replies.take(row.calls[0].key)
        failure = reply.as_failure
        if failure and failure.reason != "empty reply":
            raise Unreachable(f"{item.id}: {failure}; the paper's procedure has no place for failures: the run stops")
        text = str(reply.value or "")
        verdict, chosen_is_a = paper_verdict(text), self._chosen_is_a[item.id]
        won = float((verdict or "A") == ("A" if chosen_is_a else "B"))
        choice = "second" if verdict == "B" else "first"
        return Outcome(
            model=self.name,
            verdicts=(choice, None) if chosen_is_a else (None, choice),
            credit=won,
            margin=won - 0.5 if verdict else 0.0,
            text=(text,),
            tokens=reply.tokens,
            cost=reply.cost,
            **row.about,
        )


def paper_verdict(text: str) -> str | None:
    """A or B, if that is how the text goes on after the first `result:` that follows any reasoning."""
    reply = text.rsplit("</think>", maxsplit=1)[-1].replace('"', "").replace("*", "").lower()
    verdict = reply.partition("result:")[2].strip()[:1].upper()
    return verdict if verdict in ("A", "B") else None


class PersonalizedReward(TypedDict):
    predicted_reward: float
    """σ of the model's score. Not calibrated: compare it between answers of one model, not between models."""
    human_preference_score: float
    alignment_score: float
    """1 − |predicted − human|, within 0..1."""


def evaluate_personalized_reward(
    model_output: str,
    user_profile: str | Post | Sequence[str | Post | Mapping[str, Any]] | Mapping[str, Any] | None,
    human_preference_score: float,
    model: str | RewardModel | None = None,
    *,
    question: str = "",
) -> PersonalizedReward:
    """How close a model's reward for `model_output` comes to this user's own score of it (0..1).

    `user_profile` is a text, texts, posts, or an attribute map such as `{"preference_for_brevity": "high"}`. Without a
    `model`, `attributes` reads wishes about length, as in this map, and `embedding` anything else. The number is not
    calibrated, and the alignment of a single answer says little about a model: use `prb evaluate --task ratings` for
    many.
    """
    if not isinstance(model_output, str) or not model_output.strip():
        raise BadInput(f"model_output must be a text that is not empty, not {model_output!r}")
    if not 0 <= human_preference_score <= 1:
        raise BadInput(f"human_preference_score must be between 0 and 1, not {human_preference_score}")
    posts = read_posts(user_profile)
    if model is None:
        model = "attributes" if any(wish_for_brevity(post.text) for post in posts) else "embedding"
    scorer = check_scorer(str(model), MODELS.make(model) if isinstance(model, str) else model, "this needs")
    query = Query(question=question, user="you", posts=posts)
    (score,) = scorer.score([Ask(query, model_output)])
    if isinstance(score, Failure) or not math.isfinite(score):
        raise PrbError(f"no score: {score}")
    odds = math.exp(-abs(score))
    predicted = 1 / (1 + odds) if score >= 0 else odds / (1 + odds)
    alignment = min(1.0, max(0.0, 1 - abs(predicted - human_preference_score)))
    return PersonalizedReward(
        predicted_reward=predicted, human_preference_score=human_preference_score, alignment_score=alignment
    )
