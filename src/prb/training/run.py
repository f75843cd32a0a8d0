"""`prb train METHOD`: from pairs to a folder that `personal?path=` reads, with a card that describes it.

`matcher` first tunes the LLM behind its features with LoRA, so that posts of a pole are near the answers for it; that
needs the `train` extra.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress, product
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from prb import __version__
from prb.config import ConditionName, UserConfig
from prb.data.load import Dataset, load
from prb.data.named.mirror import Lesson
from prb.engine.executors import Executor, open_executor
from prb.engine.load import Checkpoint, Loading
from prb.errors import BadInput, MissingExtra, PrbError
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.hashing import draw
from prb.models.personal.collaborative import Collaborative, fit, ratings_of, save_factors, votes_by_user
from prb.models.personal.features import FEATURES, Features, features_of
from prb.models.personal.head import CARD, Head, Personal, infer_codes, read_card, save
from prb.models.personal.methods import METHODS, Matcher
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import Finished, RunFolder, remove
from prb.stats.estimate import share
from prb.stats.paired import Difference, difference
from prb.training.config import CHECKPOINT, LORA_ALPHA, FullConfig, TrainConfig
from prb.training.learning import (
    Examples,
    HeadResults,
    Ints,
    Learning,
    credits_of,
    encode_lessons,
    fold_of,
    held_out_margins,
    learn,
    lessons_of,
    load_state,
    open_training,
    prepare,
    results,
    save_state,
    split_off,
    support_and_scored,
)
from prb.types import Ask, Choice, Estimate, Failure, Pair, TrainedOn
from prb.weights import make_readable
from prb.work import chunks

ADAPTER = "adapter"
CONDITIONS: tuple[ConditionName, ...] = ("none", "profile", "shuffled")
VALIDATION_ROWS = 2_000
"""Held-out rows that are scored under every condition for the card, at most."""
L2 = (0.001, 0.01, 0.1, 1.0)
"""What a sweep tries …"""
FOLDS = 5
"""… by cross-validation with this many folds."""


@dataclass(frozen=True, kw_only=True)
class Validation(HeadResults):
    """How a head does on the validation users; accuracy, loss and person effect are those under `profile`."""

    users: int
    labelled_pairs_shown: int
    by_condition: dict[ConditionName, Estimate]
    gain: Difference
    control: Difference


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A setting, and how heads with it do on users they were not trained on."""

    accuracy: Estimate
    loss: float | None
    method: str
    l2: float
    epochs: int
    """The best of the median fold."""


def card_of(config: TrainConfig, dataset: Dataset, features: Features, fitted_on: dict[str, int]) -> dict[str, Any]:
    """What `card.json` says of every head beside its format and method."""
    return {
        "prb": __version__,
        "features": config.features,
        "features_fingerprint": features.fingerprint,
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "split": dataset.split,
            "rows": len(dataset),
        },
        "fitted_on": fitted_on,
        "train": config.saved(),
        "seed": config.seed,
    }


def train(config: TrainConfig | FullConfig, *, progress: Progress = SILENT) -> Finished:
    """Train a head or a whole model, or resume its training."""
    if isinstance(config, FullConfig):
        try:
            from prb.training.full import finetune
        except ModuleNotFoundError:
            raise MissingExtra("training a whole model", "train") from None
        return finetune(config, progress=progress)
    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit)
    folder = config.target
    with RunFolder(folder, {"train": config.saved(), "data": dataset.fingerprint}):
        if (folder / CARD).exists():
            progress.note(f"{folder} is finished")
            card = read_card(folder)
        else:
            with open_executor(config.engine) as executor:
                card = _train(config, dataset, executor, progress)
        remove(folder / CHECKPOINT)
    return Finished(folder, card)


def _train(config: TrainConfig, dataset: Dataset, executor: Executor, progress: Progress) -> dict[str, Any]:
    method = METHODS.make(config.method)
    if config.sweep and method.taught:
        raise BadInput(
            f"--sweep: {config.method} learns axes, and held-out users share them; compare settings on "
            "'mirror?split=validation', whose axes are others"
        )
    if isinstance(method, Collaborative):
        return _from_votes(config, method, dataset, features_of({"features": config.features}, config.target, executor))
    about = {"features": config.features}
    tuned: dict[str, Any] = {}
    if isinstance(method, Matcher):
        tuned = tune(method, lessons_of(dataset.source), config.features, config.target, config.seed, progress)
        about["adapter"] = ADAPTER
    features = features_of(about, config.target, executor)
    lessons = encode_lessons(dataset.source, features) if method.taught else ()
    examples = prepare(dataset, features, joint=method.joint, k=config.k, progress=progress)
    rows = examples.readable
    if not len(rows):
        raise BadInput(f"{config.dataset}: no answer could be encoded by features {config.features!r}")
    fit, held = (rows[part] for part in split_off(examples.cluster[rows], config.validation, config.seed))
    spec, tried = config.method, None
    learning = Learning(epochs=config.epochs, seed=config.seed)
    if config.sweep:
        tried = sweep(spec, examples, rows, learning, progress=progress)
        best = tried[0]
        spec, learning = best.method, replace(learning, l2=best.l2, epochs=max(1, best.epochs))
        fit, held = rows, rows[:0]  # the folds have chosen the settings; no user needs to be held out any more
    checkpoint = config.target / CHECKPOINT
    learned = learn(spec, examples, fit, held, learning, lessons=lessons, checkpoint=checkpoint, progress=progress)
    card = card_of(config, dataset, features, {"rows": len(fit), "users": len(np.unique(examples.user[fit]))})
    card["data"] |= {
        "unreadable": len(dataset) - len(rows),
        "users": len(examples.users),
        "clusters": len(set(dataset.index.clusters)),
    }
    card |= {
        "adapter": about.get("adapter"),  # folder of the LoRA adapter, beside the card, of an LLM that was tuned
        "size": examples.size,
        "l2": learning.l2,
        "trained_on": TrainedOn.of(compress(dataset, np.isin(np.arange(len(dataset)), fit))).as_card(),
        "best_epoch": learned.best,
        "curve": learned.curve,
        "report": {**learned.report, **tuned},
        "validation": validate(learned.head, features, dataset, examples, held, config) if len(held) else None,
        "sweep": tried,
    }
    return save(learned.head, config.target, msgspec.to_builtins(card))


def _from_votes(config: TrainConfig, method: Collaborative, dataset: Dataset, features: Features) -> dict[str, Any]:
    if config.sweep:
        raise BadInput(f"--sweep: {config.method} has no grid; compare settings on split `dev`")
    pairs = [item for item in dataset if isinstance(item, Pair)]
    votes = votes_by_user(pairs)
    ratings = ratings_of(votes.values())
    if len(ratings.sign) == 2 * len(pairs):  # nothing but the labels
        raise BadInput(
            f"{config.dataset} has no votes on single items in its histories; collaborative learns from data such as "
            "'polis?path=FOLDER&mirror=true'"
        )
    factors = fit(ratings, method, features, seed=config.seed)
    card = {
        **card_of(config, dataset, features, {"rows": len(pairs), "users": len(votes)}),
        "method": config.method,
        "validation": None,
        "sweep": None,
        "trained_on": {"rows": [], "users": TrainedOn.of(pairs).as_card()["users"]},
        "report": {
            "items": len(ratings.items),
            "votes": len(ratings.sign),
            "unknown items": f"factors predicted from {config.features} (leave-one-out R² {factors.explained:.3f})",
        },
    }
    return save_factors(factors, ratings.items, config.target, card)


def validate(
    head: Head, features: Features, dataset: Dataset, examples: Examples, held: Ints, config: TrainConfig
) -> Validation:
    """By the same queries that an evaluation makes."""
    support, scored = support_and_scored(head, examples, held[:VALIDATION_ROWS])
    needed = {int(row) for row in (*support, *scored)}
    pairs = {n: item for n, item in enumerate(dataset) if n in needed and isinstance(item, Pair)}
    histories: dict[str, list[Choice]] = {}
    for row in support:
        pair = pairs[int(row)]
        histories.setdefault(pair.user, []).append(Choice(pair.question, *pair.contrast))
    codes = dict(zip(histories, infer_codes(head, features, list(histories.values())), strict=True))
    model = Personal(head, features, "validation", codes)
    donors = load(dataset.source, split=dataset.split, donors=True)
    shown = UserConfig(k=config.k)
    builder = QueryBuilder.of(shown, donors, PLANNERS.make(shown.planner), reader=model, seed=config.seed)
    rows = np.sort(scored)
    by_condition = {condition: np.full(len(rows), np.nan) for condition in CONDITIONS}
    """Reward of chosen minus reward of rejected, NaN where there is none."""
    for condition, margins in by_condition.items():
        built = {n: builder.build(pairs[int(row)], condition) for n, row in enumerate(rows)}
        queries = {n: made.query for n, made in built.items() if isinstance(made, Built)}
        asks = [Ask(query, answer) for n, query in queries.items() for answer in pairs[int(rows[n])].contrast]
        scores = np.array([np.nan if isinstance(s, Failure) else float(s) for s in model.score(asks)])
        margins[list(queries)] = scores[::2] - scores[1::2]
    credit = {c: credits_of(m) for c, m in by_condition.items()}
    clusters = examples.cluster[rows]
    answered = ~np.isnan(by_condition["profile"])
    with_profile = results(by_condition["profile"][answered], examples, rows[answered])
    return Validation(
        **vars(with_profile),
        users=len(set(examples.user[rows].tolist())),
        labelled_pairs_shown=len(support),
        by_condition={c: share(v[~np.isnan(v)], clusters[~np.isnan(v)]) for c, v in credit.items()},
        gain=difference(credit["profile"], credit["none"], clusters),
        control=difference(credit["profile"], credit["shuffled"], clusters),
    )


def candidates(spec: str, learning: Learning) -> Iterator[tuple[str, Learning]]:
    """Values of l2, and of the settings in the method's grid that the spec does not fix."""
    method, parsed = METHODS.make(spec), Spec.parse(spec)
    open_options = {k: v for k, v in method.grid.items() if k not in parsed.options}
    penalties = (learning.l2,) if method.closed_form else L2
    for values in product(*open_options.values()):
        options = {**parsed.options, **{k: str(v) for k, v in zip(open_options, values, strict=True)}}
        for l2 in penalties:
            yield str(Spec(parsed.name, options)), replace(learning, l2=l2)


def sweep(spec: str, examples: Examples, rows: Ints, learning: Learning, *, progress: Progress = SILENT) -> list[Tried]:
    """All candidates, the best first: by held-out accuracy, then by held-out loss.

    Settings are chosen by cross-validation over the training users and by nothing else.
    """
    todo, tried = list(candidates(spec, learning)), []
    progress.begin(f"cross-validating {len(todo)} settings", total=len(todo))
    for candidate, setting in todo:
        tried.append(cross_validate(candidate, examples, rows, setting))
        progress.advance()
    return sorted(tried, key=lambda each: (-(each.accuracy.value or 0), each.loss or 0))


def cross_validate(spec: str, examples: Examples, rows: Ints, learning: Learning) -> Tried:
    """Every row is scored by a head that was trained without its user."""
    clusters = examples.cluster[rows]
    fold = fold_of(clusters, FOLDS, learning.seed)
    scored, epochs = [], []
    for number in range(FOLDS):
        fit, inner_clusters = rows[fold != number], clusters[fold != number]
        inner = fold_of(inner_clusters, min(FOLDS, len(np.unique(inner_clusters))), learning.seed)
        learned = learn(spec, examples, fit[inner != 0], fit[inner == 0], learning)
        scored.append(held_out_margins(learned.head, examples, rows[fold == number]))
        epochs.append(learned.best)
    held_margins, held_rows = map(np.concatenate, zip(*scored, strict=True))
    order = np.argsort(held_rows)
    held = results(held_margins[order], examples, held_rows[order])
    return Tried(method=spec, l2=learning.l2, epochs=int(median(epochs)), accuracy=held.accuracy, loss=held.loss)


# Tuning the LLM behind the features.

HELD_AXES = 0.1
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
    held = order[: max(1, round(HELD_AXES * len(order)))]
    tuner = Tuner(method, options["lm"], options.get("layer", -1), options["loading"], seed)
    tuner.measure(order)
    checkpoint = folder / CHECKPOINT
    curve = load_state(checkpoint, tuner.weights, tuner.optimizer, progress)
    if curve is None:
        curve = [{"pass": 0, "held_axes": tuner.matched(held)}]
        tuner.save(folder / ADAPTER)
    progress.begin(f"tuning {options['lm']}", total=method.passes, done=len(curve) - 1)
    for number in range(len(curve), method.passes + 1):
        loss = tuner.one_pass(order[len(held) :], number)
        curve.append({"pass": number, "loss": loss, "held_axes": tuner.matched(held)})
        if curve[-1]["held_axes"] > max(point["held_axes"] for point in curve[:-1]):
            tuner.save(folder / ADAPTER)
        save_state(checkpoint, tuner.weights, tuner.optimizer, curve)
        progress.advance()
    return {"tuning": curve, "held_axes": [lesson.axis for lesson in held]}


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


class Tuner:
    def __init__(self, method: Matcher, lm: str, layer: int, loading: Loading, seed: int) -> None:
        try:
            import peft
            import torch
        except ImportError:
            raise MissingExtra("matcher", "train") from None
        from prb.engine.heads import at_layer
        from prb.engine.load import load as load_weights

        torch.manual_seed(seed)
        base = load_weights(lm, "causal", loading if loading.dtype == "bf16" else replace(loading, dtype="fp32"))
        layer %= base.model.config.get_text_config().num_hidden_layers + 1
        tuned = range(layer - min(method.layers or layer, layer), layer)
        linear = [name for name, part in base.model.named_modules() if isinstance(part, torch.nn.Linear)]
        numbered = ((name, re.search(r"\.(\d+)\.", name)) for name in linear)
        targets = [name for name, number in numbered if number and int(number[1]) in tuned]
        lora = peft.LoraConfig(r=method.rank, lora_alpha=LORA_ALPHA * method.rank, target_modules=targets)
        self._model: Any = peft.get_peft_model(base.model, lora)
        self._in_16_bits = loading.dtype == "bf16"
        for part in self._model.modules():
            if self._in_16_bits and hasattr(part, "cast_input_dtype_enabled"):
                # the adapter's weights have 32 bits; states that are cast to 32, too, cost as much as the layers do
                part.cast_input_dtype_enabled = False
        self._body = at_layer(base, layer)
        self._frozen = frozen_blocks(base, self._body, tuned.start) if tuned.start else None
        self._before: dict[str, Any] = {}
        """States of a text below the blocks that are tuned, which never change."""
        self._tokenizer, self._method, self._seed = base.tokenizer, method, seed
        self.weights = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=method.rate)
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
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses))

    def _loss(self, lessons: Sequence[Lesson], rng: np.random.Generator) -> Any:
        """Posts side with their pole on their own axis, and take no side on others."""
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

        from prb.engine.states import padded_inputs

        device = next(self._model.parameters()).device
        ids = [self._tokenizer(text)["input_ids"][:LONGEST] for text in texts]
        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        means = []
        for chunk in chunks(order, TOGETHER):
            inputs = padded_inputs([ids[n] for n in chunk], device)
            weights = inputs["attention_mask"][:, :, None].float()
            body = self._body
            if self._frozen:
                lower, body = self._frozen
                if any(texts[n] not in self._before for n in chunk):
                    with torch.no_grad():
                        states = lower(**inputs, use_cache=False).last_hidden_state
                    self._before |= {texts[n]: states[row, : len(ids[n])].clone() for row, n in enumerate(chunk)}
                below = [self._before[texts[n]] for n in chunk]
                inputs["inputs_embeds"] = torch.nn.utils.rnn.pad_sequence(below, batch_first=True)
                del inputs["input_ids"]
            with torch.autocast(device.type, torch.bfloat16, enabled=self._in_16_bits):
                states = body(**inputs, use_cache=False).last_hidden_state
            means.append((states * weights).sum(1) / weights.sum(1))
        return torch.cat(means)[torch.tensor(np.argsort(order))]

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(str(folder))
        make_readable(folder)
