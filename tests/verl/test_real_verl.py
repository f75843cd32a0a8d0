"""The files for verl, read by verl itself, whose pins differ from ours: `make test-verl` has an environment for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

pytest.importorskip("verl", reason="verl lives in an environment of its own: make test-verl")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from prb.downstream.ppo import PpoConfig, ppo
from tests.conftest import make_row
from tests.llm.tiny import llama

ANSWER = "the quick brown fox"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verl")
    llama(folder / "tiny", positions=512)
    rows = [make_row(n, split="test" if n < 4 else "train") for n in range(24)]
    (folder / "set.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A real `prb serve` process; its model's reward is the number of characters."""
    words = [sys.executable, "-m", "prb", "serve", "--model", "length", "--port", "0", "--json"]
    env = {key: value for key, value in os.environ.items() if key != "PRB_SERVE_TOKEN"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        yield orjson.loads(process.stdout.readline())["url"]
        process.terminate()


def settings(work: Path, name: str, **changes: Any) -> PpoConfig:
    told: dict[str, Any] = {
        "policy": f"transformers/{work / 'tiny'}",
        "model": "length",
        "holdout": 4,
        "out": work / name,
    }
    told |= {"dataset": str(work / "set.jsonl"), "batch": 8, "minibatch": 4, "max_prompt": 200}
    return PpoConfig(**{**told, "engine": "verl?gpus=2", **changes})


def composed(out: Path) -> Any:
    """Ours on top of the package's own `ppo_trainer`."""
    with initialize_config_dir(config_dir=str(out), version_base=None):
        cache = f"+data.cache_dir={out}"
        return compose("prb", overrides=["hydra.searchpath=[pkg://verl.trainer.config]", cache])


def test_verls_own_command_composes_the_config(work: Path) -> None:
    told = ppo(settings(work, "command")).message
    words = told.split("launch: ")[1].split()
    done = subprocess.run([sys.executable, *words[1:], "--cfg", "job"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    config = OmegaConf.create(done.stdout)
    assert config.data.train_batch_size == 8
    assert config.reward.custom_reward_function.path == str(work / "command" / "reward.py")


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "short": {"steps": 7, "epochs": 3, "lr": 2e-6, "empty_reward": -1.0},
    "no KL penalty": {"kl": 0.0, "holdout": 0},
    "lora": {"lora": 8, "engine": "verl?gpus=2&rollout=sglang"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_verl_finds_nothing_wrong_with_it(work: Path, variant: str) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    changes = VARIANTS[variant]
    name = variant.replace(" ", "-").replace(",", "")
    ppo(settings(work, name, **changes))
    config = composed(work / name)
    assert need_critic(config)
    assert need_reference_policy(config) == (changes.get("kl") != 0.0)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=True)
    OmegaConf.to_container(config, resolve=True)
    assert config.algorithm.adv_estimator == "gae"
    assert config.actor_rollout_ref.actor.optim.lr == changes.get("lr", 1e-5)
    assert config.critic.optim.lr == pytest.approx(10 * changes.get("lr", 1e-5))
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 2
    assert config.critic.ppo_mini_batch_size == 4
    assert config.trainer.total_training_steps == changes.get("steps")


def dataset(config: Any) -> Any:
    from verl.utils import hf_tokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
    return RLHFDataset([config.data.train_files], tokenizer, config.data), tokenizer


def test_verls_dataset_reads_the_prompts_with_the_persons_posts(work: Path) -> None:
    ppo(settings(work, "data"))
    config = composed(work / "data")
    rows, tokenizer = dataset(config)
    assert len(rows) == 20
    row = rows[0]
    (message,) = row["raw_prompt"]
    query = orjson.loads(row["extra_info"]["query"])
    assert query["question"] in message["content"]
    assert query["posts"][0]["text"] in message["content"]
    assert "rubric" not in orjson.dumps(query).decode()
    assert all(len(tokenizer.apply_chat_template(r["raw_prompt"], return_dict=False)) <= 200 for r in rows)


def rewarded(config: Any, answer: str) -> dict[str, Any]:
    """One answer through verl's own reward manager."""
    import torch
    from verl.trainer.ppo.reward import load_reward_manager

    from verl import DataProto

    rows, tokenizer = dataset(config)
    ids = tokenizer(answer, add_special_tokens=False, return_tensors="pt")["input_ids"]
    padded = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    seen = torch.cat([torch.ones_like(ids), torch.zeros(1, 3, dtype=torch.long)], 1)
    row = rows[0]
    told = {name: [row[name]] for name in ("data_source", "reward_model", "extra_info")}
    data = DataProto.from_single_dict({"responses": padded, "attention_mask": seen, **_objects(told)})

    async def ask() -> dict[str, Any]:
        manager = load_reward_manager(config, tokenizer)
        found: dict[str, Any] = await manager.run_single(data)
        return found

    return asyncio.run(ask())


def _objects(columns: dict[str, list[Any]]) -> dict[str, Any]:
    import numpy as np

    return {name: np.fromiter(values, dtype=object, count=len(values)) for name, values in columns.items()}


def test_verl_gets_its_rewards_from_a_running_server(work: Path, server: str) -> None:
    ppo(settings(work, "reward", engine=f"verl?gpus=2&url={server}"))
    config = composed(work / "reward")
    assert rewarded(config, ANSWER)["reward_score"] == len(ANSWER)


def test_without_a_server_verl_gets_an_error_and_no_number(work: Path) -> None:
    ppo(settings(work, "nobody", engine="verl?gpus=2&url=http://127.0.0.1:9"))
    config = composed(work / "nobody")
    config.reward.custom_reward_function.reward_kwargs = {"url": "http://127.0.0.1:9", "patience": 0.1}
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9"):
        rewarded(config, ANSWER)
