"""Reward heads behind a real vLLM on a CPU, against our own engine: `make test-vllm` has an environment for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("vllm", reason="vLLM lives in an environment of its own: make test-vllm")

from prb.errors import PrbError
from prb.models import MODELS
from prb.types import Ask, Failure, Post, Query, Scorer
from prb.weights import resolve_weights
from tests.models.reward_server import RewardServer
from tests.tiny import tokenizer
from tests.vllm.heads import save_head, save_smollm2_head

CLOSE = 1e-4
PATIENCE = 600.0
ANSWERS = ("Early in the morning.", "Never, buy a big book.", "a long answer " * 12)


def asks(n: int) -> list[Ask]:
    posts = tuple(Post(str(i), "home", f"I like to cook bread in city {i}.") for i in range(3))
    queries = [Query(question=f"How do I bake bread number {i}?", posts=posts) for i in range(n)]
    return [Ask(query, answer) for query in queries for answer in ANSWERS]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, made = tmp_path_factory.mktemp("heads"), {}

    def head(name: str) -> Path:
        if name == "smollm2" and name not in made:
            try:
                made[name] = save_smollm2_head(folder / name, resolve_weights("smollm2"))
            except PrbError as error:
                pytest.skip(str(error))
        return made.setdefault(name, folder / name if (folder / name).exists() else save_head(folder / name, name))

    return head


@contextmanager
def vllm(folder: Path, port: int = 0) -> Iterator[tuple[str, Callable[[], None]]]:
    """A server process: its URL, and what kills it."""
    port = port or free_port()
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    words += ["--host", "127.0.0.1", "--runner", "pooling", "--dtype", "float32", "--enforce-eager"]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder.parent / f"{port}.log"
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=env, start_new_session=True)

    def kill() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process, log)
        yield url, kill
    finally:
        kill()


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            assert process.poll() is None, log.read_text()[-2000:]
            time.sleep(1)
    raise AssertionError(log.read_text()[-2000:])


def post(url: str, body: Any) -> tuple[int, Any]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)


def scorer(spec: str) -> Scorer:
    model = MODELS.make(spec)
    assert isinstance(model, Scorer)
    return model


def engine(folder: Path, n: int) -> list[float]:
    scores = scorer(f"classifier?path={folder}&dtype=fp32&device=cpu").score(asks(n))
    return [float(score) for score in scores if not isinstance(score, Failure)]


def difference(scores: list[float | Failure], expected: list[float]) -> float:
    assert not [score for score in scores if isinstance(score, Failure)]
    return max(abs(float(a) - b) for a, b in zip(scores, expected, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["llama", "qwen3", "smollm2"])
def test_logits_of_vllm_are_those_of_our_engine(
    name: str, heads: Callable[[str], Path], record_property: Callable[[str, object], None]
) -> None:
    expected = engine(heads(name), 8)
    with vllm(heads(name)) as (url, _):
        off = difference(scorer(f"classifier?url={url}").score(asks(8)), expected)
        print(f"{name}: max |Δ| {off:.2e} of {max(map(abs, expected)):.2f}")
        record_property(name, off)
        assert off <= CLOSE
        if name == "llama":
            check_fake(url, heads(name))


def check_fake(url: str, folder: Path) -> None:
    """The fake of `make test` replies with the same statuses and fields."""
    name = str(folder)
    fake = RewardServer("vllm", name, tokenizer(), model=name)
    ids = [[1, 3, 20, 30, 6], [1, 3, 20, 31, 6]]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/classify", {"model": name, "input": ids, "use_activation": False}),
        ("/classify", {"model": name, "input": ids}),
        ("/pooling", {"model": name, "input": ids, "task": "classify", "use_activation": False}),
        ("/classify", {"model": "nobody", "input": ids, "use_activation": False}),
        ("/classify", {"model": name, "input": [[1] * 600], "use_activation": False}),
        ("/tokenize", {"model": name, "prompt": "Bake bread.", "add_special_tokens": False}),
    ]
    for path, body in bodies:
        status, reply = post(url + path, body)
        fake_status, fake_reply = fake.post(path, body)
        assert (fake_status, set(fake_reply) - set(reply)) == (status, set())
        for part in ("data", "error"):
            if part in reply:
                rows, fakes = (x[part] if isinstance(x[part], list) else [x[part]] for x in (reply, fake_reply))
                assert [set(row) for row in fakes] == [set(row) for row in rows]
                same = {"label", "index", "num_classes", "object", "type", "code"}
                assert [{k: r[k] for k in same & set(r)} for r in fakes] == [
                    {k: r[k] for k in same & set(r)} for r in rows
                ]
