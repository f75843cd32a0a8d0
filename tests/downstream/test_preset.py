"""`--preset paper`: the settings of the paper's scripts, filled in where none are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.cli.parse import parse
from prb.downstream.bon import BonConfig
from prb.downstream.candidates import sample_answers
from prb.downstream.ppo import PpoConfig
from prb.errors import BadInput
from prb.llm import Sampling
from prb.types import Post, Query
from tests.downstream.fakes import policy

QUERY = Query(user="u", question="Tea or coffee?", posts=(Post(id="1", category="Drinks", text="I like {question}."),))


def test_best_of_n_has_the_papers_settings_where_none_are_given() -> None:
    config = BonConfig(preset="paper")
    assert (config.n, config.k, config.temperature, config.top_p, config.max_tokens) == (16, 10, 1.0, 0.9, 512)
    assert (config.policy, config.policy_prompt) == ("transformers/Qwen/Qwen2.5-0.5B-Instruct", "paper")
    assert BonConfig(preset="paper", policy="llamacpp/smollm2").policy == "llamacpp/smollm2"


def test_ppo_has_the_papers_settings_where_none_are_given() -> None:
    config = PpoConfig(preset="paper", model="length")
    assert (config.batch, config.minibatch, config.epochs, config.steps) == (128, 16, 1, None)
    assert (config.lr, config.critic_rate, config.kl, config.stop_kl) == (5e-7, 5e-6, 0.0, None)
    assert config.critic == "separate"


@pytest.mark.parametrize(
    ("config", "words", "says"),
    [
        (BonConfig, ["--n", "4"], "preset paper has n 16, not 4; leave out one of the two"),
        (BonConfig, ["--condition", "none"], "preset paper has condition profile, not none"),
        (PpoConfig, ["--model", "length", "--kl", "0.05"], "preset paper has kl 0.0, not 0.05"),
        (PpoConfig, ["--model", "length", "--epochs", "2"], "preset paper has epochs 1, not 2"),
    ],
)
def test_a_flag_that_contradicts_the_preset_is_refused(config: Any, words: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(config, ["--preset", "paper", *words], config.verb)


def test_a_flag_that_says_the_same_is_fine() -> None:
    assert parse(BonConfig, ["--preset", "paper", "--n", "16"], "bon").n == 16


def test_a_preset_is_the_same_run_as_its_settings_by_hand() -> None:
    preset = BonConfig(preset="paper", policy="llamacpp/smollm2")
    by_hand = BonConfig(policy="llamacpp/smollm2", policy_prompt="paper")
    assert preset.saved() == by_hand.saved()
    assert replace(preset, out=Path("x")).policy_prompt == "paper"


def test_without_the_preset_nothing_changes() -> None:
    assert (BonConfig(policy="p").policy_prompt, PpoConfig(policy="p", model="m").kl) == ("prb", 0.05)
    with pytest.raises(BadInput, match="needs either --policy"):
        BonConfig()


def test_the_papers_prompt_has_a_system_message_the_question_and_the_posts_with_categories() -> None:
    llm = policy()
    sampling = Sampling(temperature=1.0, max_tokens=8)
    sample_answers(llm, [("p", 0)], {"p": QUERY}, sampling, "paper")
    sample_answers(llm, [("p", 0)], {"p": QUERY}, sampling)
    (system, user), (alone,) = (request.chat for request in llm.requests)
    assert (system.role, user.role, alone.role) == ("system", "user", "user")
    question, posts = user.text.index("Tea or coffee?"), user.text.index("Post 1 (Category: Drinks):")
    assert question < posts
    assert "I like {question}." in user.text  # a slot inside a post is text
    assert "100 words" in user.text
    assert "100 words" not in alone.text
