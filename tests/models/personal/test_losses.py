"""Losses by hand and by property."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the torch extra")

from prb.models.personal.losses import active_units, bradley_terry, gaussian_kl, squared, warm_up  # noqa: E402

MARGINS = st.lists(st.floats(-20, 20), min_size=1, max_size=8)


def test_a_coin_is_surprised_by_one_bit() -> None:
    assert float(bradley_terry(torch.zeros(3))) == pytest.approx(math.log(2))


def test_the_loss_of_one_margin_is_minus_log_sigmoid() -> None:
    assert float(bradley_terry(torch.tensor([1.5]))) == pytest.approx(-math.log(1 / (1 + math.exp(-1.5))))


@settings(deadline=None, max_examples=30)
@given(MARGINS)
def test_larger_margins_always_lower_the_loss(margins: list[float]) -> None:
    given_margins = torch.tensor(margins, dtype=torch.float64, requires_grad=True)
    bradley_terry(given_margins).backward()
    assert bool((given_margins.grad < 0).all())


@settings(deadline=None, max_examples=30)
@given(MARGINS)
def test_swapping_the_labels_costs_the_margin(margins: list[float]) -> None:
    m = torch.tensor(margins, dtype=torch.float64)
    assert float(bradley_terry(-m) - bradley_terry(m)) == pytest.approx(float(m.mean()), abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=5))
def test_a_kl_is_never_negative(latents: list[tuple[float, float]]) -> None:
    mean, log_variance = torch.tensor(latents, dtype=torch.float64).T
    assert float(gaussian_kl(mean, log_variance)) >= -1e-12


def test_the_kl_of_the_prior_is_zero_and_of_a_shifted_one_half_its_square() -> None:
    assert float(gaussian_kl(torch.zeros(4), torch.zeros(4))) == 0
    assert float(gaussian_kl(torch.tensor([2.0]), torch.zeros(1))) == pytest.approx(2.0)


def test_a_kl_agrees_with_torch_distributions() -> None:
    from torch.distributions import Normal, kl_divergence

    mean, log_variance = torch.tensor([0.3, -1.2]), torch.tensor([0.5, -0.7])
    other = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum()
    assert float(gaussian_kl(mean, log_variance)) == pytest.approx(float(other), rel=1e-5)


def test_a_warm_up_starts_at_nothing_and_ends_at_all() -> None:
    assert [warm_up(p, 0.4) for p in (0.0, 0.2, 0.4, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert warm_up(0.0, 0.0) == 1.0


def test_a_latent_that_is_the_same_for_everybody_counts_as_collapsed() -> None:
    means = torch.tensor([[0.0, 1.0, 5.0], [0.0, -1.0, 5.0]])
    assert active_units(means) == 1
    assert active_units(means[:1]) == 0


def test_free_parameters_are_not_penalised() -> None:
    assert float(squared({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, frozenset({"b"}))) == 9.0
