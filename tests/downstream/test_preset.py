"""`--preset paper`: the settings of the paper's scripts, filled in where none are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prb.cli.parse import parse
from prb.downstream.bon import TOP_P, BonConfig
from prb.downstream.ppo import CLIP, CRITIC_RATE, MAX_GRAD_NORM, PpoConfig, Recipe
from prb.errors import BadInput


def test_best_of_n_has_the_papers_settings_where_none_are_given():
    config = BonConfig(preset="paper")
    assert (config.n, config.k, config.temperature, TOP_P, config.max_tokens) == (16, 10, 1.0, 0.9, 512)
    assert (config.policy, config.policy_prompt) == ("transformers/Qwen/Qwen2.5-0.5B-Instruct", "paper")
    assert BonConfig(preset="paper", policy="llamacpp/smollm2").policy == "llamacpp/smollm2"


def test_ppo_has_the_papers_settings_where_none_are_given():
    config = PpoConfig(preset="paper", model="length")
    assert (config.batch, config.minibatch, config.epochs, config.steps) == (128, 16, 1, None)
    assert (config.lr, config.kl, config.policy_prompt) == (5e-7, 0.0, "paper")
    assert (CRITIC_RATE * config.lr, CLIP, MAX_GRAD_NORM) == (pytest.approx(5e-6), 0.2, 1.0)
    # what verl does by default
    assert config.recipe == Recipe(lam=1.0, value_clip=0.5, separate_critic=True, whiten_rewards=False, stop_kl=None)


@pytest.mark.parametrize(
    ("config", "words", "says"),
    [
        (BonConfig, ["--n", "4"], "preset paper has n 16, not 4; leave out one of the two"),
        (BonConfig, ["--condition", "none"], "preset paper has condition profile, not none"),
        (PpoConfig, ["--model", "length", "--kl", "0.05"], "preset paper has kl 0.0, not 0.05"),
        (PpoConfig, ["--model", "length", "--epochs", "2"], "preset paper has epochs 1, not 2"),
    ],
)
def test_a_flag_that_contradicts_the_preset_is_refused(config, words, says):
    with pytest.raises(BadInput, match=says):
        parse(config, ["--preset", "paper", *words], config.verb)


def test_a_flag_that_says_the_same_is_fine_and_the_preset_is_part_of_what_a_run_is():
    preset = parse(BonConfig, ["--preset", "paper", "--n", "16"], "bon")
    assert (preset.n, preset.saved()["preset"]) == (16, "paper")
    assert replace(preset, out=Path("x")).policy_prompt == "paper"


def test_without_the_preset_nothing_changes():
    assert (BonConfig(policy="p").policy_prompt, PpoConfig(policy="p", model="m").kl) == ("prb", 0.05)
    with pytest.raises(BadInput, match="needs one of --policy"):
        BonConfig()
