"""What each method promises: its loss by hand, its reward by property, its taste by recovery on synthetic users."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from prb.models.personal.collaborative import Collaborative
from prb.models.personal.methods import METHODS, Pairs, View
from tests.training.synthetic import Users, conflicting_users, cosine, implied_taste

torch = pytest.importorskip("torch", reason="needs the torch extra")

from prb.models.personal.head import tensors  # noqa: E402
from prb.models.personal.methods import Step, bradley_terry, gaussian_kl  # noqa: E402
from prb.training.learning import Learned, Learning, first_rows, fitted_codes, learn, margins  # noqa: E402

MADE = {name: METHODS.make(name) for name in METHODS}
GRADUAL = [name for name, method in MADE.items() if not (method.closed_form or isinstance(method, Collaborative))]
BLIND = ["bt", "lore", "pal", "vpl"]


def test_the_loss_of_one_margin_is_minus_log_sigmoid() -> None:
    assert float(bradley_terry(torch.zeros(3))) == pytest.approx(math.log(2))
    assert float(bradley_terry(torch.tensor([1.5]))) == pytest.approx(-math.log(1 / (1 + math.exp(-1.5))))


def test_a_kl_agrees_with_torch_distributions() -> None:
    from torch.distributions import Normal, kl_divergence

    mean, log_variance = torch.tensor([0.3, -1.2]), torch.tensor([0.5, -0.7])
    other = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum()
    assert float(gaussian_kl(mean, log_variance)) == pytest.approx(float(other), rel=1e-5)


def some_pairs(method: Any, rows: int = 6, size: int = 5, seed: int = 0) -> Pairs:
    rng = np.random.default_rng(seed)
    mask = np.ones((rows, 3))
    mask[0] = 0
    posts = rng.standard_normal((rows, 3, size)) * mask[:, :, None]
    view = View(rng.standard_normal((rows, size)), posts, mask, rng.standard_normal((rows, method.code_size)))
    return Pairs(view, *rng.standard_normal((2, rows, size)), np.arange(rows) // 2)


def some_params(method: Any, size: int = 5, seed: int = 1) -> dict[str, Any]:
    """Not the start values, many of which are zero."""
    rng = np.random.default_rng(seed)
    return {n: torch.from_numpy(v + rng.standard_normal(v.shape)) for n, v in method.start(size, rng).items()}


@pytest.mark.parametrize("name", GRADUAL)
def test_a_reward_does_not_depend_on_its_neighbors(name: str) -> None:
    method = METHODS.make(name)
    pairs, params = tensors(some_pairs(method)), some_params(method)
    whole = method.reward(params, pairs.view, pairs.chosen)
    alone = [
        method.reward(params, View(*(p[n : n + 1] for p in pairs.view)), pairs.chosen[n : n + 1]) for n in range(6)
    ]
    assert torch.allclose(whole, torch.cat(alone), atol=1e-12)


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS.make(n).uses_posts])
def test_the_order_of_the_posts_and_empty_places_make_no_difference(name: str) -> None:
    method = METHODS.make(name)
    raw = some_pairs(method)
    order = [2, 0, 1]
    wider = np.concatenate([raw.view.posts[:, order], np.zeros((6, 2, 5))], axis=1)
    mask = np.concatenate([raw.view.mask[:, order], np.zeros((6, 2))], axis=1)
    other = raw._replace(view=raw.view._replace(posts=wider, mask=mask))
    if method.closed_form:
        params: dict[str, Any] = {"weights": np.arange(11.0), "match": np.arange(25.0).reshape(5, 5)}
        rewards = [method.reward(params, p.view, p.chosen) for p in (raw, other)]
    else:
        params = some_params(method)
        rewards = [method.reward(params, p.view, p.chosen).numpy() for p in (tensors(raw), tensors(other))]
    np.testing.assert_allclose(*rewards, atol=1e-9)


@pytest.mark.parametrize("name", BLIND)
def test_methods_without_posts_cannot_see_any(name: str) -> None:
    method = METHODS.make(name)
    pairs, params = tensors(some_pairs(method)), some_params(method)
    other = pairs.view._replace(posts=torch.zeros_like(pairs.view.posts), question=-pairs.view.question)
    assert torch.equal(method.reward(params, pairs.view, pairs.chosen), method.reward(params, other, pairs.chosen))


def test_lore_mixes_its_basis_by_weights_that_sum_to_one() -> None:
    method = METHODS.make("lore?rank=3")
    basis = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)  # one feature, three directions
    code = torch.log(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64))
    none = torch.zeros(1, 1, dtype=torch.float64)
    view = View(none, none[:, None], none, code)
    # 0.5·1 + 0.3·2 + 0.2·4 = 1.9, by hand; a constant added to all logits changes nothing
    for shift in (0.0, 7.0):
        moved = view._replace(code=code + shift)
        assert float(method.reward({"basis": basis}, moved, none + 1)) == pytest.approx(1.9)


def test_pal_is_highest_at_the_ideal_point() -> None:
    method = METHODS.make("pal?prototypes=2&space=2")
    params = {"map": torch.eye(2, dtype=torch.float64), "prototypes": torch.tensor([[0.0, 2.0], [4.0, 0.0]]).double()}
    none = torch.zeros(2, 2, dtype=torch.float64)
    view = View(none, none[:, None], none[:, :1], none)
    rewards = method.reward(params, view, torch.tensor([[2.0, 1.0], [0.0, 0.0]]).double())
    # equal weights: the ideal is (2, 1); the origin is √5 away
    assert rewards.tolist() == pytest.approx([0.0, -5.0])


def test_a_new_users_mixture_is_the_mean_of_known_users_weighted_by_likelihood() -> None:
    method = METHODS.make("lore?rank=2")
    log = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64).log()
    params = {"basis": torch.tensor([[2.0, -2.0]], dtype=torch.float64), "people": log}
    none = torch.zeros(2, 1, dtype=torch.float64)
    view = View(none, none[:, None], none, torch.zeros(2, 2, dtype=torch.float64))
    # one feature; both pairs of the first user have a difference of +1, the second has no pairs
    pairs = Pairs(view, none + 1, none, torch.tensor([0, 0]))
    with_pairs, without = method.infer(params, pairs, 2, torch.zeros(2, dtype=torch.float64)).softmax(-1).tolist()
    # margins 2·0.9 − 2·0.1 = 1.6, 0 and −1.2; each likelihood counts twice
    weight = [(1 / (1 + np.exp(-m))) ** 2 for m in (1.6, 0.0, -1.2)]
    assert with_pairs[0] == pytest.approx(np.dot(weight, [0.9, 0.5, 0.2]) / sum(weight))
    assert without == pytest.approx([1.6 / 3, 1.4 / 3])


def test_vpl_without_pairs_is_the_prior_and_never_sees_its_own_label() -> None:
    method = METHODS.make("vpl")
    pairs, params = tensors(some_pairs(method, rows=2)), some_params(method)
    codes = method.infer(params, pairs._replace(user=torch.tensor([0, 0])), 2, None)
    assert torch.equal(codes[1], torch.zeros(4, dtype=torch.float64))
    # two users with one pair each: nothing may be inferred, so the expected fit is that of the prior
    alone = pairs._replace(user=torch.tensor([0, 1]))
    turned = alone._replace(chosen=alone.rejected, rejected=alone.chosen)
    params["taste"] = torch.zeros(5, dtype=torch.float64)
    losses = [
        method.loss(params, p, Step(0.0, torch.Generator().manual_seed(s))) for p in (alone, turned) for s in range(400)
    ]
    one, other = np.mean([float(x) for x in losses[:400]]), np.mean([float(x) for x in losses[400:]])
    assert one == pytest.approx(other, rel=0.15)


def test_a_closed_form_method_equals_a_second_solver() -> None:
    from scipy.optimize import minimize

    method = METHODS.make("light?c=0.05")
    pairs = some_pairs(method, rows=40, size=3)
    solved = method.solve([pairs])["weights"]
    rows = method.reward({"weights": np.eye(7)}, pairs.view, pairs.chosen)
    rows = rows - method.reward({"weights": np.eye(7)}, pairs.view, pairs.rejected)

    def objective(w: Any) -> float:
        return float(0.5 * w @ w + 0.05 * 2 * np.logaddexp(0, -rows @ w).sum())

    np.testing.assert_allclose(solved, minimize(objective, np.zeros(7)).x, atol=2e-3)


@pytest.fixture(scope="module")
def users() -> Users:
    return conflicting_users()


LEARNED: dict[str, Learned] = {}
"""Several tests look at the same head."""
FIT = Learning(l2=1e-4, lr=0.02, epochs=25, batch=256)


def trained(users: Users, spec: str) -> tuple[Learned, Any, Any]:
    """Fitted on the first 90 users; labeled and scored rows of the others."""
    user = users.examples.user
    rows = np.arange(len(user))
    if spec not in LEARNED:
        LEARNED[spec] = learn(spec, users.examples, rows[user < 90], rows[:0], FIT)
    learned = LEARNED[spec]
    new_users = rows[user >= 90]
    shown, scored = first_rows(user[new_users], 8)
    return learned, new_users[shown], new_users[scored]


def accuracy(users: Users, learned: Learned, shown: Any, scored: Any) -> float:
    codes = fitted_codes(learned.head, users.examples, shown) if learned.head.method.code_size else {}
    return float((margins(learned.head, users.examples, scored, codes) > 0).mean())


@pytest.mark.parametrize("name", ["bilinear", "attention", "lore", "pal", "vpl"])
def test_new_users_of_conflicting_groups_are_scored_nearly_as_well_as_possible(users: Users, name: str) -> None:
    learned, shown, scored = trained(users, name)
    assert accuracy(users, learned, shown, scored) > 0.9 * users.best


def test_a_user_blind_model_stays_at_chance_on_conflicting_groups(users: Users) -> None:
    learned, shown, scored = trained(users, "bt")
    assert accuracy(users, learned, shown, scored) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("name", ["bilinear?sharp=0", "lore", "pal"])
def test_the_implied_taste_of_a_user_is_the_true_one(users: Users, name: str) -> None:
    learned, _, _ = trained(users, name)
    examples, user = users.examples, users.examples.user
    found = []
    for n in range(90):  # users whose pairs were trained on
        row = int(np.flatnonzero(user == n)[0])
        code = learned.head.codes.get(f"u{n}")
        found.append(cosine(implied_taste(learned.head, examples, row, code), users.taste[n]))
    assert np.mean(found) > 0.9


def test_vpl_latents_separate_the_groups_and_all_units_are_counted(users: Users) -> None:
    learned, shown, _ = trained(users, "vpl")
    codes = fitted_codes(learned.head, users.examples, shown)
    group = users.group[list(codes)]
    points = np.stack(list(codes.values()))
    centres = np.stack([points[group == g].mean(axis=0) for g in range(4)])
    nearest = np.argmin(((points[:, None] - centres) ** 2).sum(axis=2), axis=1)
    assert (nearest == group).mean() > 0.85
    assert learned.report["active_units"] >= 2


@pytest.mark.parametrize("name", ["profile-mlp", "light"])
def test_plain_heads_learn_something_about_the_user_from_posts(users: Users, name: str) -> None:
    learned, shown, scored = trained(users, name)
    assert accuracy(users, learned, shown, scored) > 0.65
