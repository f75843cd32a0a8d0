from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prb.llm import Sampling
from prb.llm.drawing import MARGIN, draw, gumbel, settled

torch = pytest.importorskip("torch", reason="needs the torch extra")

LOGITS = [2.0, 1.5, 0.2, -1.0, -4.0]


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def frequencies(sampling: Sampling, draws: int = 4000) -> list[float]:
    generator, logits = seeded(7), torch.tensor(LOGITS)
    seen = Counter(draw(logits, gumbel(5, generator).float(), sampling) for _ in range(draws))
    return [seen[token] / draws for token in range(5)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature: float) -> None:
    expected = (torch.tensor(LOGITS) / temperature).softmax(-1).tolist()
    assert frequencies(Sampling(temperature=temperature)) == pytest.approx(expected, abs=0.03)


def test_top_p_keeps_the_likeliest_tokens_that_hold_it_and_no_more() -> None:
    first, second, third, *_ = torch.tensor(LOGITS).softmax(-1).tolist()
    assert first < 0.7 < first + second < 0.95 < first + second + third
    two = [first / (first + second), second / (first + second), 0, 0, 0]
    assert frequencies(Sampling(temperature=1.0, top_p=0.7)) == pytest.approx(two, abs=0.03)
    three = frequencies(Sampling(temperature=1.0, top_p=0.95))
    assert min(three[:3]) > 0
    assert three[3:] == [0, 0]


def test_a_top_p_of_nothing_leaves_the_likeliest() -> None:
    assert frequencies(Sampling(temperature=1.0, top_p=0.0), draws=50) == [1, 0, 0, 0, 0]


def test_without_noise_it_is_the_likeliest() -> None:
    assert draw(torch.tensor(LOGITS), None, Sampling()) == settled(torch.tensor(LOGITS), None, Sampling()) == 0


def slow_draw(logits: Any, noise: Any, sampling: Sampling) -> int:
    """By sorting everything and going through it one by one."""
    share = (logits / sampling.temperature).softmax(-1).tolist()
    kept, held = [], 0.0
    for token in sorted(range(len(share)), key=lambda t: -share[t]):
        if kept and held >= sampling.top_p:
            break
        kept.append(token)
        held += share[token]
    return max(kept, key=lambda t: float(logits[t] + sampling.temperature * noise[t]))


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.99])
def test_a_large_vocabulary_is_drawn_from_as_by_sorting_it_all(top_p: float, width: float) -> None:
    generator, sampling = seeded(11), Sampling(temperature=0.8, top_p=top_p)
    for _ in range(5):
        logits = torch.randn(3000, generator=generator) * width
        noise = gumbel(3000, generator).float()
        token = slow_draw(logits, noise, sampling)
        assert draw(logits, noise, sampling) == token
        assert settled(logits, noise, sampling) in (None, token)


@pytest.mark.parametrize("size", [60, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.1])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_settled_token_survives_rounding(temperature: float, top_p: float, size: int) -> None:
    generator, sampling = seeded(3), Sampling(temperature=temperature, top_p=top_p)
    found = 0
    for _ in range(100):
        logits = torch.randn(size, generator=generator) * 2
        logits[1] = logits.max() - 1e-3 * torch.rand(1, generator=generator)  # near the top, so that ties are common
        noise = gumbel(size, generator).float() if temperature else None
        token = settled(logits, noise, sampling)
        for _ in range(3):
            off = (torch.rand(size, generator=generator) - 0.5) * MARGIN * 0.5
            assert token in (None, draw(logits + off, noise, sampling))
        found += token is not None
    assert found > 0 or temperature == 0


def test_a_tie_is_not_settled_whichever_way_it_arises() -> None:
    near = torch.tensor([1.0, 1.0 + MARGIN / 4, -3.0])
    assert settled(near, None, Sampling()) is None
    only_the_likeliest = Sampling(temperature=1.0, top_p=0.1)
    assert settled(near, torch.tensor([0.0, 9.0, 0.0]), only_the_likeliest) is None


def test_most_tokens_are_settled() -> None:
    generator, sampling = seeded(5), Sampling(temperature=1.0, top_p=0.9)
    tokens = [
        settled(torch.randn(500, generator=generator) * 3, gumbel(500, generator).float(), sampling) for _ in range(200)
    ]
    assert tokens.count(None) < 20
