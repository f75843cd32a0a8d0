"""The files for verl, without verl: `tests/verl` has them read by the package itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from prb.cli import run
from prb.downstream.ppo import PpoConfig, ppo
from prb.errors import BadInput
from prb.models.scripted import ScriptedScorer
from prb.prompts import render
from prb.types import Post, Query
from tests.conftest import make_row
from tests.llm.tiny import tokenizer

pytest.importorskip("transformers", reason="needs the torch extra")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Tokenizers of two policies, one of them without a chat template, and people."""
    tokenizer().save_pretrained(tmp_path / "tiny")
    tokenizer(template=None).save_pretrained(tmp_path / "base")
    rows = [make_row(n, split="test" if n < 4 else "train") for n in range(24)]
    (tmp_path / "set.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return tmp_path


def settings(work: Path, **changes: Any) -> PpoConfig:
    told: dict[str, Any] = {"policy": f"transformers/{work / 'tiny'}", "model": "length", "engine": "verl"}
    told |= {"dataset": str(work / "set.jsonl"), "batch": 8, "minibatch": 4, "out": work / "run"}
    return PpoConfig(**{**told, **changes})


def tree(work: Path) -> dict[str, Any]:
    """`prb.yaml` as YAML reads it."""
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((work / "run" / "prb.yaml").read_text())
    return found


def test_each_row_has_the_prompt_and_what_the_reward_model_may_see(work):
    ppo(settings(work))
    rows = pq.read_table(work / "run" / "train.parquet").to_pylist()
    assert len(rows) == 20
    assert len(pq.read_table(work / "run" / "held_out.parquet")) == 4
    told = orjson.loads(rows[0]["extra_info"]["query"])
    query = Query(question=told["question"], user=told["user"], posts=tuple(Post(**post) for post in told["posts"]))
    assert rows[0]["prompt"] == [{"role": "user", "content": render(query)}]
    assert rows[0]["extra_info"]["user"] == query.user
    assert rows[0]["reward_model"]["ground_truth"] == ""
    everything = (work / "run" / "train.parquet").read_bytes() + orjson.dumps(rows)
    assert b"Long texts tire them" not in everything  # the rubric's reason
    assert b"I read on the bus" not in everything  # the narrative


def test_a_long_prompt_is_cut_for_the_policy_and_whole_for_the_reward_model(work):
    ppo(settings(work, max_prompt=120))
    words = tokenizer()
    for row in pq.read_table(work / "run" / "train.parquet").to_pylist():
        chat = words.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        assert len(words(chat, add_special_tokens=False)["input_ids"]) <= 120
        query = orjson.loads(row["extra_info"]["query"])
        assert len(query["posts"]) == 2
        assert query["posts"][0]["text"] not in row["prompt"][0]["content"]


def test_settings_are_said_in_verls_words_and_no_token_stands_in_any_file(work, monkeypatch):
    monkeypatch.setenv("PRB_SERVE_TOKEN", "very-secret")
    engine = "verl?gpus=2&nodes=2"
    ppo(settings(work, lr=2e-6, kl=0.2, engine=engine, minibatch=8, lora=8, steps=5))
    told = tree(work)
    assert told["defaults"] == ["ppo_trainer", "_self_"]
    assert float(told["actor_rollout_ref"]["actor"]["optim"]["lr"]) == 2e-6
    assert float(told["critic"]["optim"]["lr"]) == pytest.approx(2e-5)
    assert told["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] == 2
    assert told["actor_rollout_ref"]["model"]["lora_rank"] == told["critic"]["model"]["lora_rank"] == 8
    assert told["algorithm"]["kl_ctrl"] == {"type": "fixed", "kl_coef": 0.2}
    assert told["trainer"]["total_training_steps"] == 5
    assert told["trainer"]["logger"] == ["console"]
    assert all(b"very-secret" not in path.read_bytes() for path in (work / "run").rglob("*") if path.is_file())
    assert "from prb.serving.clients import compute_score" in (work / "run" / "reward.py").read_text()
    assert told["reward"]["custom_reward_function"]["reward_kwargs"] == {"url": "http://127.0.0.1:8300", "empty": None}


def test_the_reward_file_needs_only_the_standard_library_and_this_package():
    code = "import sys; import prb.serving.clients; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"pydantic", "tyro", "orjson", "numpy", "pyarrow", "torch", "fastapi"}


def test_the_command_that_launches_is_printed(work, capsys):
    words = f"ppo --engine verl --policy transformers/{work / 'tiny'} --model length --dataset {work / 'set.jsonl'}"
    assert run([*words.split(), "--batch", "8", "--minibatch", "4", "--out", str(work / "run"), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert f"launch: python -m verl.trainer.main_ppo --config-dir {work / 'run'} --config-name prb\n" in told


def test_a_server_that_has_moved_needs_no_other_folder_and_no_row_is_written_again(work):
    assert ppo(settings(work)).message.startswith(f"files: {work / 'run'}")
    before = (work / "run" / "train.parquet").stat().st_mtime_ns
    ppo(settings(work, engine="verl?url=http://elsewhere:8300"))
    assert (work / "run" / "train.parquet").stat().st_mtime_ns == before
    assert tree(work)["reward"]["custom_reward_function"]["reward_kwargs"]["url"] == "http://elsewhere:8300"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine": "verl?gpus=3"}, "cannot be split into 3 GPUs"),
        ({"batch": 32}, "there are only 20 prompts"),
        ({"dataset": "nowhere"}, "nowhere"),
        ({"policy": "transformers/base"}, "needs a chat template"),
        ({"policy": "transformers/tiny?adapter=x"}, "merge the adapter first"),
    ],
)
def test_what_verl_could_not_do_is_told_before_anything_is_written(work, changes, why, monkeypatch):
    monkeypatch.chdir(work)
    with pytest.raises(BadInput, match=why):
        ppo(settings(work, **changes))
    assert not (work / "run").exists()


def test_objects_are_refused(work):
    with pytest.raises(BadInput, match="engine verl takes its rewards from its url"):
        ppo(settings(work), reward=ScriptedScorer(lambda _: 0.0))
