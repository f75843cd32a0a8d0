"""Tuning the LLM behind the features of `matcher` with LoRA, so that posts of a pole are near the answers for it.

Needs the `train` extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from prb.data.named.mirror import Lesson
from prb.data.source import Source
from prb.engine.load import Checkpoint, Loading
from prb.errors import BadInput, MissingExtra, PrbError
from prb.hashing import draw
from prb.models.personal.features import FEATURES, Features
from prb.models.personal.head import Head, Scaler
from prb.models.personal.methods import METHODS, Matcher
from prb.progress import Progress
from prb.registry import Spec
from prb.training.config import CHECKPOINT, LORA_ALPHA
from prb.training.learning import Ints, lessons_of, load_state, save_state
from prb.weights import make_readable
from prb.work import chunks

ADAPTER = "adapter"
HELD_AXES = 0.1
"""Share of the axes that only say which pass was best, …"""
HELD_POSTS, HELD_QUESTIONS = 6, 4
"""… by so many posts per pole and questions of each."""
LONGEST = 256
"""Tokens of a text that are read while tuning."""
TOGETHER = 16
"""Texts of a forward pass."""
TINY = 1e-6


def tune(
    matcher: str, source: Source, features: str, folder: Path, seed: int, progress: Progress
) -> tuple[int, dict[str, Any]]:
    """Write the adapter of the best pass into `folder`, an empty one if no pass helps; returns that pass, and a report
    on all."""
    method, spec = METHODS.make(matcher), Spec.parse(features)
    if not isinstance(method, Matcher):
        raise TypeError(f"{matcher} is not tuned")
    options = FEATURES.check(spec) if spec.name == "hidden" else {}
    if not options.get("alone") or options.get("pool", "mean") != "mean":
        raise BadInput(f"matcher tunes an LLM: --features 'hidden?lm=smollm2&layer=22&alone=true', not {features!r}")
    if options["loading"].adapter:
        raise BadInput("matcher trains an adapter of its own; features with adapter= cannot be tuned")
    order = sorted(lessons_of(source), key=lambda lesson: draw(seed, lesson.axis))
    if len(order) < 2:
        raise BadInput("matcher needs at least two labeled axes")
    held = order[: max(1, round(HELD_AXES * len(order)))]
    neutral: list[str] = getattr(source, "neutral", list)()
    tuner = Tuner(method, options["lm"], options.get("layer", -1), options["loading"], seed, options.get("lead", ""))
    progress.begin("reading texts with the untuned LLM")
    tuner.measure(order)
    checkpoint = folder / CHECKPOINT
    curve = load_state(checkpoint, tuner.weights, tuner.optimizer, progress)
    if curve is None:
        curve = [{"pass": 0, "held_axes": tuner.matched(held)}]
        tuner.save(folder / ADAPTER)
    progress.begin(f"tuning {options['lm']}", total=method.passes, done=len(curve) - 1)
    for number in range(len(curve), method.passes + 1):
        loss = tuner.one_pass(order[len(held) :], neutral, number)
        curve.append({"pass": number, "loss": loss, "held_axes": tuner.matched(held)})
        if curve[-1]["held_axes"] > max(point["held_axes"] for point in curve[:-1]):
            tuner.save(folder / ADAPTER)
        save_state(checkpoint, tuner.weights, tuner.optimizer, curve)
        progress.advance()
    best = max(curve, key=lambda point: point["held_axes"])["pass"]
    return best, {"tuning": curve, "held_axes": [lesson.axis for lesson in held]}


def typical(lessons: Sequence[Lesson]) -> dict[str, list[str]]:
    """Texts by which states are standardized: two posts for each pole, and two answers."""
    return {
        "posts": [text for lesson in lessons for posts in lesson.posts for text in posts[:2]],
        "answers": [text for lesson in lessons for text in lesson.answers[0][1:]],
    }


def tuned_head(matcher: str, source: Source, features: Features) -> Head:
    """On the features of the tuned LLM, whose states have other means than before, which all posts would share."""
    texts = typical(lessons_of(source))
    return Head(matcher, {}, Scaler.fit(*(features.texts(texts[kind]) for kind in ("answers", "posts"))), np.zeros(0))


def frozen_blocks(base: Checkpoint, body: Any, count: int) -> tuple[Any, Any] | None:
    """The first blocks of a body and the others, if one after the other they give its states; `None` if they do not."""
    import torch

    from prb.engine.heads import agree, only_blocks
    from prb.engine.states import RUN_ERRORS, padded_inputs

    with suppress(*RUN_ERRORS), torch.inference_mode():
        lower, upper = only_blocks(body, 0, count), only_blocks(body, count, len(body.layers))
        lower._modules["norm"] = torch.nn.Identity()
        inputs = {**padded_inputs([base.probe_tokens], next(base.model.parameters()).device), "use_cache": False}
        expected, inputs["inputs_embeds"] = (part(**inputs).last_hidden_state for part in (body, lower))
        del inputs["input_ids"]
        states = upper(**inputs)
        if agree(states.last_hidden_state, expected, expected.dtype):
            return lower, upper
    return None


class Step(NamedTuple):
    """The texts of a step of tuning, and what they have to do with each other."""

    posts: list[tuple[str, int, int, int]]
    """Text, axis (-1: none), pole, and the question to which it makes an exception (-1: none)."""
    questions: list[tuple[int, int, str, str]]
    """Axis, the pole to which it is an exception (-1: none), the answers for the first pole and for the second."""

    @classmethod
    def drawn(
        cls, lessons: Sequence[Lesson], neutral: Sequence[str], method: Matcher, rng: np.random.Generator
    ) -> Self:
        step = cls([], [])
        for axis, lesson in enumerate(lessons):
            for pole, texts in enumerate(lesson.posts):
                step.posts.extend((texts[n], axis, pole, -1) for n in rng.permutation(len(texts))[: method.posts])
            for n in rng.permutation(len(lesson.answers))[: method.questions]:
                step.questions.append((axis, -1, *lesson.answers[n][1:]))
            if lesson.exceptions:
                pole, post, *answers = lesson.exceptions[rng.integers(len(lesson.exceptions))]
                step.posts.append((post, axis, pole, len(step.questions)))
                step.questions.append((axis, pole, *answers))  # type: ignore[arg-type]
        step.posts.extend((neutral[n], -1, 0, -1) for n in rng.permutation(len(neutral))[: method.posts])
        return step

    def sides(self) -> Ints:
        """(posts, questions): 1 where a post speaks for the first answer, -1 for the second, 0 where for neither."""
        of_post = np.array([post[1:] for post in self.posts])
        axis, pole, exception = of_post[:, :1], of_post[:, 1:2], of_post[:, 2:]
        asked = np.array([question[0] for question in self.questions])[None]
        excepted = exception == np.arange(len(self.questions))[None]
        says_something = (axis == asked) & ((exception < 0) | excepted)
        return np.asarray(np.where(excepted, -1, 1) * (1 - 2 * pole) * says_something, dtype=np.int64)

    def users(self, question: int, rng: np.random.Generator) -> Iterator[Ints]:
        """The posts of two users who want the first answer and the second: a few that decide, and others."""
        axis, excepted, *_ = self.questions[question]
        others = [n for n, post in enumerate(self.posts) if post[1] != axis]
        for wanted in (0, 1):
            pole = wanted if excepted < 0 else excepted
            same = [n for n, (_, *of) in enumerate(self.posts) if of == [axis, pole, -1]]
            few = rng.permutation(same)[: rng.integers(1, max(2, len(same) + 1))].tolist()
            if excepted == 1 - wanted:
                few += [n for n, post in enumerate(self.posts) if post[3] == question]
            yield np.array(few + rng.permutation(others)[: max(1, 2 * len(others) // 3)].tolist(), dtype=np.int64)


class Tuner:
    def __init__(self, method: Matcher, lm: str, layer: int, loading: Loading, seed: int, lead: str = "") -> None:
        try:
            import peft
            import torch
        except ImportError:
            raise MissingExtra("matcher", "train") from None
        from prb.engine.heads import at_layer
        from prb.engine.load import load as load_weights

        torch.manual_seed(seed)
        base = load_weights(lm, "causal", replace(loading, dtype=method.dtype))
        layer %= base.model.config.get_text_config().num_hidden_layers + 1
        tuned = range(layer - min(method.layers or layer, layer), layer)
        linear = [name for name, part in base.model.named_modules() if isinstance(part, torch.nn.Linear)]
        numbered = ((name, re.search(r"\.(\d+)\.", name)) for name in linear)
        targets = [name for name, number in numbered if number and int(number[1]) in tuned]
        lora = peft.LoraConfig(r=method.rank, lora_alpha=LORA_ALPHA * method.rank, target_modules=targets)
        self._model: Any = peft.get_peft_model(base.model, lora)
        written: Any = self._model.peft_config["default"]
        written.base_model_name_or_path = lm  # not the folder in which it lies here
        written.target_modules = sorted(targets)  # in the same order in every process
        device = next(self._model.parameters()).device
        self._in_16_bits = method.dtype == "bf16"
        self._autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=self._in_16_bits)
        adapted: list[Any] = [part for part in self._model.modules() if hasattr(part, "cast_input_dtype_enabled")]
        for part in adapted if self._in_16_bits else ():
            # the adapter's weights have 32 bits; states that are cast to 32, too, cost as much as the layers do
            part.cast_input_dtype_enabled = False
        with self._autocast():
            self._body = at_layer(base, layer)
            self._frozen = frozen_blocks(base, self._body, tuned.start) if tuned.start else None
        self._before: dict[str, Any] = {}
        """States of a text below the blocks that are tuned, which never change."""
        self._tokenizer, self._lead, self._method, self._seed = base.tokenizer, lead, method, seed
        self.weights = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=method.rate)
        self._moments = {kind: (torch.zeros(()), torch.ones(())) for kind in ("posts", "answers")}

    def measure(self, lessons: Sequence[Lesson]) -> None:
        """Mean and deviation of the untuned states, which a few directions would dominate otherwise."""
        import torch

        with torch.inference_mode():
            states = {kind: self._states(texts) for kind, texts in typical(lessons).items()}
        self._moments = {kind: (rows.mean(0).clone(), rows.std(0).clone() + TINY) for kind, rows in states.items()}

    def one_pass(self, lessons: Sequence[Lesson], neutral: Sequence[str], number: int) -> float:
        """A few texts of every axis; returns the mean loss."""
        import torch

        rng = np.random.default_rng([self._seed, number])
        shuffled = [lessons[n] for n in rng.permutation(len(lessons))]
        steps = list(chunks(shuffled, self._method.axes))
        self._model.train()
        losses = []
        for done, together in enumerate(steps):
            loss = self._loss(Step.drawn(together, neutral, self._method, rng), rng)
            if not bool(loss.isfinite()):
                raise PrbError(f"matcher: the loss is {float(loss.detach())}; try a smaller rate")
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
            left = 1 - (number - 1 + done / len(steps)) / self._method.passes
            self.optimizer.param_groups[0]["lr"] = self._method.rate * left
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses))

    def _loss(self, step: Step, rng: np.random.Generator) -> Any:
        """Of single posts, of users composed of them, and of posts that take sides on what they say nothing of."""
        import torch
        from torch.nn.functional import softplus

        method = self._method
        posts = self._encode("posts", [text for text, *_ in step.posts])
        answers = self._encode("answers", [text for *_, first, second in step.questions for text in (first, second)])
        cosines = posts @ answers.T
        first, second = cosines[:, ::2], cosines[:, 1::2]
        match, sides = method.scale * (first - second), torch.from_numpy(step.sides())
        of_posts = softplus(-(sides * match)[sides != 0]).mean()
        axes = np.array([[post[1] != question[0] for question in step.questions] for post in step.posts])
        elsewhere = match[torch.from_numpy(axes)].square().mean() if axes.any() else match.new_zeros(())
        of_users = []
        for question in range(len(step.questions)):
            gaps = [
                (method.near * torch.stack([first[shown, question], second[shown, question]])).logsumexp(1)
                for shown in step.users(question, rng)
            ]
            wanted = (gaps[0][0] - gaps[0][1], gaps[1][1] - gaps[1][0])
            # both users get what they want, and so does the sum, in which general taste cancels
            margins = method.scale / method.near * torch.stack([*wanted, wanted[0] + wanted[1]])
            of_users.append(softplus(-margins).mean())
        return of_posts + torch.stack(of_users).mean() + method.apart * elsewhere

    def matched(self, lessons: Sequence[Lesson]) -> float:
        """How often, of a post for each pole, the right one is nearer to the first answer than to the second."""
        import torch

        self._model.eval()
        shares = []
        with torch.inference_mode():
            for lesson in lessons:
                first, second = (self._encode("posts", posts[:HELD_POSTS]) for posts in lesson.posts)
                asked = lesson.answers[:HELD_QUESTIONS]
                sides = self._encode("answers", [text for _, *pair in asked for text in pair])
                gaps = (sides[::2] - sides[1::2]).T
                shares.append(float(((first @ gaps)[:, None] > (second @ gaps)[None]).float().mean()))
        return float(np.mean(shares))

    def _encode(self, kind: str, texts: Sequence[str]) -> Any:
        """Standardized states of unit length."""
        from torch.nn.functional import normalize

        mean, deviation = self._moments[kind]
        return normalize((self._states(texts) - mean) / deviation, dim=-1)

    def _states(self, texts: Sequence[str]) -> Any:
        """Mean states of the layer, a few texts at a time, short ones together."""
        import torch

        from prb.engine.heads import with_lead
        from prb.engine.states import padded_inputs

        device = next(self._model.parameters()).device
        read = [with_lead(self._tokenizer, self._lead, text, LONGEST) for text in texts]
        order = sorted(range(len(read)), key=lambda n: len(read[n].ids))
        means = []
        for chunk in chunks(order, TOGETHER):
            inputs = padded_inputs([read[n].ids for n in chunk], device)
            weights = inputs["attention_mask"][:, :, None].float()
            for row, n in enumerate(chunk):
                weights[row, : read[n].start] = 0
            body = self._body
            if self._frozen:
                lower, body = self._frozen
                if any(texts[n] not in self._before for n in chunk):
                    with torch.no_grad(), self._autocast():
                        states = lower(**inputs, use_cache=False).last_hidden_state
                    self._before |= {texts[n]: states[row, : read[n].end].clone() for row, n in enumerate(chunk)}
                below = [self._before[texts[n]] for n in chunk]
                inputs["inputs_embeds"] = torch.nn.utils.rnn.pad_sequence(below, batch_first=True)
                del inputs["input_ids"]
            with self._autocast():
                states = body(**inputs, use_cache=False).last_hidden_state
            means.append((states * weights).sum(1) / weights.sum(1))
        return torch.cat(means)[torch.tensor(np.argsort(order))]

    def save(self, folder: Path) -> None:
        """In 16 bits if it was tuned in so many."""
        weights = {name: weight.half() if self._in_16_bits else weight for name, weight in self.weights.items()}
        self._model.save_pretrained(str(folder), state_dict=weights, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # peft's template, of which nothing is filled in
        make_readable(folder)
