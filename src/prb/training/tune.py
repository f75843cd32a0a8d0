"""LoRA on the LLM behind the features, so that posts of a pole are near the answers for it. Needs the `train` extra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.data.named.composed import Lesson
from prb.engine.load import Loading
from prb.errors import BadInput, MissingExtra, PrbError
from prb.hashing import draw
from prb.models.personal.features import FEATURES
from prb.models.personal.methods import Matcher
from prb.progress import Progress
from prb.registry import Spec
from prb.training.config import LORA_ALPHA
from prb.weights import share

ADAPTER = "adapter"
HELD = 0.1
"""Share of the axes that only say which pass was best."""
LONGEST = 256
"""Tokens of a text that are read while tuning."""
TOGETHER = 16
"""Texts of a forward pass."""
TINY = 1e-6


def tune(
    method: Matcher, lessons: Sequence[Lesson], features: str, folder: Path, seed: int, progress: Progress
) -> dict[str, Any]:
    """Write the adapter of the best pass into `folder`, an empty one if no pass helps; returns it for the card."""
    spec = Spec.parse(features)
    options = FEATURES.check(spec) if spec.name == "hidden" else {}
    if not options.get("alone") or options.get("pool", "mean") != "mean":
        raise BadInput(f"matcher tunes an LLM: --features 'hidden?lm=smollm2&layer=22&alone=true', not {features!r}")
    if options["loading"].adapter:
        raise BadInput("matcher trains an adapter of its own; features with adapter= cannot be tuned")
    order = sorted(lessons, key=lambda lesson: draw(seed, lesson.axis))
    if len(order) < 2:
        raise BadInput("matcher needs at least two labeled axes")
    held = order[: max(1, round(HELD * len(order)))]
    tuner = Tuner(method, options["lm"], options.get("layer", -1), options["loading"], seed)
    tuner.measure(order)
    curve = [{"pass": 0, "held_axes": tuner.matched(held)}]
    tuner.save(folder / ADAPTER)
    progress.begin(f"tuning {options['lm']}", total=method.passes)
    for number in range(1, method.passes + 1):
        loss = tuner.one_pass(order[len(held) :], number)
        curve.append({"pass": number, "loss": loss, "held_axes": tuner.matched(held)})
        if curve[-1]["held_axes"] > max(point["held_axes"] for point in curve[:-1]):
            tuner.save(folder / ADAPTER)
        progress.advance()
    return {"tuning": curve, "held_axes": [lesson.axis for lesson in held]}


def linear_below(model: Any, layer: int) -> list[str]:
    """Names of the linear maps in the layers that a state depends on."""
    from torch.nn import Linear

    numbered = (
        (name, re.search(r"\.(\d+)\.", name)) for name, part in model.named_modules() if isinstance(part, Linear)
    )
    return [name for name, number in numbered if number and int(number[1]) < layer]


class Tuner:
    def __init__(self, method: Matcher, lm: str, layer: int, loading: Loading, seed: int) -> None:
        try:
            import peft
            import torch
        except ImportError:
            raise MissingExtra("matcher", "train") from None
        from prb.engine.heads import at_layer
        from prb.engine.load import load

        torch.manual_seed(seed)
        base = load(lm, "causal", replace(loading, dtype="fp32"))
        layers = base.model.config.get_text_config().num_hidden_layers
        layer %= layers + 1
        lora = peft.LoraConfig(
            r=method.rank,
            lora_alpha=LORA_ALPHA * method.rank,
            target_modules=linear_below(base.model, layer),
        )
        self._model: Any = peft.get_peft_model(base.model, lora)
        self._body = at_layer(base, layer)
        self._tokenizer, self._method, self._seed = base.tokenizer, method, seed
        weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(weights, lr=method.rate)
        self._mean, self._deviation = torch.zeros(()), torch.ones(())

    def measure(self, lessons: Sequence[Lesson]) -> None:
        """Mean and deviation of the untuned states, which a few directions would dominate otherwise."""
        import torch

        with torch.inference_mode():
            states = self._states([text for lesson in lessons for posts in lesson.posts for text in posts[:2]])
        self._mean, self._deviation = states.mean(0).clone(), states.std(0).clone() + TINY

    def one_pass(self, lessons: Sequence[Lesson], number: int) -> float:
        """A few texts of every axis; returns the mean loss."""
        rng = np.random.default_rng([self._seed, number])
        shuffled = [lessons[n] for n in rng.permutation(len(lessons))]
        self._model.train()
        losses = []
        for start in range(0, len(shuffled), self._method.axes):
            loss = self._loss(shuffled[start : start + self._method.axes], rng)
            if not bool(loss.isfinite()):
                raise PrbError(f"matcher: the loss is {float(loss.detach())}; try a smaller rate")
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses))

    def _loss(self, lessons: Sequence[Lesson], rng: np.random.Generator) -> Any:
        """Posts side with their pole on their own axis, and with nobody on others."""
        import torch
        from torch.nn.functional import softplus

        posts: list[str] = []
        answers: list[str] = []
        poles, of_post, of_question = [], [], []
        for number, lesson in enumerate(lessons):
            for pole, texts in zip((1.0, -1.0), lesson.posts, strict=True):
                drawn = rng.permutation(len(texts))[: self._method.posts]
                posts += [texts[n] for n in drawn]
                poles += [pole] * len(drawn)
                of_post += [number] * len(drawn)
            for n in rng.permutation(len(lesson.answers))[: self._method.questions]:
                answers += lesson.answers[n][1:]
                of_question.append(number)
        vectors = self._encode([*posts, *answers])
        sides = vectors[len(posts) :]
        match = self._method.scale * vectors[: len(posts)] @ (sides[::2] - sides[1::2]).T
        same_axis = torch.tensor(of_post)[:, None] == torch.tensor(of_question)[None]
        right = torch.tensor(poles)[:, None] * match
        elsewhere = match[~same_axis].square().mean() if bool((~same_axis).any()) else match.new_zeros(())
        return softplus(-right[same_axis]).mean() + self._method.apart * elsewhere

    def matched(self, lessons: Sequence[Lesson]) -> float:
        """How often, of a post for each pole, the right one is nearer to the first answer than to the second."""
        import torch

        self._model.eval()
        shares = []
        with torch.inference_mode():
            for lesson in lessons:
                first, second = (self._encode(posts) for posts in lesson.posts)
                sides = self._encode([text for _, *pair in lesson.answers for text in pair])
                gaps = (sides[::2] - sides[1::2]).T
                shares.append(float(((first @ gaps)[:, None] > (second @ gaps)[None]).float().mean()))
        return float(np.mean(shares))

    def _encode(self, texts: Sequence[str]) -> Any:
        """Standardized states of unit length."""
        from torch.nn.functional import normalize

        return normalize((self._states(texts) - self._mean) / self._deviation, dim=-1)

    def _states(self, texts: Sequence[str]) -> Any:
        """Mean states of the layer, a few texts at a time, short ones together."""
        import torch

        ids = [self._tokenizer(text)["input_ids"][:LONGEST] for text in texts]
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        chunks = [order[n : n + TOGETHER] for n in range(0, len(order), TOGETHER)]
        states = torch.cat([self._mean_states([ids[n] for n in chunk]) for chunk in chunks])
        return states[torch.tensor(np.argsort(order))]

    def _mean_states(self, ids: Sequence[list[int]]) -> Any:
        import torch

        longest = max(map(len, ids))
        device = next(self._model.parameters()).device
        tokens = torch.tensor([each + [0] * (longest - len(each)) for each in ids], device=device)
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in ids], device=device)
        states = self._body(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
        weights = mask[:, :, None].float()
        return (states * weights).sum(1) / weights.sum(1)

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(str(folder))
        share(folder)
