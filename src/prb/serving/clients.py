"""Reward functions for trainers, backed by a `prb serve` process. Standard library only, so it imports anywhere.

verl    custom_reward_function.path is the path of this file, custom_reward_function.name=compute_score; each row's
        `extra_info["query"]` is what the model may see, `{"question", "user", "posts", "plan"}`, as JSON text or a dict
trl     GRPOTrainer(reward_funcs=trl_reward, …); the dataset's column `query` holds the same, else the prompt is used

`PRB_SERVE_URL` (default http://127.0.0.1:8300) and `PRB_SERVE_TOKEN` set address and token. A server that is busy,
restarting or unreachable is retried for `patience` seconds; then, and on every other error, these functions raise. An
answer without a score never gets a number: `compute_score` raises, `trl_reward` returns None, which trl leaves out. An
empty answer is not a failure but the policy's output: for verl it has its own reward and is counted.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

URL = "http://127.0.0.1:8300"
PATIENCE = 600.0
TIMEOUT = 600.0
RETRIED = frozenset({429, 503})
"""Retrying any other status would give the same reply."""
MAX_CONNECTIONS = 32
SHORTEST = "."
"""Stands in for an empty answer, so that there always is a lowest reward."""

_lowest = float("inf")
_JITTER = random.SystemRandom()  # leaves the trainer's random state alone
_DIRECT = build_opener(ProxyHandler({}))  # users' texts go to this server directly, never through a proxy


class NoScore(RuntimeError):
    """The server gave no score; the message says why."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,  # noqa: ARG001 - verl passes it; there is no single right answer here
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    patience: float = PATIENCE,
    empty: float | None = None,
    **_: Any,
) -> dict[str, float]:
    """verl's custom reward function; `url`, `patience` and `empty` may come from
    `custom_reward_function.reward_kwargs`. `empty` is the reward of an answer without text, by default the lowest that
    this process has given; verl logs `empty` of the reply."""
    global _lowest  # noqa: PLW0603 - verl keeps no object between calls
    query = (extra_info or {}).get("query")
    if query is None:
        raise NoScore(f"a row of {data_source!r} has no extra_info['query'], which holds the question and the user")
    without_text = not solution_str.strip()
    if without_text and empty is not None:
        return {"score": float(empty), "empty": 1.0}
    answer = SHORTEST if without_text else solution_str
    reward = float(score(query, [answer], url=url, patience=patience)["scores"][0])
    _lowest = min(_lowest, reward)
    return {"score": _lowest if without_text else reward, "empty": float(without_text)}


def trl_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    query: Sequence[Any] | None = None,
    *,
    url: str | None = None,
    patience: float = PATIENCE,
    **_: Any,
) -> list[float | None]:
    """trl's reward function; answers to the same query are sent together, different queries concurrently."""
    queries = list(map(_without_query, prompts)) if query is None else query
    groups: dict[str, list[int]] = {}
    for position, each in enumerate(queries):
        groups.setdefault(json.dumps(normalize(each)), []).append(position)
    rewards: list[float | None] = [None] * len(completions)

    def ask(group: tuple[str, list[int]]) -> None:
        query_text, positions = group
        replies = [completions[position] for position in positions]
        answers = [reply if isinstance(reply, str) else reply[-1]["content"] for reply in replies]
        scores = score(query_text, answers, partial=True, url=url, patience=patience)["scores"]
        for position, reward in zip(positions, scores, strict=True):
            rewards[position] = reward

    with ThreadPoolExecutor(min(MAX_CONNECTIONS, len(groups) or 1)) as pool:
        list(pool.map(ask, groups.items()))
    return rewards


def score(
    query: Any, answers: Sequence[str], *, partial: bool = False, url: str | None = None, patience: float = PATIENCE
) -> dict[str, Any]:
    """`POST /v1/score`: the reply, or NoScore."""
    body = json.dumps({"query": normalize(query), "answers": list(answers), "partial": partial}).encode()
    address = (url or os.environ.get("PRB_SERVE_URL") or URL).rstrip("/") + "/v1/score"
    headers = {"Content-Type": "application/json"}
    if not address.startswith(("http://", "https://")):
        raise NoScore(f"{address} is not a URL: it must begin with http:// or https://")
    if token := os.environ.get("PRB_SERVE_TOKEN", "").strip():
        headers["Authorization"] = f"Bearer {token}"
    return _post(Request(address, body, headers), patience)  # noqa: S310 - the user's own setting


def normalize(query: Any) -> dict[str, Any]:
    """A query as a dict without empty fields: tables fill missing values with nulls, and lists may be arrays."""

    def array(value: Any) -> Any:
        if hasattr(value, "tolist"):  # numpy
            return value.tolist()
        raise NoScore(f"a query cannot hold a {type(value).__name__}")

    text = query if isinstance(query, str) else json.dumps(query, default=array)
    parsed = json.loads(text, object_hook=lambda fields: {k: v for k, v in fields.items() if v is not None})
    if not isinstance(parsed, dict):
        raise NoScore(f"a query must be a dict with a question, not {type(parsed).__name__}")
    return parsed


def _post(request: Request, patience: float) -> dict[str, Any]:
    end = time.monotonic() + patience
    attempt = 0
    while True:
        try:
            with _DIRECT.open(request, timeout=TIMEOUT) as reply:
                result: dict[str, Any] = json.load(reply)
                return result
        except HTTPError as error:
            with error:
                try:
                    reason = f"{error.code} {json.load(error)['error']}"
                except (OSError, ValueError, KeyError, TypeError):
                    reason = f"{error.code} {error.reason}"
            if error.code not in RETRIED:
                raise NoScore(f"{request.full_url}: {reason}") from None
            seconds = error.headers.get("Retry-After", "")
            asked = float(seconds) if seconds.isdecimal() else 0.0
        except (OSError, ValueError) as error:  # refused, reset, timed out, or cut short
            reason, asked = str(error) or type(error).__name__, 0.0
        pause = asked + _JITTER.uniform(0.1, 1) * min(30.0, 0.25 * 2**attempt)  # never before the server says
        if time.monotonic() + pause > end:
            raise NoScore(f"{request.full_url}: {reason} (tried for {patience:g} s)")
        time.sleep(pause)
        attempt = min(attempt + 1, 8)


def _without_query(prompt: Any) -> dict[str, Any]:
    """A prompt as a query: text is the question, and of turns the last one."""
    if isinstance(prompt, str):
        return {"question": prompt}
    *before, last = prompt
    return {
        "question": last["content"],
        "context": [{"role": turn["role"], "text": turn["content"]} for turn in before],
    }
