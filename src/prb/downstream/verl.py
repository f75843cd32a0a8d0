"""PPO at scale: the files with which verl (arXiv 2409.19256) trains on a Ray cluster, and the command that starts it.

`train.parquet` and `held_out.parquet` hold the prompts as the local engine would show them and, in `extra_info`, what
the reward model may see. `reward.py` is verl's custom reward function: the client of `prb serve`, which needs this
package and the standard library. `prb.yaml` extends verl's own `ppo_trainer`.

verl differs from the local engine: the critic is a model of its own, advantages are whitened but rewards are not, and
there is no early stop on KL. An answer that gets no reward is an error in verl, never a number; one without text gets
`empty_reward`, and verl logs how many there were as `empty`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prb import __version__
from prb.downstream.ppo import CHECKPOINT_EVERY, CLIP, CRITIC_RATE, MAX_GRAD_NORM, FinishedPpo, PpoConfig, Verl
from prb.downstream.ppo.policy import Prompt, Prompts, load_prompts
from prb.engine.chat import fit, one_bos, write_prompt
from prb.engine.load import load_tokenizer
from prb.errors import BadInput
from prb.progress import Progress
from prb.prompts import policy_chat
from prb.runs import RunFolder, draft, write_bytes
from prb.types import Failure, Query
from prb.weights import resolve_weights

TRAIN, HELD_OUT, REWARD, NAME = "train.parquet", "held_out.parquet", "reward.py", "prb"
MESSAGE, TRUTH = {"role": pa.string(), "content": pa.string()}, {"style": pa.string(), "ground_truth": pa.string()}
SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct(MESSAGE)),
        "ability": pa.string(),
        "reward_model": pa.struct(TRUTH),
        "extra_info": pa.struct({"index": pa.string(), "user": pa.string(), "query": pa.string()}),
    }
)
"""Of a row as verl's RLHFDataset reads it."""
REWARD_FUNCTION = b'''"""Written by `prb ppo --engine verl`: rewards come from `prb serve`."""

from prb.serving.clients import compute_score

__all__ = ["compute_score"]
'''


def run_verl(config: PpoConfig, verl: Verl, *, progress: Progress) -> FinishedPpo:
    """Write verl's files; where verl is, the command in the result's message trains."""
    if config.minibatch % (verl.nodes * verl.gpus):
        raise BadInput(f"minibatch {config.minibatch} cannot be split into {verl.nodes * verl.gpus} GPUs")
    if config.weights["loading"].adapter:
        raise BadInput(f"policy {config.policy}: verl starts from whole weights; merge the adapter first")
    progress.begin(f"checking {config.dataset}")
    prompts = load_prompts(config, model=None)  # the server masks what its model must not see
    if len(prompts.train) < config.batch:
        raise BadInput(f"batch {config.batch}: there are only {len(prompts.train)} prompts to train on")
    tokenizer = load_tokenizer(config.weights["model"], config.weights["loading"])
    if not tokenizer.chat_template:
        raise BadInput(f"policy {config.policy}: verl needs a chat template, and this tokenizer has none")
    out = config.folder("ppo")
    data = {"name": prompts.dataset.name, "fingerprint": prompts.dataset.fingerprint}
    with RunFolder(out, {"prb": __version__, "engine": "verl", "ppo": config.saved(), "dataset": data}):
        for name, selected in ((TRAIN, prompts.train), (HELD_OUT, prompts.held_out)):
            if not (out / name).exists():
                progress.begin(f"writing {name}", total=len(selected))
                rows = list(_rows(config, prompts, selected, tokenizer, progress))
                with draft(out / name) as part:
                    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), part)
        write_bytes(out / REWARD, REWARD_FUNCTION)
        # what follows a key is JSON, which YAML reads
        branches = verl_settings(config, verl, len(prompts.train), out.resolve()).items()
        lines = [f"{name}: {json.dumps(branch, indent=2)}\n" for name, branch in branches]
        head = "# Written by `prb ppo --engine verl`.\ndefaults:\n  - ppo_trainer\n  - _self_\n"
        write_bytes(out / f"{NAME}.yaml", (head + "".join(lines)).encode())
    where = shlex.join(["--config-dir", str(out.resolve()), "--config-name", NAME])
    return FinishedPpo(out, {}, f"files: {out}\nlaunch: python -m verl.trainer.main_ppo {where}")


def _rows(
    config: PpoConfig, prompts: Prompts, selected: Sequence[Prompt], tokenizer: Any, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Rows as verl's RLHFDataset reads them; there is no right answer, so the ground truth is empty."""

    def fits(query: Query) -> bool:
        prompt = write_prompt(tokenizer, policy_chat(query, config.policy_prompt))
        tokens = one_bos(tokenizer, tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return len(tokens) <= config.max_prompt

    for prompt in selected:
        (views,) = prompts.views([prompt])
        fitted = views if isinstance(views, Failure) else fit(views.policy, fits)
        progress.advance()
        if isinstance(views, Failure) or isinstance(fitted, Failure):
            progress.note(f"{prompt.item.id} is left out: {fitted}")
            continue
        seen = views.reward
        parts: dict[str, Sequence[Any]] = {"context": seen.context, "posts": seen.posts, "choices": seen.choices}
        shown = {name: [part._asdict() for part in some] for name, some in parts.items() if some}
        query = {"question": seen.question, "user": seen.user, **shown, "plan": seen.plan}
        yield {
            "data_source": prompts.dataset.name,
            "prompt": [
                {"role": turn.role, "content": turn.text} for turn in policy_chat(fitted[0], config.policy_prompt)
            ],
            "ability": "personalization",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": prompt.item.id, "user": prompt.item.user, "query": json.dumps(query)},
        }


def verl_settings(config: PpoConfig, verl: Verl, prompts: int, out: Path) -> dict[str, Any]:
    weights = resolve_weights(config.weights["model"])
    model = {
        "path": str(Path(weights).resolve()) if Path(weights).exists() else weights,
        "trust_remote_code": config.weights["loading"].trust_remote_code,
        "lora_rank": config.lora,
        "lora_alpha": 2 * config.lora or 16,
        "target_modules": "all-linear",
    }
    per_pass = math.gcd(config.minibatch // (verl.nodes * verl.gpus), config.per_pass)
    epochs = 1 if config.steps is None else math.ceil(config.steps * config.batch / prompts) + 1
    return {
        "data": {
            "train_files": str(out / TRAIN),
            "val_files": str(out / (HELD_OUT if config.holdout else TRAIN)),
            "train_batch_size": config.batch,
            "max_prompt_length": config.max_prompt,
            "max_response_length": config.max_tokens,
            "seed": config.seed,
        },
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "optim": {"lr": config.lr, "weight_decay": 0.0},
                "ppo_mini_batch_size": config.minibatch,
                "ppo_micro_batch_size_per_gpu": per_pass,
                "ppo_epochs": config.epochs,
                **dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), CLIP),
                "grad_clip": MAX_GRAD_NORM,
                "data_loader_seed": config.seed,
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": per_pass},
            "rollout": {
                "name": verl.rollout,
                "temperature": 1.0,
                "seed": config.seed,
                "tensor_model_parallel_size": 1,
                "log_prob_micro_batch_size_per_gpu": per_pass,
                "load_format": "safetensors" if config.lora else "dummy",
                "val_kwargs": {"do_sample": True, "temperature": 1.0},
            },
        },
        "critic": {
            "model": model,
            "optim": {"lr": CRITIC_RATE * config.lr, "weight_decay": 0.0},
            "ppo_micro_batch_size_per_gpu": per_pass,
            "cliprange_value": config.recipe.value_clip,
            "grad_clip": MAX_GRAD_NORM,
            "data_loader_seed": config.seed,
        },
        "algorithm": {
            "adv_estimator": "gae",
            "gamma": 1.0,
            "lam": config.recipe.lam,
            "use_kl_in_reward": config.kl > 0,
            "kl_ctrl": {"type": "fixed", "kl_coef": config.kl},
        },
        "reward": {
            "custom_reward_function": {
                "path": str(out / REWARD),
                "name": "compute_score",
                "reward_kwargs": {"url": verl.url, "empty": config.empty_reward},
            }
        },
        "trainer": {
            "project_name": "prb-ppo",
            "experiment_name": out.name,
            "logger": ["console"],
            "nnodes": verl.nodes,
            "n_gpus_per_node": verl.gpus,
            "total_epochs": epochs,
            "total_training_steps": config.steps,
            "save_freq": CHECKPOINT_EVERY,
            "test_freq": CHECKPOINT_EVERY,
            "val_before_train": config.holdout > 0,
            "default_local_dir": str(out / "checkpoints"),
            "resume_mode": "auto",
        },
    }
