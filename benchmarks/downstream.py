"""What scoring adds to sampling in best-of-16, for each reward model; results go to docs/tables/benchmarks.md.

Both are measured in one run, on the same queries, without caches, on one thread, and in CPU seconds, which do not
depend on how busy the machine is: python benchmarks/downstream.py
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import tyro
from record import write_between

from prb.data.load import load_pairs
from prb.data.retrieve import RANKERS, top_posts
from prb.downstream.answers import Candidates, sample_seed
from prb.llm import LLM, Completion, Request, Sampling, make_llm
from prb.models import MODELS
from prb.prompts import policy_chat
from prb.types import Query, Scorer
from prb.work import ask_model

MEASURED = (
    "random",
    "length",
    "lexical",
    "embedding",
    "embedding?encoder=minilm",
    "likelihood?lm=smollm2",
)
TARGET = 0.25


@dataclass(frozen=True)
class Args:
    policy: str = "llamacpp/smollm2?threads=1"
    n: int = 16
    queries: int = 2
    posts: int = 10
    max_tokens: int = 128


def main(args: Args) -> None:
    torch.set_num_threads(1)
    queries = make_queries(args)
    llm = make_llm(args.policy)
    batches: list[Candidates] = []
    sampling = 0.0
    for name, query in queries.items():
        start = time.process_time()
        drawn = sample(llm, name, query, args)
        sampling += time.process_time() - start
        batches.append(Candidates(name, query, drawn))
    lines = ["| reward model | scoring | of sampling | target |", "| --- | ---: | ---: | ---: |"]
    for spec in MEASURED:
        seconds = scoring(spec, batches)
        lines.append(f"| `{spec}` | {seconds:.2f} s | {seconds / sampling:.1%} | < {TARGET:.0%} |")
        print(lines[-1], flush=True)
    about = f"{platform.machine()}; {args.policy} answers {args.queries} queries "
    about += (
        f"with {args.posts} posts {args.n} times each, in at most {args.max_tokens} tokens: {sampling:.0f} CPU seconds."
    )
    write_between("downstream", f"{about}\n\n" + "\n".join(lines))


def make_queries(args: Args) -> dict[str, Query]:
    """Of different couples."""
    made = {}
    for pair in load_pairs("mirror")[:: 12 * 2][: args.queries]:
        posts = top_posts(pair.question, pair.profile, RANKERS["embedding"], k=args.posts).posts
        made[pair.id] = Query(question=pair.question, user=pair.user, posts=posts)
    return made


def sample(llm: LLM, name: str, query: Query, args: Args) -> list[str]:
    seeds = (sample_seed(0, name, n) for n in range(args.n))
    samplings = (Sampling(temperature=1.0, top_p=0.9, max_tokens=args.max_tokens, seed=seed) for seed in seeds)
    replies = llm.complete([Request(policy_chat(query), sampling) for sampling in samplings])
    return [reply.text if isinstance(reply, Completion) else "" for reply in replies]


def scoring(spec: str, batches: Sequence[Candidates]) -> float:
    """One call per query, as `prb bon` does; loading the model is not included."""
    model = MODELS.make(spec)
    method = "score" if isinstance(model, Scorer) else "prefer"
    ask_model(model, method, Candidates("warm-up", Query(question="Hello?"), ["Hello.", "Hi."]).asks(method))
    start = time.process_time()
    for batch in batches:
        ask_model(model, method, batch.asks(method))
    return time.process_time() - start


if __name__ == "__main__":
    main(tyro.cli(Args))
