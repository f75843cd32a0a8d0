"""Every architecture through the engine against a plain forward pass of each text alone: docs/tables/checkpoints.md.

python benchmarks/architectures.py

Tiny random models: two layers, 32 dimensions. They show whether the way a model is run is right, not how fast it is.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import torch
import transformers
from record import ROOT, write_between

sys.path.insert(0, str(ROOT))

from tests import tiny
from tests.architectures import ARCHITECTURES, model_of

from prb.engine.chat import Text
from prb.engine.heads import AnswerLogp, LastToken
from prb.engine.load import Checkpoint
from prb.engine.states import forget_lengths

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Scores = list[float]


def main() -> None:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)  # tiny matrices: threads would only wait for each other
    tokenizer = tiny.tokenizer()
    lines = [
        "| architecture | score | path | max \\|Δ\\| fp32 | max \\|Δ\\| bf16 |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for name in ARCHITECTURES:
        measured = {dtype: measure(name, dtype, tokenizer) for dtype in DTYPES}
        kind, path, _ = measured["bf16"]
        offs = " | ".join(f"{off:.1e}" for _, _, off in measured.values())
        lines.append(f"| {name} | {kind} | {path} | {offs} |")
        print(lines[-1], flush=True)
    about = f"torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}, CPU. "
    about += "Scores are of the order of 1; a step of bf16 is 0.0078."
    write_between("architectures", f"{about}\n\n" + "\n".join(lines), ROOT / "docs" / "tables" / "checkpoints.md")


def measure(name: str, dtype: str, tokenizer: Any) -> tuple[str, str, float]:
    """What is scored, how it was run, and the largest difference from the model's own forward pass."""
    groups = texts()
    try:
        model = model_of(name, "AutoModelForSequenceClassification", DTYPES[dtype])
    except ValueError:  # no classification head in transformers: the likelihood per token instead
        model = model_of(name, "AutoModelForCausalLM", DTYPES[dtype])
        logp = AnswerLogp(checkpoint(model, tokenizer))
        texts_of_all = [text for group in groups for text in group]
        found = [
            value / (text.end - text.start)
            for text, value in zip(texts_of_all, (value for row in logp.logp(groups) for value in row), strict=True)
        ]
        return "likelihood", path_of(logp), largest(found, [plain_logp(model, t) for group in groups for t in group])
    head = LastToken(checkpoint(model, tokenizer))
    found = [float(row) for rows in head.logits(groups) for row in rows]
    return "head", path_of(head), largest(found, [plain_logit(model, t) for group in groups for t in group])


def checkpoint(model: Any, tokenizer: Any) -> Checkpoint:
    model.config.pad_token_id = 0
    return Checkpoint(model, tokenizer, "tiny", max_length=512, ends=frozenset(), budget=256)


def path_of(head: LastToken | AnswerLogp) -> str:
    return "shared" if head.sharing.prefixes else f"whole text: {head.sharing.why}"


def texts() -> list[list[Text]]:
    """Twelve queries of up to 240 tokens, with two to four answers of up to 120."""
    random, groups = Random(0), []
    for _ in range(12):
        prompt = [1, *random.choices(range(7, 390), k=random.randint(4, 240))]
        answers = [random.choices(range(7, 390), k=random.randint(1, 120)) for _ in range(random.randint(2, 4))]
        groups.append([Text([*prompt, *answer], len(prompt), len(prompt) + len(answer)) for answer in answers])
    return groups


@torch.inference_mode()
def plain_logit(model: Any, text: Text) -> float:
    forget_lengths(model)  # as a fresh model: a dynamic rotary embedding remembers longer texts
    return float(model(input_ids=torch.tensor([list(text.ids)])).logits[0, 0])


@torch.inference_mode()
def plain_logp(model: Any, text: Text) -> float:
    logp = torch.log_softmax(model(input_ids=torch.tensor([list(text.ids)])).logits[0].float(), dim=-1)
    total = sum(float(logp[i - 1, text.ids[i]]) for i in range(text.start, text.end))
    return total / (text.end - text.start)


def largest(found: Scores, expected: Scores) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


if __name__ == "__main__":
    main()
