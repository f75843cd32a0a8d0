"""Any causal language model that transformers loads, in this process.

Safetensors only, code from a repository only if asked for. In 32 bits several requests share a forward pass, and every
reply is still what its request alone would get (see `drawing`); in 16 bits, where rounding is not small, each request
has the model to itself. For throughput on GPUs serve the model with vLLM and name it `openai/…;base_url=…`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from prb.errors import BadSpec
from prb.llm import LLM, LLMS, Chat, Completion, Message, Request, plain
from prb.llm.checkpoint import Checkpoint, Dtype, Loading, generation, load
from prb.llm.drawing import MARGIN, draw, gumbel, settled
from prb.types import Failure
from prb.weights import resolve_weights

if TYPE_CHECKING:
    from torch import Generator, Tensor

Tokens = list[int]


@LLMS.register("transformers")
def transformers(
    model: str,
    device: str = "auto",
    dtype: Dtype = "auto",
    adapter: str | None = None,
    batch: int = 8,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> LLM:
    """A causal language model: folder, hub id, or a pulled name such as smollm2.

    `device=auto` is the first GPU, else the CPU; `dtype=auto` is bf16 on a GPU and fp32 on a CPU. `adapter` is a folder
    or hub id of a LoRA adapter. `batch` requests share a forward pass in fp32. Without a chat template of its own, a
    model gets the plain one of `prb.llm.plain`. A prompt that does not fit the model's positions is a failure.
    """
    if batch < 1:
        raise BadSpec("transformers: batch is at least 1")
    loading = Loading(
        where=resolve_weights(model),
        device=device,
        dtype=dtype,
        adapter=adapter,
        trust_remote_code=trust_remote_code,
        revision=revision,
    )
    return Transformers(load(loading), batch=batch)


@dataclass
class Row:
    """One request on its way."""

    request: Request
    prompt: Tokens
    limit: int
    """How many tokens it may write."""
    generator: Generator | None
    written: Tokens = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)
    ended: Literal["", "stop", "length"] = ""


class Transformers:
    remote = False

    def __init__(self, checkpoint: Checkpoint, *, batch: int = 8) -> None:
        self.fingerprint = checkpoint.fingerprint
        self._model, self._tokenizer = checkpoint.model, checkpoint.tokenizer
        self._ends, self._context = checkpoint.ends, checkpoint.context
        self._pad = next((t for t in (self._tokenizer.pad_token_id, *self._ends) if t is not None), 0)
        self._stop = () if self._tokenizer.chat_template else plain.STOP
        self._together = padding_is_rounding(self._model, self._pad)
        self._batch = batch if self._together else 1

    def __repr__(self) -> str:
        return f"<{self.fingerprint}>"

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        rows = [self._row(request) for request in requests]
        results: dict[int, Completion | Failure] = {n: row for n, row in enumerate(rows) if isinstance(row, Failure)}
        waiting = {n: row for n, row in enumerate(rows) if isinstance(row, Row)}
        for group in self._groups(waiting):
            self._generate([waiting[n] for n in group])
            results.update({n: self._completion(waiting[n]) for n in group})
        return [results[n] for n in range(len(requests))]

    def _groups(self, waiting: dict[int, Row]) -> Iterator[list[int]]:
        """Alike lengths together. Log-probabilities are told to the last digit, so those rows go alone."""
        told = [n for n, row in waiting.items() if row.request.sampling.top_logprobs]
        yield from ([n] for n in told)
        rest = sorted(set(waiting) - set(told), key=lambda n: (len(waiting[n].prompt), n))
        yield from (rest[at : at + self._batch] for at in range(0, len(rest), self._batch))

    def _row(self, request: Request) -> Row | Failure:
        import torch

        prompt = self._prompt(request.chat)
        if isinstance(prompt, Failure):
            return prompt
        if len(prompt) >= self._context:
            return Failure("prompt longer than the context", f"{len(prompt)} tokens, context {self._context}")
        sampling = request.sampling
        generator = torch.Generator().manual_seed(sampling.seed % 2**63) if sampling.temperature > 0 else None
        return Row(request, prompt, max(1, min(sampling.max_tokens, self._context - len(prompt))), generator)

    def _prompt(self, chat: Chat) -> Tokens | Failure:
        try:
            text = render(self._tokenizer, chat)
            tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        except (ValueError, TypeError) as error:
            return Failure("no prompt can be made of this chat", str(error))
        return one_bos(self._tokenizer, tokens) or Failure("empty prompt")

    def _generate(self, rows: Sequence[Row]) -> None:
        """The library runs the model and its caches; which token comes next and when a row ends is decided here."""
        import torch

        width = max(len(row.prompt) for row in rows)
        ids = torch.tensor([[self._pad] * (width - len(row.prompt)) + row.prompt for row in rows])
        mask = torch.tensor([[0] * (width - len(row.prompt)) + [1] * len(row.prompt) for row in rows])

        def choose(_: Tensor, scores: Tensor) -> Tensor:
            for row, logits in zip(rows, scores, strict=True):
                if not row.ended:
                    self._write(row, logits.float())
                    logits.fill_(-float("inf"))[row.written[-1]] = 0.0
            return scores

        def ended(tokens: Tensor, _: Tensor, **__: Any) -> Tensor:
            return torch.tensor([bool(row.ended) for row in rows], device=tokens.device)

        self._model.generate(
            input_ids=ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            generation_config=generation(max_new_tokens=max(row.limit for row in rows), pad_token_id=self._pad),
            logits_processor=[choose],
            stopping_criteria=[ended],
        )

    def _write(self, row: Row, logits: Tensor) -> None:
        sampling = row.request.sampling
        if sampling.top_logprobs and not row.written:
            row.first = self._likeliest(logits, sampling.top_logprobs)
        noise = None if row.generator is None else gumbel(len(logits), row.generator).to(logits)
        token = settled(logits, noise, sampling) if self._together else draw(logits, noise, sampling)
        if token is None:
            token = draw(self._logits_alone(row), noise, sampling)
        row.written.append(token)
        if token in self._ends or self._cut(row)[1]:
            row.ended = "stop"
        elif len(row.written) >= row.limit:
            row.ended = "length"

    def _logits_alone(self, row: Row) -> Tensor:
        import torch

        takes = inspect.signature(self._model.forward).parameters
        ids = torch.tensor([row.prompt + row.written], device=self._model.device)
        with torch.inference_mode():
            out = self._model(input_ids=ids, **({"logits_to_keep": 1} if "logits_to_keep" in takes else {}))
        logits: Tensor = out.logits[0, -1].float()
        return logits

    def _likeliest(self, logits: Tensor, n: int) -> dict[str, float]:
        best = logits.log_softmax(-1).topk(min(n, len(logits)))
        found: dict[str, float] = {}
        for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            found.setdefault(self._tokenizer.decode([token]), value)
        return found

    def _cut(self, row: Row) -> tuple[str, bool]:
        """The text up to the first stop string, and whether there is one."""
        stops = [stop for stop in (*row.request.sampling.stop, *self._stop) if stop]
        if not stops and not row.ended:
            return "", False
        written = [token for token in row.written if token not in self._ends]
        text: str = self._tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        at = min((place for stop in stops if (place := text.find(stop)) >= 0), default=-1)
        return (text, False) if at < 0 else (text[:at], True)

    def _completion(self, row: Row) -> Completion:
        return Completion(
            text=self._cut(row)[0],
            prompt_tokens=len(row.prompt),
            completion_tokens=len(row.written),
            first=row.first,
            truncated=row.ended == "length",
        )


def render(tokenizer: Any, chat: Chat) -> str:
    """The chat as text, by the model's own template once; an answer that was begun is continued."""
    from jinja2 import TemplateError

    if not chat:
        raise ValueError("it is empty")
    begun = chat[-1].role == "assistant"
    template = {} if tokenizer.chat_template else {"chat_template": plain.TEMPLATE}
    shape: dict[str, Any] = {"add_generation_prompt": not begun, "continue_final_message": begun, **template}
    for turns in (chat, _system_in_first_turn(chat)):
        messages = [{"role": message.role, "content": message.text} for message in turns]
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **shape))
        except TemplateError as error:
            why = error
    raise ValueError(f"the model's chat template refuses it: {why}")


def _system_in_first_turn(chat: Chat) -> Chat:
    """For templates that know no system role."""
    if len(chat) < 2 or chat[0].role != "system":
        return chat
    return (Message(chat[1].role, f"{chat[0].text}\n\n{chat[1].text}"), *chat[2:])


def one_bos(tokenizer: Any, tokens: Sequence[int]) -> Tokens:
    """Exactly one first token where the model knows such a token and template or tokenizer would put it there."""
    bos = tokenizer.bos_token_id
    rest = list(tokens)
    while bos is not None and rest[:1] == [bos]:
        rest.pop(0)
    wanted = len(rest) < len(tokens) or (bos is not None and tokenizer("a")["input_ids"][:1] == [bos])
    return [bos, *rest] if wanted else rest


def padding_is_rounding(model: Any, pad: int) -> bool:
    """Whether a padded row gets the logits it gets alone, but for rounding far below what `drawing` allows for."""
    import torch

    if model.dtype != torch.float32:
        return False
    size = model.get_input_embeddings().num_embeddings
    short, long = [n % size for n in (5, 7, 11)], [n % size for n in range(3, 12)]
    ids = torch.tensor([[pad] * (len(long) - len(short)) + short, long], device=model.device)
    mask = torch.tensor([[0] * (len(long) - len(short)) + [1] * len(short), [1] * len(long)], device=model.device)
    config = generation(max_new_tokens=1, pad_token_id=pad, output_logits=True, return_dict_in_generate=True)

    def logits(ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = model.generate(input_ids=ids, attention_mask=mask, generation_config=config).logits[0][0]
        return found

    alone = torch.tensor([short], device=model.device)
    off = (logits(ids, mask) - logits(alone, torch.ones_like(alone))).abs().max()
    return bool(off < MARGIN / 8)
