"""Numbers from hidden states: the last token's reward head, the log-probability of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prb.engine.bundle import bundle
from prb.engine.chat import Text
from prb.engine.load import Loaded
from prb.engine.shared import SharedPrefix, sharing_is_exact
from prb.engine.whole import Encoded, run_whole


class LastToken:
    """Rows of a linear head on the last token that is no padding, as transformers defines it."""

    def __init__(self, loaded: Loaded) -> None:
        model = loaded.model
        body = getattr(model, model.base_model_prefix, None)
        self._head = getattr(model, "score", None)
        self._pad = model.config.get_text_config().pad_token_id
        self._loaded = loaded
        sharable = body is not None and isinstance(self._head, torch.nn.Module) and sharing_is_exact(body)
        self._shared = SharedPrefix(body, budget=loaded.budget, keep=loaded.keep) if sharable else None

    @property
    def shares_prefixes(self) -> bool:
        return self._shared is not None

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        if self._shared is None:
            return self._whole(groups)
        head = self._head
        bundles = [
            bundle([_without_padding(text.ids, self._pad) for text in group], at_most=_question_end(group))
            for group in groups
        ]
        return self._shared.run(bundles, lambda states, *_: head(states[-1]).float().cpu())  # type: ignore[misc]

    def _whole(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        inputs = [Encoded(text.ids, text.types) for group in groups for text in group]
        pad = self._loaded.tokenizer.pad_token_id
        rows = iter(run_whole(self._loaded.model, inputs, _read_logits, budget=self._loaded.budget, pad=pad))
        return [[next(rows) for _ in group] for group in groups]


def _read_logits(output: Any) -> Tensor:
    logits: Tensor = output.logits.float().cpu()
    return logits


class OwnScore:
    """Checkpoints with code of their own that put the reward into the output's `score`."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        # unknown code may treat padding in its own way, so only equally long inputs share a batch
        inputs = [Encoded(text.ids, text.types) for group in groups for text in group]
        rows = iter(run_whole(self._loaded.model, inputs, _read_score, budget=self._loaded.budget, pad=None))
        return [[next(rows) for _ in group] for group in groups]


def _read_score(output: Any) -> Tensor:
    score: Tensor = output.score.float().cpu()
    return score.reshape(len(score), -1)


class FirstLogit:
    """Causal models whose next-token logit of token 0, after the whole dialogue, is the reward."""

    def __init__(self, loaded: Loaded) -> None:
        model = loaded.model
        body = getattr(model, model.base_model_prefix)
        self._model = model
        self._shared = SharedPrefix(body, budget=loaded.budget, keep=loaded.keep)

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        bundles = [bundle([text.ids for text in group], at_most=_question_end(group)) for group in groups]
        return self._shared.run(
            bundles, lambda states, *_: output_logits(self._model, states[-1:])[0, :1].float().cpu()
        )


def _question_end(group: Sequence[Text]) -> int:
    """Prefixes end where answers begin, also when there is only one: another may follow that asks the same."""
    return min(text.start for text in group)


def _without_padding(ids: Sequence[int], pad: int | None) -> Sequence[int]:
    """Up to the rightmost token that is not the padding token; a causal state does not see what comes after."""
    end = len(ids)
    while pad is not None and end > 1 and ids[end - 1] == pad:
        end -= 1
    return ids[:end]


class Spoken(NamedTuple):
    """Log-probability of an answer and how many tokens it has."""

    logp: float
    tokens: int


class AnswerLogp:
    """log p(answer | prompt) of a causal language model, over the answer's tokens only."""

    def __init__(self, loaded: Loaded) -> None:
        self._model = loaded.model
        self._budget = loaded.budget
        body = getattr(loaded.model, loaded.model.base_model_prefix, None)
        sharable = body is not None and sharing_is_exact(body) and _head_is_exact(loaded.model, body)
        self._shared = SharedPrefix(body, budget=loaded.budget, keep=loaded.keep) if sharable else None

    @property
    def shares_prefixes(self) -> bool:
        return self._shared is not None

    def spoken(self, groups: Sequence[Sequence[Text]]) -> list[list[Spoken]]:
        return self._with_shared(groups) if self._shared is not None else [[self._alone(t) for t in g] for g in groups]

    def _with_shared(self, groups: Sequence[Sequence[Text]]) -> list[list[Spoken]]:
        assert self._shared is not None
        # the state before an answer's first token predicts it, so prefixes end there at the latest
        bundles = [bundle([t.ids[: t.end] for t in g], at_most=_question_end(g)) for g in groups]

        def reduce(states: Tensor, row: int, k: int) -> Spoken:
            text, shared = groups[row][k], len(bundles[row].prefix)
            first = max(1, text.start)  # the very first token of a text has nothing before it to predict it
            predicting = states[first - shared : text.end - shared]
            return _spoken(output_logits(self._model, predicting), text.ids[first : text.end])

        return self._shared.run(bundles, reduce)

    @torch.inference_mode()
    def _alone(self, text: Text) -> Spoken:
        device = next(self._model.parameters()).device
        logits = self._model(input_ids=torch.tensor([list(text.ids)], device=device)).logits[0]
        first = max(1, text.start)
        return _spoken(logits[first - 1 : text.end - 1], text.ids[first : text.end])


def _spoken(logits: Tensor, targets: Sequence[int]) -> Spoken:
    wanted = torch.tensor(list(targets), device=logits.device)
    logp = torch.log_softmax(logits.float(), dim=-1).gather(1, wanted[:, None]).sum()
    return Spoken(float(logp), len(targets))


def output_logits(model: Any, states: Tensor) -> Tensor:
    """The model's own last step, with the scalings some architectures put on it."""
    config = model.config.get_text_config()
    logits: Tensor = model.get_output_embeddings()(states)
    if getattr(config, "logits_scaling", None):
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):
        logits = logits * config.logit_scale
    if getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
    return logits


@torch.inference_mode()
def _head_is_exact(model: Any, body: Any) -> bool:
    """Whether states and output layer give the logits the model itself gives; if not, it is run whole."""
    ids = torch.tensor([[1, 2, 3, 4]], device=next(model.parameters()).device)
    own = model(input_ids=ids).logits[0].float()
    made = output_logits(model, body(input_ids=ids).last_hidden_state[0]).float()
    return bool((own - made).abs().max() <= 1e-3 * max(1.0, float(own.abs().max())))
