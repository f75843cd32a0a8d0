"""A real torch model behind the batcher: requests for the same query share its prefix, and scores are its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from prb.models import MODELS
from prb.serving.server import Batcher, Limits
from tests import tiny
from tests.serving.fakes import ask
from tests.tiny import torch


def test_concurrent_requests_for_one_query_read_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(0)
    people = [" ".join(random.choices(tiny.WORDS, k=60)) for _ in range(2)]
    asks = [ask("ask", " ".join(random.choices(tiny.WORDS, k=10)), people[n % 2]) for n in range(8)]
    model = MODELS.make(f"classifier?path={tiny.save(tmp_path, 'llama', labels=1)}&tokens=4096")
    alone = [float(model.score([one])[0]) for one in asks]  # type: ignore[arg-type]
    embedded: list[int] = []
    plain = torch.nn.functional.embedding

    def counting(ids: torch.Tensor, *more: object, **settings: object) -> torch.Tensor:
        embedded.append(ids.numel())
        return plain(ids, *more, **settings)

    monkeypatch.setattr(torch.nn.functional, "embedding", counting)
    batcher = Batcher(model.score, Limits(window=60, batch=8))

    async def clients() -> list[list[object]]:
        return list(await asyncio.gather(*[batcher.score([one]) for one in asks]))

    together = [result for (result,) in asyncio.run(clients())]
    assert together == pytest.approx(alone, abs=1e-4)
    tokens = sum(reward.tokens for reward in together)  # type: ignore[attr-defined]
    assert len(embedded) == 1  # both queries and all answers are packed into one pass
    assert sum(embedded) < tokens / 2
