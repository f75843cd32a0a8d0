"""Hidden states at any layer of a causal LM, pooled over an answer's tokens, with shared prefixes computed once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prb.engine.answers import group_by_query
from prb.engine.chat import Chat, Text
from prb.engine.heads import bundle_texts, read_tokens
from prb.engine.load import Checkpoint
from prb.engine.sharing import States
from prb.errors import BadInput
from prb.failures import halve_if_out_of_memory
from prb.types import Ask, Failure

Pool = Literal["mean", "last"]
Vector = NDArray[np.float32]


class AtLayer(torch.nn.Module):
    """A model body whose last hidden state is that of an inner layer; 0 is the embedding, -1 the last."""

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


class HiddenStates:
    def __init__(self, checkpoint: Checkpoint, layer: int, pool: Pool) -> None:
        layers = checkpoint.model.config.get_text_config().num_hidden_layers
        if not -layers - 1 <= layer <= layers:
            raise BadInput(f"layer={layer}: this model has layers 0 to {layers}")
        layer = layer % (layers + 1)
        self.fingerprint = f"hidden-{checkpoint.fingerprint}-{layer}-{pool}"
        self._checkpoint, self._pool = checkpoint, pool
        self._chat = Chat(checkpoint.tokenizer)
        self._states = States(checkpoint, AtLayer(checkpoint.body, layer).eval())
        self.sharing = checkpoint.sharing
        self.execution = str(self.sharing)

    def texts(self, texts: Sequence[str]) -> Vector:
        limit = self._checkpoint.max_length
        ids = [self._checkpoint.tokenizer(text or " ")["input_ids"][:limit] for text in texts]
        rows = self._pooled([[Text(each, 0, len(each))] for each in ids])
        return np.stack([row[0] for row in rows]) if rows else np.zeros((0, 1), dtype=np.float32)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        return halve_if_out_of_memory(self._answers_together, asks)

    def _answers_together(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        groups = list(group_by_query(asks, self._chat, self._checkpoint.max_length))
        results: dict[int, Any] = {i: group.failure for group in groups for i in group.positions}
        scored = [group for group in groups if not group.failure]
        for group, vectors in zip(scored, self._pooled([group.texts for group in scored]), strict=True):
            results.update(zip(group.positions, vectors, strict=True))
        return [results[position] for position in range(len(asks))]

    def _pooled(self, groups: Sequence[Sequence[Text]]) -> list[list[Vector]]:
        bundles = [bundle_texts(group, lambda text: read_tokens(text, self.sharing)) for group in groups]

        def reduce(states: Tensor, row: int, k: int) -> Tensor:
            text, before = groups[row][k], len(bundles[row].prefix) - 1  # states[0] is the prefix's last token
            of_answer = states[text.start - before : text.end - before]
            return of_answer[-1].float() if self._pool == "last" else of_answer.float().mean(dim=0)

        rows = self._states.run(bundles, reduce)
        return [[np.array(pooled.cpu().numpy(), dtype=np.float32) for pooled in row] for row in rows]
