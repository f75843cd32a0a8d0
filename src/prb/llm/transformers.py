"""Any causal LM that transformers loads, in this process.

Several requests share a forward pass, each with its own noise: a token is the largest of logit + temperature × Gumbel
noise, which is a draw from the softmax at that temperature (at temperature 0, the likeliest token). So a reply depends
on its own seed, and on its neighbors by no more than the rounding of a padded batch. A model that padding changes by
more than rounding (`Sharing.padding`) gets one request at a time. For throughput on GPUs serve the model with vLLM and
name it `openai/…?base_url=…`.

Top-p is the usual one: after temperature, the likeliest tokens until they hold this much probability together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from prb.config import Count
from prb.engine.chat import PLAIN_STOP, common_prefix, gathered, one_bos, write_prompt
from prb.engine.load import DEFAULT_LOADING, Checkpoint, Loading, load_shared
from prb.llm import LLM, LLMS, Chat, Completion, JsonObject, Request, Sampling, options_suffix
from prb.llm.asking import opened_by
from prb.types import Failure
from prb.work import chunks

if TYPE_CHECKING:
    from torch import Generator, Tensor

Tokens = list[int]

NEVER = -float("inf")
SHARED = 0.4
"""The share of a prompt that must be another one's beginning, too, for the two to be read together."""
EXACT = 64
"""Of so many tokens the logits are computed in 32 bits where a judge weighs them."""


@LLMS.register("transformers")
def transformers(
    model: str, batch: Count = 8, chat_template_kwargs: JsonObject | None = None, loading: Loading = DEFAULT_LOADING
) -> LLM:
    """A causal LM: folder, hub id, or a pulled name such as smollm2.

    `device=auto` is the first GPU, else the CPU; `dtype=auto` is bf16 on a GPU and fp32 on a CPU. `adapter` is a folder
    or hub id of a LoRA adapter. `batch` requests share a forward pass. A model without a chat template gets a plain one
    (`User: …`, `Assistant: …`); `chat_template_kwargs` is a JSON object for its own, e.g. `{"enable_thinking": false}`.
    A prompt that does not fit the model's positions is a failure.
    """
    return Transformers(load_shared(model, "causal", loading), batch=batch, template=chat_template_kwargs)


@dataclass
class Row:
    """One request in progress."""

    request: Request
    prompt: Tokens
    limit: int
    """Most tokens it may write."""
    generator: Generator | None
    begun: str = ""
    """How the prompt ends: some templates open the thinking themselves."""
    written: Tokens = field(default_factory=list)
    first: dict[str, float] = field(default_factory=dict)
    ended: Literal["", "stop", "length"] = ""


class Transformers:
    remote = False
    at_once = 32
    """On a CPU a batch of rows takes minutes: so many replies are stored at a time. What begins alike is still read
    together."""

    def __init__(self, checkpoint: Checkpoint, *, batch: int = 8, template: Mapping[str, Any] | None = None) -> None:
        from prb.engine.heads import output_states

        self._template = template or {}
        exact = "-exact" if checkpoint.model.dtype.itemsize < 4 else ""  # replies from before it differ
        self.fingerprint = f"transformers-{checkpoint.fingerprint}{options_suffix(self._template)}{exact}"
        self._checkpoint = checkpoint
        self._model, self._tokenizer = checkpoint.model, checkpoint.tokenizer
        self._model.generation_config = generation()  # a repository's penalties and top-k are not what was asked for
        self.ends, self.context = checkpoint.ends, checkpoint.max_length
        self._pad = next((t for t in (self._tokenizer.pad_token_id, *self.ends) if t is not None), 0)
        self._stop = () if self._tokenizer.chat_template else PLAIN_STOP
        self._batch = batch if checkpoint.sharing.padding else 1
        self._states, _ = output_states(checkpoint)

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        rows = [self.begin(request) for request in requests]
        results: dict[int, Completion | Failure] = {n: row for n, row in enumerate(rows) if isinstance(row, Failure)}
        waiting = {n: row for n, row in enumerate(rows) if isinstance(row, Row)}
        self._weigh([row for row in waiting.values() if row.limit == 1 and row.request.sampling.top_logprobs])
        for group in self.groups({n: row for n, row in waiting.items() if not row.ended}):
            self.generate([waiting[n] for n in group])
        for n, row in waiting.items():
            results[n] = Completion(
                text=row.begun + self.cut(row)[0],
                prompt_tokens=len(row.prompt),
                completion_tokens=len(row.written),
                first=row.first,
                truncated=row.ended == "length",
            )
        return [results[n] for n in range(len(requests))]

    def _weigh(self, rows: Sequence[Row]) -> None:
        """Rows of one token, as judges ask for whose verdict is its log-probabilities: what several prompts begin with
        is read once. A model whose states do not give its logits leaves them to `generate`."""
        from prb.engine.heads import output_logits
        from prb.engine.states import bundle

        if not rows or self._states is None:
            return
        groups = gathered(
            sorted(rows, key=lambda row: row.prompt),
            lambda group, row: common_prefix([group[0].prompt, row.prompt]) >= SHARED * len(row.prompt),
        )
        bundles = [bundle([row.prompt for row in group]) for group in groups]
        last = self._states.run(bundles, lambda states, *_: output_logits(self._model, states[-1], best=EXACT).float())
        for group, logits in zip(groups, last, strict=True):
            for row, of_row in zip(group, logits, strict=True):
                self.write_token(row, of_row)

    def groups(self, waiting: dict[int, Row]) -> Iterator[list[int]]:
        """Similar lengths together. Log-probabilities are reported to the last digit, so those rows go alone."""
        alone = [n for n, row in waiting.items() if row.request.sampling.top_logprobs]
        yield from ([n] for n in alone)
        rest = sorted(set(waiting) - set(alone), key=lambda n: (len(waiting[n].prompt), n))
        yield from chunks(rest, self._batch)

    def begin(self, request: Request) -> Row | Failure:
        """The request as a row that nothing is written in yet."""
        import torch

        prompt = self.prompt_tokens(request.chat)
        if isinstance(prompt, Failure):
            return prompt
        if len(prompt) >= self.context:
            return Failure("prompt longer than the context", f"{len(prompt)} tokens, context {self.context}")
        sampling = request.sampling
        generator = torch.Generator().manual_seed(sampling.seed % 2**63) if sampling.temperature > 0 else None
        limit = max(1, min(sampling.max_tokens, self.context - len(prompt)))
        end = self._tokenizer.decode(prompt[-16:])  # where a template may open the thinking
        return Row(request, prompt, limit, generator, begun=opened_by(end))

    def prompt_tokens(self, chat: Chat) -> Tokens | Failure:
        try:
            text = write_prompt(self._tokenizer, chat, **self._template)
            tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        except (ValueError, TypeError) as error:
            return Failure("chat cannot be turned into a prompt", str(error))
        return one_bos(self._tokenizer, tokens) or Failure("empty prompt")

    def generate(self, rows: Sequence[Row]) -> None:
        """The library runs the model and its caches; which token comes next and when a row ends is decided here."""
        import torch

        from prb.engine.states import padded_inputs

        def choose(_: Tensor, scores: Tensor) -> Tensor:
            for row, logits in zip(rows, scores, strict=True):
                if not row.ended:
                    self.write_token(row, logits.float())
                    logits.fill_(-float("inf"))[row.written[-1]] = 0.0
            return scores

        def ended(tokens: Tensor, _: Tensor, **__: Any) -> Tensor:
            return torch.tensor([bool(row.ended) for row in rows], device=tokens.device)

        self._model.generate(
            **padded_inputs([row.prompt for row in rows], self._model.device, pad=self._pad, left=True),
            generation_config=generation(max_new_tokens=max(row.limit for row in rows), pad_token_id=self._pad),
            logits_processor=[choose],
            stopping_criteria=[ended],
        )

    def write_token(self, row: Row, logits: Tensor) -> None:
        sampling = row.request.sampling
        if sampling.top_logprobs and not row.written and not row.begun:
            best = logits.log_softmax(-1).topk(min(sampling.top_logprobs, len(logits)))
            for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                row.first.setdefault(self._tokenizer.decode([token]), value)
        noise = None if row.generator is None else gumbel(len(logits), row.generator).to(logits)
        token = draw(logits, noise, sampling)
        row.written.append(token)
        if token in self.ends or self.cut(row)[1]:
            row.ended = "stop"
        elif len(row.written) >= row.limit:
            row.ended = "length"

    def cut(self, row: Row) -> tuple[str, bool]:
        """The text up to the first stop string, and whether there is one."""
        stops = [stop for stop in (*row.request.sampling.stop, *self._stop) if stop]
        if not stops and not row.ended:
            return "", False
        written = [token for token in row.written if token not in self.ends]
        text: str = self._tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        at = min((place for stop in stops if (place := text.find(stop)) >= 0), default=-1)
        return (text, False) if at < 0 else (text[:at], True)


def generation(**settings: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]


def draw(logits: Tensor, noise: Tensor | None, sampling: Sampling) -> int:
    """The next token; without noise the likeliest."""
    if noise is None:
        return int(logits.argmax())
    scores = logits + sampling.temperature * noise
    if sampling.top_p >= 1:
        return int(scores.argmax())
    falling, tokens = (logits / sampling.temperature).sort(descending=True)
    share = falling.softmax(-1)
    before = share.cumsum(-1) - share
    unlikely = (before >= sampling.top_p) & (before > 0)
    return int(tokens[scores[tokens].masked_fill(unlikely, NEVER).argmax()])


def gumbel(size: int, generator: Generator) -> Tensor:
    import torch

    # 64 bits: in 32 the rarest draws would be too common over a large vocabulary
    uniform = torch.rand(size, generator=generator, dtype=torch.float64)
    return -(-uniform.log()).log()
