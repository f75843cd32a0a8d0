"""Numbers from a model: the reward head on the last token, the log-probability of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prb.engine.chat import Text
from prb.engine.load import Checkpoint
from prb.engine.prefix import SharedPrefix, batches, bundle, sharing_is_exact


class LastToken:
    """Rows of a linear head on the last token that is not padding, as transformers defines it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        model = checkpoint.model
        body = getattr(model, model.base_model_prefix, None)
        self._head = getattr(model, "score", None)
        self._pad = model.config.get_text_config().pad_token_id
        self._checkpoint = checkpoint
        sharable = body is not None and isinstance(self._head, torch.nn.Module) and sharing_is_exact(body)
        self._shared = SharedPrefix(body, budget=checkpoint.budget, keep=checkpoint.keep) if sharable else None

    @property
    def shares_prefixes(self) -> bool:
        return self._shared is not None

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        if self._shared is None:
            pad = self._checkpoint.tokenizer.pad_token_id
            return run_whole(self._checkpoint, groups, lambda output: output.logits.float().cpu(), pad=pad)
        head = self._head
        bundles = [
            bundle([_without_padding(text.ids, self._pad) for text in group], at_most=_question_end(group))
            for group in groups
        ]
        return self._shared.run(bundles, lambda states, *_: head(states[-1]).float())  # type: ignore[misc]


class OutputScore:
    """Checkpoints with code of their own that put the reward into the output's `score`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        def read(output: Any) -> Tensor:
            score: Tensor = output.score.float().cpu()
            return score.reshape(len(score), -1)

        # unknown code may treat padding in its own way, so only inputs of equal length share a batch
        return run_whole(self._checkpoint, groups, read, pad=None)


class FirstLogit:
    """Causal models whose next-token logit of token 0, after the whole dialogue, is the reward."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        body = getattr(checkpoint.model, checkpoint.model.base_model_prefix)
        self._shared = SharedPrefix(body, budget=checkpoint.budget, keep=checkpoint.keep)

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        bundles = [bundle([text.ids for text in group], at_most=_question_end(group)) for group in groups]
        return self._shared.run(
            bundles, lambda states, *_: output_logits(self._checkpoint.model, states[-1:])[0, :1].float()
        )


@torch.inference_mode()
def run_whole(
    checkpoint: Checkpoint, groups: Sequence[Sequence[Text]], read: Callable[[Any], Tensor], *, pad: int | None
) -> list[list[Tensor]]:
    """`read(output)` of each text, without shared prefixes. Without `pad` only equal lengths share a batch."""
    texts = [text for group in groups for text in group]
    device = next(checkpoint.model.parameters()).device
    rows: list[Any] = [None] * len(texts)
    for batch in batches([len(text.ids) for text in texts], checkpoint.budget):
        parts = [batch]
        if pad is None:
            lengths = sorted({len(texts[i].ids) for i in batch}, reverse=True)
            parts = [[i for i in batch if len(texts[i].ids) == length] for length in lengths]
        for part in parts:
            output = checkpoint.model(**_tensors([texts[i] for i in part], pad or 0, device))
            for i, row in zip(part, read(output), strict=True):
                rows[i] = row
    in_order = iter(rows)
    return [[next(in_order) for _ in group] for group in groups]


def _tensors(texts: Sequence[Text], pad: int, device: torch.device) -> dict[str, Tensor]:
    width = max(len(text.ids) for text in texts)

    def filled(values: Sequence[Sequence[int]], blank: int) -> Tensor:
        return torch.tensor([[*v, *[blank] * (width - len(v))] for v in values], device=device)

    tensors = {
        "input_ids": filled([text.ids for text in texts], pad),
        "attention_mask": filled([[1] * len(text.ids) for text in texts], 0),
    }
    if texts[0].types is not None:
        tensors["token_type_ids"] = filled([text.types or () for text in texts], 0)
    return tensors


def _question_end(group: Sequence[Text]) -> int:
    """Prefixes end where answers begin, even when there is only one: another answer to the same query may follow."""
    return min(text.start for text in group)


def _without_padding(ids: Sequence[int], pad: int | None) -> Sequence[int]:
    """Up to the rightmost token that is not the padding token; a causal state does not see what comes after."""
    end = len(ids)
    while pad is not None and end > 1 and ids[end - 1] == pad:
        end -= 1
    return ids[:end]


class Spoken(NamedTuple):
    """Log-probability of an answer and its number of tokens."""

    logp: float
    tokens: int


class AnswerLogp:
    """log p(answer | prompt) of a causal LM, over the answer's tokens only."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._model = checkpoint, checkpoint.model
        body = getattr(self._model, self._model.base_model_prefix, None)
        sharable = body is not None and sharing_is_exact(body) and _head_is_exact(self._model, body)
        self._shared = SharedPrefix(body, budget=checkpoint.budget, keep=checkpoint.keep) if sharable else None

    @property
    def shares_prefixes(self) -> bool:
        return self._shared is not None

    def spoken(self, groups: Sequence[Sequence[Text]]) -> list[list[Spoken]]:
        if self._shared is None:
            return [[self._alone(text) for text in group] for group in groups]
        # the state before an answer's first token predicts it, so prefixes end there at the latest
        bundles = [bundle([t.ids[: t.end] for t in g], at_most=_question_end(g)) for g in groups]

        def reduce(states: Tensor, row: int, k: int) -> Tensor:
            text, shared = groups[row][k], len(bundles[row].prefix)
            first = max(1, text.start)  # nothing comes before the very first token of a text to predict it
            predicting = states[first - shared : text.end - shared]
            return _logp(output_logits(self._model, predicting), text.ids[first : text.end])

        rows = self._shared.run(bundles, reduce)
        return [[_spoken(logp, t) for t, logp in zip(g, row, strict=True)] for g, row in zip(groups, rows, strict=True)]

    @torch.inference_mode()
    def _alone(self, text: Text) -> Spoken:
        device = next(self._model.parameters()).device
        logits = self._model(input_ids=torch.tensor([list(text.ids)], device=device)).logits[0]
        first = max(1, text.start)
        return _spoken(_logp(logits[first - 1 : text.end - 1], text.ids[first : text.end]), text)


def _logp(logits: Tensor, targets: Sequence[int]) -> Tensor:
    index = torch.tensor(list(targets), device=logits.device)
    return torch.log_softmax(logits.float(), dim=-1).gather(1, index[:, None]).sum()


def _spoken(logp: Tensor, text: Text) -> Spoken:
    return Spoken(float(logp), text.end - max(1, text.start))


def output_logits(model: Any, states: Tensor) -> Tensor:
    """The model's own last step, with the scalings that some architectures apply."""
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
    expected = model(input_ids=ids).logits[0].float()
    actual = output_logits(model, body(input_ids=ids).last_hidden_state[0]).float()
    return bool((expected - actual).abs().max() <= 1e-3 * max(1.0, float(expected.abs().max())))
