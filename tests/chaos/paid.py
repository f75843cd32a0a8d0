"""Jobs whose models are behind an HTTP endpoint that counts: every request is known by what it asked.

A reply's number of tokens is a digest of its request. The run stores it with the reply, so its folder says which
requests were answered and stored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from prb.building.config import BuildConfig
from prb.building.run import build
from prb.downstream.bon import best_of_n
from prb.evaluation.audit import AuditConfig, audit
from prb.evaluation.run import evaluate
from prb.grading import GradeConfig
from prb.grading.run import grade
from prb.llm import Request, Sampling
from prb.runs import REPLIES
from prb.types import Turn
from tests.building.author import author, make_record, material
from tests.conftest import make_row
from tests.downstream import fakes
from tests.llm.server import Reply, Seen, says
from tests.runs import settings

URL = "endpoint-url"
"""The file in the folder of the data that says where the endpoint is."""
DELAY = 0.02
"""Seconds that it takes to reply, so that a job can be killed while it waits."""


def number(seen: Seen) -> int:
    """Of a request, by its content (a sample has its seed there), below the 10^9 tokens that can be true."""
    return int(hashlib.sha256(json.dumps(seen.body, sort_keys=True).encode()).hexdigest()[:7], 16)


def reply(seen: Seen, answer: Callable[[Request], str], delay: float = DELAY) -> Reply:
    chat = tuple(Turn(message["role"], message["content"]) for message in seen.body["messages"])
    text = answer(Request(chat, Sampling(seed=seen.body.get("seed", 0))))
    return says(text, usage=(number(seen), 0), delay=delay)


def any_role(request: Request) -> str:
    """A judge, a grader or a policy, by what it is asked."""
    prompt = request.chat[-1].text
    if aspects := [name for name in material(prompt) if name.startswith("aspect")]:
        grades = [{"aspect": n, "why": "so", "grade": len(prompt) % 3} for n, _ in enumerate(aspects, 1)]
        return json.dumps(grades)
    if re.search(r"Result: [AB]", prompt):
        return f"Result: {'AB'[len(prompt) % 2]}"
    return fakes.says(request)


ANSWERS: dict[str, Callable[[Request], str]] = {"build": author}
"""By verb, if not `any_role`."""


def job(verb: str, data: Path, folder: Path, *, cache: bool = False) -> Any:
    """By default without the cache: what was paid for must be in the folder itself."""
    from tests.chaos.jobs import some_rows, write

    llm = f"openai/m?base_url={(data / URL).read_text()}&concurrency=2"
    match verb:
        case "evaluate":
            return evaluate(settings(some_rows(data), folder, model=(f"judge?llm=({llm})",), batch=2, cache=cache))
        case "grade":
            answers = [{"pair": pair, "answer": f"answer {n}"} for pair in ("r5", "r6", "t1a", "t2b") for n in range(8)]
            given = write(data / "given.jsonl", answers)
            config = GradeConfig(
                dataset=some_rows(data), answers=given, grader=f"llm?llm=({llm})", out=folder, cache=cache
            )
            return grade(config)
        case "bon":
            models = {"policy": llm, "grader": f"llm?llm=({llm})", "model": ("length", "lexical")}
            return best_of_n(fakes.settings(some_rows(data), folder, cache=cache, **models))
        case "audit":
            rows = str(write(data / "audited.jsonl", [make_row(n) for n in range(8)]))
            return audit(AuditConfig(dataset=rows, out=folder, ceiling=f"judge?llm=({llm})", cache=cache))
        case _:
            records = write(data / "records.jsonl", [make_record(n) for n in (1, 2, 3)])
            return build(BuildConfig(input=str(records), llm=llm, out=folder, mirror=False, cache=cache))


VERBS = ("evaluate", "grade", "bon", "build", "audit")
PAID = {f"{verb}, paid": partial(job, verb) for verb in VERBS}


def stored(folder: Path) -> set[int]:
    """The numbers of the requests whose replies are in the folder."""
    lines = [line for path in folder.rglob(REPLIES) for line in path.read_bytes().splitlines(keepends=True)]
    replies = [orjson.loads(line) for line in lines if line.endswith(b"\n")]
    return {reply["tokens"] for reply in replies if reply.get("tokens")}
