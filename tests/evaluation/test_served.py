"""`prb evaluate` with a served model whose server dies in the middle."""

from __future__ import annotations

import threading
from typing import Any

import orjson
import pytest

pytest.importorskip("httpx2", reason="needs the api extra")

from prb.api import evaluate
from prb.errors import Unreachable
from tests import tiny
from tests.conftest import make_row
from tests.models.reward_server import RewardServer, serve_rewards
from tests.runs import outcomes


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr("prb.llm.endpoint.retry_pause", lambda *_: 0.0)
    words = tiny.tokenizer()
    words.save_pretrained(tmp_path / "rm")
    return RewardServer("vllm", str(tmp_path / "rm"), words)


def test_a_run_whose_server_died_is_resumed_and_equals_an_undisturbed_one(server, tmp_path, monkeypatch):
    monkeypatch.setenv("RM_KEY", "sk-very-secret-1234")
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"".join(orjson.dumps(make_row(n)) + b"\n" for n in range(24)))

    def run(out: str) -> Any:
        spec = f"rm:=classifier?url={server.url}&retries=1&key_env=RM_KEY&concurrency=2"
        return evaluate(dataset=str(rows), model=(spec,), batch=4, out=tmp_path / out, quiet=True, cache=False)

    death = threading.Thread(target=server.stop)

    def dies(one: RewardServer, _: Any) -> None:
        if len(one.bodies) == 31:
            death.start()
        if len(one.bodies) > 30:
            raise ConnectionError

    with serve_rewards(server):
        whole = run("whole")
        server.bodies.clear()
        server.fault = dies
        with pytest.raises(Unreachable, match="run the same command again to resume"):
            run("again")
        kept = outcomes(tmp_path / "again")
        assert 0 < len(kept) < len(outcomes(tmp_path / "whole"))
        assert all(line["failure"] is None for line in kept)
        server.fault = lambda *_: None
        death.join()
        server.start()
        resumed = run("again")
    assert outcomes(tmp_path / "again") == outcomes(tmp_path / "whole")
    assert resumed.summary == whole.summary
    for file in (tmp_path / "again").iterdir():
        assert b"secret" not in file.read_bytes()
