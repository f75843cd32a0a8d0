"""Numbers from a model: the reward head on the last token, the log-probability of an answer, pooled hidden states.

Each head is applied to states that the engine computes, and is compared with the model's own forward pass when it is
made. Where the two differ, as with models that bring their own code, the model's own forward pass is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prb.engine.cascade import input_device
from prb.engine.chat import Chat, Text, Tokens, group_by_query
from prb.engine.load import Checkpoint
from prb.engine.states import RUN_ERRORS, Sharing, States, batches, bundle, forget_lengths, padded_inputs
from prb.errors import BadInput
from prb.hashing import text_digest
from prb.types import Ask, Failure
from prb.work import halve_if_out_of_memory

T = TypeVar("T")
Head = Callable[[Tensor], Tensor]
Pool = Literal["mean", "last"]
Vector = NDArray[np.float32]
AGREEMENT = 8
"""Steps of the dtype by which two ways to the same number may differ."""


class LastToken:
    """A reward head on the last token that is not padding, as transformers defines it."""

    @torch.inference_mode()
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self.sharing = checkpoint, checkpoint.sharing
        model, body, tokens = checkpoint.model, checkpoint.body, checkpoint.probe_tokens
        self._pad = model.config.get_text_config().pad_token_id
        try:
            expected = _row(model(**padded_inputs([tokens], input_device(model))), 0)
        except (AttributeError, IndexError) as error:
            raise BadInput(f"its forward pass gives no logits for a text ({type(error).__name__}: {error})") from None
        self.outputs = len(expected)
        """How many numbers the model gives for a text."""
        self._head: Head | None = None
        """The model's `score`, computed in 32 bits, if it gives what the model itself gives."""
        module = getattr(model, "score", None)
        with suppress(*RUN_ERRORS):
            if body is not None and isinstance(module, torch.nn.Module):
                head = fp32_head(module)
                inputs = padded_inputs([_without_padding(tokens, self._pad)], input_device(body))
                states = body(**inputs).last_hidden_state[0]
                self._head = head if agree(head(states[-1]).cpu(), expected, states.dtype) else None
        self.custom = self._head is None and not type(model).__module__.startswith("transformers.")
        """Whether rewards come from a forward pass that is code of the checkpoint."""
        if self._head is None:
            why = "its forward pass is not a head on its last state" if self.sharing.prefixes else self.sharing.why
            # unknown code may treat padding in its own way
            self.sharing = Sharing(False, padding=self.sharing.padding and not self.custom, why=why)
        self._states = States(body, checkpoint.budget) if self.sharing.prefixes else None

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        head, checkpoint = self._head, self._checkpoint
        if head is None:
            whole, pad = checkpoint.model, self._pad or 0
            return run_whole(checkpoint, whole, groups, lambda out, row, _: _row(out, row), self.sharing, pad=pad)

        def last_token(text: Text) -> tuple[int, int]:
            end = len(_without_padding(text.ids, self._pad))
            return end - 1, end

        return run_states(checkpoint, checkpoint.body, self._states, groups, last_token, lambda s, _: head(s[-1]))


class OwnForwardPass:
    """Rewards that only the model's own forward pass gives: the `score` that checkpoints with code of their own put
    into the output, or, of causal models, the next-token logit of token 0 after the whole dialogue."""

    def __init__(self, checkpoint: Checkpoint, read: Literal["score", "first-logit"]) -> None:
        self._checkpoint, self._read = checkpoint, read
        if read == "score":
            # unknown code may treat padding in its own way, so texts do not share a batch
            self.sharing = Sharing(False, padding=False, why="the reward is the `score` of its own forward pass")
        else:
            why = "the reward is a logit of its own forward pass"
            self.sharing = replace(checkpoint.sharing, prefixes=False, why=why)

    def logits(self, groups: Sequence[Sequence[Text]]) -> list[list[Tensor]]:
        def read(output: Any, row: int, text: Text) -> Tensor:
            value = output.score[row] if self._read == "score" else output.logits[row, len(text.ids) - 1, 0]
            return value.float().cpu().reshape(-1)  # type: ignore[no-any-return]

        return run_whole(self._checkpoint, self._checkpoint.model, groups, read, self.sharing)


@torch.inference_mode()
def run_whole(
    checkpoint: Checkpoint,
    model: Any,
    groups: Sequence[Sequence[Text]],
    read: Callable[[Any, int, Text], T],
    sharing: Sharing,
    *,
    pad: int = 0,
) -> list[list[T]]:
    """`read(output, row, text)` of each text by a forward pass of the model or its body, without shared prefixes."""
    texts = [text for group in groups for text in group]
    device = input_device(model)
    results: list[Any] = [None] * len(texts)
    for batch in batches([len(text.ids) for text in texts], checkpoint.budget, rows=None if sharing.padding else 1):
        rows = [texts[i] for i in batch]
        inputs = padded_inputs([text.ids for text in rows], device, pad=pad)
        if rows[0].types is not None:
            inputs["token_type_ids"] = padded_inputs([text.types or () for text in rows], device)["input_ids"]
        forget_lengths(model)
        output = model(**inputs)
        for row, i in enumerate(batch):
            results[i] = read(output, row, texts[i])
    in_order = iter(results)
    return [[next(in_order) for _ in group] for group in groups]


def _row(output: Any, row: int) -> Tensor:
    """The logits of one text; the model must return one row per text."""
    logits: Tensor = output.logits[row].float().cpu()
    if logits.dim() > 1:
        raise IndexError(f"logits of shape {tuple(output.logits.shape)}")
    return logits.reshape(-1)


def agree(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether two ways to the same logits differ by rounding only."""
    if actual.shape != expected.shape:
        return False
    room = max(AGREEMENT * torch.finfo(dtype).eps, 1e-4) * max(1.0, float(expected.abs().max()))
    return bool((actual.float() - expected.float()).abs().max() <= room)


def fp32_head(module: torch.nn.Module) -> Head:
    """The head in 32 bits, whatever the model's dtype: rewards differ by less than a step of 16 bits."""
    exact = copy.deepcopy(module).float()
    device = list(exact.parameters())[0].device  # noqa: RUF015 - an IndexError is expected where there is none
    return lambda states: exact(states.to(device).float())


def _without_padding(ids: Tokens, pad: int | None) -> Tokens:
    """Up to the rightmost token that is not the padding token; a causal state does not see what comes after."""
    end = len(ids)
    while pad is not None and end > 1 and ids[end - 1] == pad:
        end -= 1
    return ids[:end]


Span = Callable[[Text], tuple[int, int]]
"""From which position of a text to which states are read."""


def run_states(
    checkpoint: Checkpoint,
    body: Any,
    states: States | None,
    groups: Sequence[Sequence[Text]],
    span: Span,
    read: Callable[[Tensor, Text], T],
) -> list[list[T]]:
    """`read(states in the span, text)` of each text; what the texts of a group begin with is read once if there are
    `states`, else each is read whole."""
    if states is None:

        def whole(output: Any, row: int, text: Text) -> T:
            return read(output.last_hidden_state[(row, slice(*span(text)))], text)

        return run_whole(checkpoint, body, groups, whole, checkpoint.sharing)
    # prefixes end where answers begin, even when there is only one: another answer to the same query may follow
    bundles = [
        bundle([text.ids[: span(text)[1]] for text in group], at_most=min(text.start for text in group))
        for group in groups
    ]

    def reduce(suffix: Tensor, row: int, k: int) -> T:
        text, before = groups[row][k], len(bundles[row].prefix) - 1  # suffix[0] is the prefix's last token
        first, end = span(text)
        return read(suffix[first - before : end - before], text)

    return states.run(bundles, reduce)


class AnswerLogp:
    """log p(answer | prompt) of a causal LM, over the answer's tokens only."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._states, self.sharing = output_states(checkpoint)

    def logp(self, groups: Sequence[Sequence[Text]]) -> list[list[float]]:
        checkpoint, model = self._checkpoint, self._checkpoint.model

        def span(text: Text) -> tuple[int, int]:
            """The state before a token predicts it; nothing comes before the very first one of a text."""
            return max(1, text.start) - 1, text.end

        def value(logits: Tensor, text: Text) -> Tensor:
            index = torch.tensor(list(text.ids[max(1, text.start) : text.end]), device=logits.device)
            return torch.log_softmax(logits.float(), dim=-1).gather(1, index[:, None]).sum()

        if self._states is None:

            def whole(output: Any, row: int, text: Text) -> Tensor:
                return value(output.logits[(row, slice(*span(text)))][:-1], text)

            rows = run_whole(checkpoint, model, groups, whole, self.sharing)
        else:

            def read(states: Tensor, text: Text) -> Tensor:
                return value(output_logits(model, states[:-1]), text)

            rows = run_states(checkpoint, checkpoint.body, self._states, groups, span, read)
        return [[float(logp) for logp in row] for row in rows]


def output_logits(model: Any, states: Tensor, *, best: int = 0) -> Tensor:
    """The model's own last step, with the scalings that some architectures apply. So many of the `best` logits are
    computed in 32 bits: 16 leave steps of 1/8 between large ones, which would tie what a judge weighs."""
    config, output = model.config.get_text_config(), model.get_output_embeddings()
    logits = output(states)
    if best and logits.element_size() < 4 and isinstance(output, torch.nn.Linear):
        top = logits.topk(min(best, logits.shape[-1])).indices
        weights = torch.nn.functional.embedding(top, output.weight).float()
        exact = (weights @ states.float().unsqueeze(-1)).squeeze(-1)
        if output.bias is not None:
            exact += output.bias[top].float()
        logits = logits.float().scatter(-1, top, exact)
    if getattr(config, "logits_scaling", None):
        logits = logits / config.logits_scaling
    if getattr(config, "logit_scale", None):
        logits = logits * config.logit_scale
    if getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / config.final_logit_softcapping) * config.final_logit_softcapping
    return logits  # type: ignore[no-any-return]


@torch.inference_mode()
def output_states(checkpoint: Checkpoint) -> tuple[States | None, Sharing]:
    """States for `output_logits` with shared prefixes, and how the model is read; `None` if it does not share them, or
    if the two do not give the logits that the model itself gives."""
    model, body, sharing = checkpoint.model, checkpoint.body, checkpoint.sharing
    if not sharing.prefixes:
        return None, sharing
    inputs = padded_inputs([checkpoint.probe_tokens], input_device(model))
    expected = model(**inputs).logits[0]
    with suppress(*RUN_ERRORS):
        actual = output_logits(model, body(**inputs).last_hidden_state[0])
        if agree(actual.cpu(), expected.cpu(), expected.dtype):
            return States(body, checkpoint.budget), sharing
    return None, replace(sharing, prefixes=False, why="its logits are not an output layer on its last state")


class AtLayer(torch.nn.Module):
    """A model body whose last hidden state is that of an inner layer, 0 being the embedding."""

    def __init__(self, body: Any, layer: int) -> None:
        super().__init__()
        self.config = body.config
        self._body, self._layer = body, layer

    def get_input_embeddings(self) -> Any:
        return self._body.get_input_embeddings()

    def forward(self, **inputs: Any) -> Any:
        out = self._body(**inputs, output_hidden_states=True)
        return SimpleNamespace(
            last_hidden_state=out.hidden_states[self._layer], past_key_values=getattr(out, "past_key_values", None)
        )


@torch.inference_mode()
def at_layer(checkpoint: Checkpoint, layer: int) -> Any:
    """The body with the states of this layer as its last ones; without the blocks above it, if that gives the same."""
    body = checkpoint.body
    whole = AtLayer(body, layer).eval()
    if not layer:  # the embedding, without any block
        return whole
    with suppress(*RUN_ERRORS):
        early = only_blocks(body, 0, layer)
        inputs = padded_inputs([checkpoint.probe_tokens], input_device(body))
        expected, actual = (model(**inputs).last_hidden_state for model in (whole, early))
        if agree(actual, expected, expected.dtype):
            return early
    return whole


def only_blocks(body: Any, start: int, end: int) -> Any:
    """The body with some of its blocks, and so with their very weights; from `start` on it reads `inputs_embeds`."""
    part = copy.copy(body)
    norm = body.norm if end == len(body.layers) else torch.nn.Identity()
    part._modules = {**body._modules, "layers": body.layers[start:end], "norm": norm}
    part.config = copy.copy(body.config)
    part.config.num_hidden_layers = end - start
    return part


def with_lead(tokenizer: Any, lead: str, text: str, limit: int | None) -> Text:
    """The tokens of a text, after the words that lead to it."""
    before = tokenizer(f"{lead}\n")["input_ids"] if lead else []
    ids = [*before, *tokenizer(text or " ", add_special_tokens=not lead)["input_ids"]][:limit]
    return Text(ids, min(len(before), len(ids) - 1), len(ids))


class HiddenStates:
    """States of a layer, pooled over an answer's tokens; prefixes that answers share are computed once."""

    def __init__(self, checkpoint: Checkpoint, layer: int, pool: Pool, lead: str = "") -> None:
        layers = checkpoint.model.config.get_text_config().num_hidden_layers
        if not -layers - 1 <= layer <= layers:
            raise BadInput(f"layer={layer}: this model has layers 0 to {layers}")
        layer = layer % (layers + 1)
        self.fingerprint = f"hidden-{checkpoint.fingerprint}-{layer}-{pool}" + (f"-{text_digest(lead)}" if lead else "")
        self._checkpoint, self._pool, self._lead = checkpoint, pool, lead
        self._chat = Chat(checkpoint.tokenizer)
        self._body = at_layer(checkpoint, layer)
        self._states = States(self._body, checkpoint.budget) if checkpoint.sharing.prefixes else None
        self.execution = str(checkpoint.sharing)

    def texts(self, texts: Sequence[str]) -> Vector:
        limit, tokenizer = self._checkpoint.max_length, self._checkpoint.tokenizer
        rows = self._pooled([[with_lead(tokenizer, self._lead, text, limit)] for text in texts])
        return np.stack([row[0] for row in rows]) if rows else np.zeros((0, 1), dtype=np.float32)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        def together(asks: Sequence[Ask]) -> list[Vector | Failure]:
            groups, failures = group_by_query(asks, self._chat, self._checkpoint.max_length)
            results: dict[int, Vector | Failure] = {**failures}
            for group, vectors in zip(groups, self._pooled([group.texts for group in groups]), strict=True):
                results.update(zip(group.positions, vectors, strict=True))
            return [results[position] for position in range(len(asks))]

        return halve_if_out_of_memory(together, asks)

    def _pooled(self, groups: Sequence[Sequence[Text]]) -> list[list[Vector]]:
        rows = run_states(
            self._checkpoint,
            self._body,
            self._states,
            groups,
            lambda text: (text.start, text.end),
            lambda states, _: states[-1].float().clone() if self._pool == "last" else states.float().mean(dim=0),
        )
        return [[np.array(pooled.cpu().numpy(), dtype=np.float32) for pooled in row] for row in rows]
