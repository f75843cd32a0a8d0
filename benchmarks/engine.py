"""The engine against the loop others use: same model, same data, same dtype, one run, arms in turn; medians.

python benchmarks/engine.py                 SmolLM2-135M, the embedded benchmark at k = 10 posts; about 18 minutes
python benchmarks/engine.py --repeat 1 --queries 1 --answers 2 --no-write
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from record import median_time, write_between

from prb.data.load import load
from prb.data.retrieve import RANKERS, top_posts
from prb.engine.cascade import Bundle
from prb.engine.chat import Chat
from prb.engine.load import Checkpoint, Loading
from prb.engine.load import load as load_model
from prb.engine.states import States, bundle
from prb.types import Pair, Post, Query

ROWS = 8
"""Sequences per batch of the loop."""
COLUMNS = [
    "answers",
    "engine",
    "with copied keys",
    "padded loop of 8",
    "speed-up",
    "bound",
    "of bound",
    "of matmul peak",
]


@dataclass(frozen=True)
class Args:
    repeat: int = 5
    """Repetitions, of which the median counts."""
    queries: int = 4
    """Queries with two answers; with 16 and 64 answers one is used."""
    answers: tuple[int, ...] = (2, 16, 64)
    """Answers per query."""
    lm: str = "smollm2"
    """A pulled name or a folder."""
    tokens: int | None = None
    """Token budget of the engine; default that of the device."""
    write: bool = True
    """Write the table to docs/tables/benchmarks.md."""


@dataclass(frozen=True)
class Round:
    """One repetition: seconds of each arm, and the speed of a large matrix product just before, in FLOP/s."""

    engine: float
    copied: float
    loop: float
    peak: float


def main(args: Args) -> None:
    loaded = load_model(args.lm, "causal", Loading(tokens=args.tokens))
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " ---: |" * len(COLUMNS)]
    peaks = []
    for answers in args.answers:
        bundles = make_bundles(loaded.tokenizer, max(1, args.queries * 2 // answers), answers)
        rounds = [play(loaded, bundles, n) for n in range(args.repeat)]
        peaks += [each.peak for each in rounds]
        lines.append(line(loaded, bundles, answers, rounds))
        print(lines[-1], flush=True)
    prefix = statistics.mean(len(b.prefix) for b in bundles)
    tokens, together, alone = tokenizing(loaded.tokenizer)
    peak = statistics.median(peaks) / 1e9
    about = (
        f"SmolLM2-135M, fp32, {torch.get_num_threads()} threads, {loaded.budget:,} tokens per forward pass, prefixes "
        f"of about {prefix:.0f} tokens; matmul peak {peak:.0f} GFLOP/s; medians of {args.repeat}; "
        f"|Δ| of a state from a plain pass {difference(loaded, bundles):.0e} of its scale. Tokenizing 64 answers to a "
        f"query of {tokens:,} tokens takes {together:.2f} s of CPU, one by one {alone:.2f} s. "
        f"{kernel_share(loaded, bundles):.0%} of the engine's time is spent in torch's matrix products and attention."
    )
    print(about)
    if args.write:
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
        made.append(bundle([text.ids for text in chat.texts(query, texts)]))
    return made


def play(loaded: Checkpoint, bundles: Sequence[Bundle], number: int) -> Round:
    """The arms one after the other, so that whatever else the machine does meets all of them."""
    body = loaded.model.base_model
    sequences = [[*b.prefix, *suffix] for b in bundles for suffix in b.suffixes]
    packed, copied = (States(body, budget=loaded.budget) for _ in range(2))
    copied._cascade = None
    peak = matmul_peak()
    engine = median_time(lambda: packed.run(bundles, last_state))
    padded = median_time(lambda: copied.run(bundles, last_state))
    return Round(engine, padded, loop=loop_time(body, sequences, number), peak=peak)


def last_state(states: torch.Tensor, *_: int) -> torch.Tensor:
    return states[-1].clone()


def loop_time(body: Any, sequences: Sequence[Sequence[int]], number: int) -> float:
    """Of all batches in file order; of more than two, two are run, other ones each time, and count by their size."""
    parts = [sequences[start : start + ROWS] for start in range(0, len(sequences), ROWS)]
    sizes = [len(part) * max(map(len, part)) for part in parts]
    step = max(1, len(parts) // 2)
    chosen = range(number % step, len(parts), step)
    seconds = median_time(lambda: [run_padded(body, parts[i]) for i in chosen])
    return seconds * sum(sizes) / sum(sizes[i] for i in chosen)


def line(loaded: Checkpoint, bundles: Sequence[Bundle], answers: int, rounds: Sequence[Round]) -> str:
    repeated = sum(len(b.prefix) + len(suffix) for b in bundles for suffix in b.suffixes)
    bound = repeated / sum(map(tokens_once, bundles))
    needed = sum(flops(loaded.model.base_model, b) for b in bundles)
    speed_up = statistics.median(each.loop / each.engine for each in rounds)
    cells = [
        f"{answers}",
        *(f"{statistics.median(getattr(each, arm) for each in rounds):.1f} s" for arm in ("engine", "copied", "loop")),
        f"{speed_up:.2f}×",
        f"{bound:.2f}×",
        f"{speed_up / bound:.0%}",
        f"{statistics.median(needed / each.engine / each.peak for each in rounds):.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def tokens_once(b: Bundle) -> int:
    return len(b.prefix) + sum(map(len, b.suffixes))


def flops(body: Any, b: Bundle) -> float:
    """Of the linear layers for each token once, and of attention for each pair of a token and one it sees."""
    config = body.config
    weights = sum(p.numel() for name, p in body.named_parameters() if "embed" not in name)
    pairs = len(b.prefix) ** 2 / 2 + sum(len(s) * len(b.prefix) + len(s) ** 2 / 2 for s in b.suffixes)
    attention = pairs * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    return float(2 * weights * tokens_once(b) + 4 * attention)


@torch.inference_mode()
def run_padded(body: Any, rows: Sequence[Sequence[int]]) -> None:
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.tensor([[*[1] * len(row), *[0] * (width - len(row))] for row in rows])
    body(input_ids=ids, attention_mask=mask, use_cache=False)


@torch.inference_mode()
def difference(loaded: Checkpoint, bundles: Sequence[Bundle]) -> float:
    """Between the engine's last state of the first text and that of a plain forward pass."""
    body, first = loaded.model.base_model, bundles[0]
    found = States(body, budget=loaded.budget).run([first], last_state)[0][0]
    plain = body(input_ids=torch.tensor([[*first.prefix, *first.suffixes[0]]])).last_hidden_state[0, -1]
    return float((found - plain).abs().max() / plain.abs().max())


def kernel_share(loaded: Checkpoint, bundles: Sequence[Bundle]) -> float:
    """How much of the time goes to the kernels that do the counted work: the rest is what this engine could save."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        States(loaded.model.base_model, budget=loaded.budget).run(bundles, last_state)
    times = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    kernels = ("aten::mm", "aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu")
    return float(sum(times.get(name, 0.0) for name in kernels) / sum(times.values()))


def tokenizing(tokenizer: Any) -> tuple[int, float, float]:
    """Tokens of a long query, and seconds of CPU for 64 answers to it: together, and one by one."""
    pairs = [item for item in load("mirror") if isinstance(item, Pair)]
    answers = [answer for pair in pairs for answer in pair.answers][:64]
    posts = [Post(f"{n}", "", pair.answers[0]) for n, pair in enumerate(pairs[:36])]
    query, chat = Query(question=pairs[0].question, posts=tuple(posts)), Chat(tokenizer)
    start = time.process_time()
    chat.texts(query, answers)
    together = time.process_time()
    one_by_one = [chat.texts(query, [answer])[0] for answer in answers]
    return one_by_one[0].start, together - start, time.process_time() - together


def matmul_peak(n: int = 2048) -> float:
    """FLOP/s of a large matrix product: what this machine can do at best."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    return max(2 * n**3 / median_time(lambda: a @ b) for _ in range(10))


if __name__ == "__main__":
    main(tyro.cli(Args))
