"""The engine against the loops others use: same model, same data, same dtype, one run; median of several repetitions.

python benchmarks/engine.py                 SmolLM2-135M, the embedded benchmark at k = 10 posts
python benchmarks/engine.py --repeat 1 --queries 2
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from record import median_time, write_between

from prb.data.load import load
from prb.data.retrieve import RANKERS, top_posts
from prb.engine.chat import Chat
from prb.engine.load import Checkpoint, Loading
from prb.engine.load import load as load_model
from prb.engine.prefix import Bundle, SharedPrefix, bundle
from prb.types import Pair, Query


@dataclass(frozen=True)
class Args:
    repeat: int = 5
    """Repetitions with two answers, of which the median counts; larger sets are slow and run fewer times."""
    queries: int = 8
    """Queries with two answers; with 16 and 64 answers fewer are used."""
    answers: tuple[int, ...] = (2, 16, 64)
    """Answers a query; 64 take several minutes on two cores."""
    lm: str = "smollm2"
    """A pulled name or a folder."""


def main(args: Args) -> None:
    loaded = load_model(args.lm, "causal", Loading())
    peak = matmul_peak()
    columns = [
        "answers",
        "engine",
        "padded loop of 8",
        "length-sorted",
        "speed-up",
        "bound",
        "of bound",
        "of matmul peak",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|" + " ---: |" * len(columns)]
    for answers in args.answers:
        queries = max(1, args.queries * 2 // answers)
        bundles = make_bundles(loaded.tokenizer, queries, answers)
        lines.append(compare(loaded, bundles, answers, max(1, args.repeat * 2 // answers), peak))
        print(lines[-1], flush=True)
    tokens = statistics.mean(len(b.prefix) for b in bundles)
    about = f"SmolLM2-135M, fp32, {torch.get_num_threads()} threads, prefixes of about {tokens:.0f} tokens; "
    about += f"matmul peak {peak:.0f} GFLOP/s; median of {args.repeat} with two answers."
    write_between("engine", f"{about}\n\n" + "\n".join(lines))


def make_bundles(tokenizer: Any, queries: int, answers: int) -> list[Bundle]:
    """Queries of the embedded set with ten posts; further answers are borrowed from other questions."""
    pairs = [item for item in load("mirror") if isinstance(item, Pair)]
    pool = [answer for pair in pairs for answer in pair.answers]
    chat, made = Chat(tokenizer), []
    for n in range(queries):
        pair = pairs[n * 12 % len(pairs)]
        posts = top_posts(pair.question, pair.profile, RANKERS["embedding"], k=10).posts
        query = Query(question=pair.question, user=pair.user, posts=posts)
        texts = [*pair.answers, *pool[n * 64 : n * 64 + answers - 2]]
        made.append(bundle([chat.tokens(query, text) for text in texts]))
    return made


def compare(loaded: Checkpoint, bundles: Sequence[Bundle], answers: int, repeat: int, peak: float) -> str:
    body = loaded.model.base_model
    sequences = [[*b.prefix, *suffix] for b in bundles for suffix in b.suffixes]
    shared = SharedPrefix(body, budget=loaded.budget)
    ours = median_time(lambda: shared.run(bundles, lambda states, *_: states[-1].sum()), repeat)
    padded = median_time(lambda: in_batches(body, sequences, 8), repeat)
    ordered = sorted(sequences, key=len, reverse=True)
    length_sorted = median_time(lambda: in_batches(body, ordered, 8), repeat)
    bound = sum(b.repeated for b in bundles) / sum(b.unique for b in bundles)
    flops = 2 * sum(p.numel() for n, p in body.named_parameters() if "embed" not in n) * sum(b.unique for b in bundles)
    cells = [
        f"{answers}",
        f"{ours:.1f} s",
        f"{padded:.1f} s",
        f"{length_sorted:.1f} s",
        f"{padded / ours:.2f}×",
        f"{bound:.2f}×",
    ]
    return "| " + " | ".join([*cells, f"{padded / ours / bound:.0%}", f"{flops / ours / 1e9 / peak:.0%}"]) + " |"


@torch.inference_mode()
def in_batches(body: Any, sequences: Sequence[Sequence[int]], size: int) -> None:
    for start in range(0, len(sequences), size):
        rows = sequences[start : start + size]
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        mask = torch.tensor([[*[1] * len(row), *[0] * (width - len(row))] for row in rows])
        body(input_ids=ids, attention_mask=mask, use_cache=False)


def matmul_peak(n: int = 2048) -> float:
    """GFLOP/s of a large matrix product: what this machine can do at best."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    return max(2 * n**3 / median_time(lambda: a @ b, 1) / 1e9 for _ in range(10))


if __name__ == "__main__":
    main(tyro.cli(Args))
