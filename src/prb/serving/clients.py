"""Reward functions for trainers that ask a `prb serve` process. One file, standard library only: copy it anywhere.

verl    custom_reward_function.path=…/clients.py, custom_reward_function.name=compute_score; each row's
        `extra_info["query"]` is what the model may see, `{"question", "user", "posts", "plan"}`, as JSON text or a map
trl     GRPOTrainer(reward_funcs=trl_reward, …); the dataset's column `query` holds the same, else the prompt is asked

`PRB_SERVE_URL` (default http://127.0.0.1:8300) and `PRB_SERVE_TOKEN` say where and with which token. A server that is
busy, restarting or out of reach is asked again for `patience` seconds; then, and on every other error, these raise. An
answer without a score never gets one: `compute_score` raises, `trl_reward` returns None for it, which trl leaves out.
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
AGAIN = frozenset({429, 503})
"""Statuses that mean: later. Any other error would come back the same."""
LONGEST_PAUSE = 30.0

_JITTER = random.SystemRandom()  # not the trainer's random state
_DIRECT = build_opener(ProxyHandler({}))  # texts of people go to this server and through no proxy


class NoScore(RuntimeError):
    """The server gave no score, and why."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,  # noqa: ARG001 - verl passes it; what is right for a person is the model's to say
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    patience: float = PATIENCE,
    **_: Any,
) -> float:
    """verl's custom reward function; `url` and `patience` may come from `custom_reward_function.reward_kwargs`."""
    query = (extra_info or {}).get("query")
    if query is None:
        raise NoScore(f"a row of {data_source!r} has no extra_info['query']: whose preference, and of what?")
    return float(score(query, [solution_str], url=url, patience=patience)["scores"][0])


def trl_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    query: Sequence[Any] | None = None,
    *,
    url: str | None = None,
    patience: float = PATIENCE,
    **_: Any,
) -> list[float | None]:
    """trl's reward function; answers to the same query travel together, different queries at the same time."""
    queries = [{"question": _conversation(p)} for p in prompts] if query is None else query
    groups: dict[str, list[int]] = {}
    for position, one in enumerate(queries):
        groups.setdefault(json.dumps(plain(one)), []).append(position)

    def ask(group: tuple[str, list[int]]) -> list[float | None]:
        answers = [_last(completions[position]) for position in group[1]]
        scores: list[float | None] = score(group[0], answers, partial=True, url=url, patience=patience)["scores"]
        return scores

    rewards: list[float | None] = [None] * len(completions)
    with ThreadPoolExecutor(min(32, len(groups) or 1)) as pool:
        for positions, scores in zip(groups.values(), pool.map(ask, groups.items()), strict=True):
            for position, reward in zip(positions, scores, strict=True):
                rewards[position] = reward
    return rewards


def score(
    query: Any,
    answers: Sequence[str],
    *,
    partial: bool = False,
    url: str | None = None,
    token: str | None = None,
    patience: float = PATIENCE,
) -> dict[str, Any]:
    """`POST /v1/score`: its reply, or NoScore."""
    body = json.dumps({"query": plain(query), "answers": list(answers), "partial": partial}).encode()
    address = (url or os.environ.get("PRB_SERVE_URL") or URL).rstrip("/") + "/v1/score"
    headers = {"Content-Type": "application/json"}
    if not address.startswith(("http://", "https://")):
        raise NoScore(f"{address} is no address: it wants http:// or https:// before it")
    token = (token or os.environ.get("PRB_SERVE_TOKEN") or "").strip()
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return _post(Request(address, body, headers), patience)  # noqa: S310 - the user's own setting


def plain(query: Any) -> dict[str, Any]:
    """A query as a map without empty fields: tables fill what a row lacks with nulls, and lists may be arrays."""
    made = json.loads(query) if isinstance(query, str) else json.loads(json.dumps(query, default=_array))
    if not isinstance(made, dict):
        raise NoScore(f"a query is a map with a question, not {type(made).__name__}")
    return {key: _without_nulls(value) for key, value in made.items() if value is not None}


def _post(request: Request, patience: float) -> dict[str, Any]:
    end = time.monotonic() + patience
    attempt = 0
    while True:
        try:
            with _DIRECT.open(request, timeout=TIMEOUT) as reply:
                said: dict[str, Any] = json.load(reply)
                return said
        except HTTPError as error:
            with error:
                reason = f"{error.code} {_reason(error)}"
            if error.code not in AGAIN:
                raise NoScore(f"{request.full_url}: {reason}") from None
            pause = _seconds(error.headers.get("Retry-After"))
        except (OSError, ValueError) as error:  # refused, reset, timed out, or half a reply
            reason, pause = str(error) or type(error).__name__, min(LONGEST_PAUSE, 0.25 * 2**attempt)
        pause *= 0.75 + _JITTER.random() / 2
        if time.monotonic() + pause > end:
            raise NoScore(f"{request.full_url}: {reason} (tried for {patience:g} s)")
        time.sleep(pause)
        attempt = min(attempt + 1, 8)


def _reason(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)


def _seconds(text: str | None) -> float:
    try:
        return min(LONGEST_PAUSE, max(0.1, float(text or 1)))
    except ValueError:
        return 1.0


def _array(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy
        return value.tolist()
    raise NoScore(f"a query cannot hold a {type(value).__name__}")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    if isinstance(value, dict):
        return {key: entry for key, entry in value.items() if entry is not None}
    return value


def _conversation(prompt: Any) -> str:
    """A prompt as a question: the text itself, the one user turn, or all turns with who speaks."""
    if isinstance(prompt, str):
        return prompt
    turns = [turn for turn in prompt if turn["role"] != "system"]
    if len(turns) == 1:
        return _content(turns[0])
    return "\n\n".join(f"{turn['role']}: {_content(turn)}" for turn in turns)


def _last(completion: Any) -> str:
    return completion if isinstance(completion, str) else _content(completion[-1])


def _content(turn: Mapping[str, Any]) -> str:
    content = turn["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")
