"""The arithmetic of PPO: by hand, by a slow twin, and against torchrl."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the torch extra")

from prb.downstream.ppo.loop import (  # noqa: E402
    advantages,
    clipped,
    policy_loss,
    token_rewards,
    value_loss,
    whiten,
)

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31))


def random_answers(rows: int, tokens: int, seed: int) -> tuple[Any, ...]:
    """Rewards, values and a mask of answers of different lengths."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (rows, 1), generator=noise)
    mask = (torch.arange(tokens) < lengths).double()
    rewards, values = torch.randn(2, rows, tokens, generator=noise, dtype=torch.float64)
    return rewards * mask, values, mask


def advantages_by_definition(rewards: Any, values: Any, mask: Any, lam: float) -> Any:
    """Σ_l λ^l δ_{t+l}, written out."""
    found = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        length = int(mask[row].sum())
        after = [*values[row, :length].tolist(), 0.0]
        delta = [float(rewards[row, t]) + after[t + 1] - after[t] for t in range(length)]
        for t in range(length):
            found[row, t] = sum(lam ** (s - t) * delta[s] for s in range(t, length))
    return found


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(0, 1))
def test_advantages_are_what_their_definition_says(shape, lam):
    rewards, values, mask = random_answers(*shape)
    found = advantages(rewards, values, mask, lam=lam)
    torch.testing.assert_close(found, advantages_by_definition(rewards, values, mask, lam))


def test_the_reward_stands_on_the_last_token_and_distance_costs_on_every_one():
    mask = torch.tensor([[1.0, 1, 0], [1, 1, 1], [0, 0, 0]])
    logp, reference = torch.full((3, 3), -1.0), torch.full((3, 3), -3.0)
    rewards = token_rewards(torch.tensor([10.0, 20, 99]), logp, reference, mask, kl=0.25)
    # 2 nats a token at 0.25 each; the third answer has no tokens, so its reward goes nowhere
    assert rewards.tolist() == [[-0.5, 9.5, 0], [-0.5, -0.5, 19.5], [0, 0, 0]]


def test_the_policy_is_not_pushed_further_than_the_clip_and_always_back():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    logp = ratio.log().requires_grad_()
    loss = policy_loss(logp, torch.zeros(4), torch.tensor([1.0, -1, 1, -1]), clip=0.2)
    assert loss.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8])
    loss.sum().backward()
    # good and already 1.5 times likelier: enough; bad and already half as likely: enough; the others are pushed back
    assert logp.grad.tolist() == pytest.approx([0, 1.5, -0.5, 0])
    assert clipped(logp, torch.zeros(4), clip=0.2).tolist() == [1, 1, 1, 1]
    assert clipped(torch.tensor([0.1]), torch.zeros(1), clip=0.2).tolist() == [0]


def test_a_value_may_move_only_so_far_at_once():
    value = torch.tensor([3.0, 3.0]).requires_grad_()
    loss = value_loss(value, torch.tensor([0.0, 2.9]), torch.tensor([4.0, 4.0]), clip=0.5)
    # from 0 only 0.5 counts: ½ (0.5 − 4)²; from 2.9 all of it: ½ (3 − 4)²
    assert loss.tolist() == pytest.approx([0.5 * 3.5**2, 0.5])
    loss.sum().backward()
    assert value.grad.tolist() == pytest.approx([0, -1])


@settings(max_examples=40, deadline=None)
@given(SHAPES.filter(lambda s: s[0] * s[1] > 3))
def test_whitened_numbers_have_mean_0_and_variance_1_over_what_is_real(shape):
    values, _, mask = random_answers(*shape)
    white = whiten(values, mask)
    real = white[mask.bool()]
    assert not white[~mask.bool()].any()
    assert float(real.mean()) == pytest.approx(0, abs=1e-6)
    if len(real) > 1 and float(values[mask.bool()].std()) > 1e-3:
        assert float(real.var(correction=0)) == pytest.approx(1, abs=1e-4)


def test_equal_rewards_whiten_to_nothing_instead_of_a_division_by_zero():
    same = torch.full((3,), 5.0)
    assert whiten(same, torch.ones(3)).tolist() == [0, 0, 0]


# against torchrl, which was written by other people


@pytest.mark.parametrize("lam", [0.95, 1.0, 0.0])
def test_advantages_equal_torchrls(lam):
    functional = pytest.importorskip("torchrl.objectives.value.functional", reason="needs torchrl")
    rewards, values, mask = random_answers(6, 11, 3)
    last = mask.sum(1).long() - 1
    done = torch.zeros(*mask.shape, 1, dtype=torch.bool)
    done[torch.arange(len(mask)), last] = True
    following = torch.cat([values[:, 1:], torch.zeros(len(mask), 1).double()], 1)
    theirs, target = functional.generalized_advantage_estimate(
        1.0, lam, values[..., None], following[..., None], rewards[..., None], done=done, terminated=done
    )
    ours = advantages(rewards, values, mask, lam=lam)
    close = {"rtol": 1e-5, "atol": 1e-6}  # theirs keeps λ in 32 bits
    torch.testing.assert_close(ours, theirs[..., 0] * mask, **close)
    torch.testing.assert_close((ours + values) * mask, target[..., 0] * mask, **close)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_losses_equal_torchrls(seed):
    objectives = pytest.importorskip("torchrl.objectives", reason="needs torchrl")
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule

    noise = torch.Generator().manual_seed(seed)
    n, words = 60, 7
    logits, other = torch.randn(2, n, words, generator=noise)
    tokens = torch.randint(words, (n, 1), generator=noise)
    advantage, returns, value, old_value = torch.randn(4, n, 1, generator=noise)
    logp, old_logp = (torch.log_softmax(x, -1).gather(1, tokens)[:, 0] for x in (logits, other))
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(torch.nn.Identity(), in_keys=["seen"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        ),
    )
    critic = TensorDictModule(torch.nn.Identity(), in_keys=["value"], out_keys=["state_value"])
    told: dict[str, Any] = {"entropy_bonus": False, "critic_coeff": 1.0, "loss_critic_type": "l2"}
    loss = objectives.ClipPPOLoss(actor, critic, clip_epsilon=0.2, clip_value=0.3, **told)
    row = {"seen": logits, "value": value, "action": tokens[:, 0], "action_log_prob": old_logp}
    row |= {"advantage": advantage, "value_target": returns, "state_value": old_value}
    theirs = loss(TensorDict(row, [n]))
    ours = policy_loss(logp, old_logp, advantage[:, 0], clip=0.2).mean()
    assert float(ours) == pytest.approx(float(theirs["loss_objective"]), abs=1e-6)
    # theirs is the squared error, ours half of it
    error = value_loss(value[:, 0], old_value[:, 0], returns[:, 0], clip=0.3).mean()
    assert 2 * float(error) == pytest.approx(float(theirs["loss_critic"]), abs=1e-5)
    assert float(clipped(logp, old_logp, clip=0.2).mean()) == pytest.approx(float(theirs["clip_fraction"]))
