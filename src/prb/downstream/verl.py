"""PPO at scale: the files with which verl (arXiv 2409.19256) trains on a Ray cluster, and its launch.

`train.parquet` and `held_out.parquet` hold the prompts as the local engine would show them, and in `extra_info` all
that the reward model may see; `reward.py` is verl's custom reward function, which asks `prb serve`; `prb.yaml` stands
on verl's own `ppo_trainer`. The files are all that verl needs of this package, so each may have its own environment.

Not as in the local engine, because verl decides it: the critic is a model of its own, advantages are whitened but
rewards are not, and there is no early stop on KL. An answer that gets no reward is an error in verl, never a number.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from prb import __version__
from prb.downstream.ppo_config import PpoConfig, complete, settings_of
from prb.downstream.ppo_prompts import Prompt, Prompts, Shown, load_prompts
from prb.engine.chat import fit, one_bos
from prb.engine.chat import write_prompt as chat_text
from prb.errors import BadInput, MissingExtra, PrbError
from prb.llm import Message, parse_llm
from prb.progress import SILENT, Progress
from prb.prompts import render
from prb.runs import Folder
from prb.types import Failure, Query
from prb.weights import resolve_weights

TRAIN, HELD_OUT, REWARD, NAME = "train.parquet", "held_out.parquet", "reward.py", "prb"
TESTED = "0.9.1"


def verl(config: PpoConfig, *, progress: Progress = SILENT) -> str:
    """Write verl's files and, unless told not to, launch it; what was done, in a few lines."""
    config = complete(config)
    assert config.out is not None
    _check(config)
    progress.begin(f"checking {config.dataset}")
    prompts = load_prompts(config, model=None)  # the server masks what its model may not see
    if len(prompts.train) < config.batch:
        raise BadInput(f"--batch {config.batch}: there are only {len(prompts.train)} prompts to train on")
    tokenizer = _tokenizer(config)
    data = {"name": prompts.dataset.name, "fingerprint": prompts.dataset.fingerprint}
    folder = Folder(config.out, {"prb": __version__, "ppo": settings_of(config), "dataset": data})
    folder.open()
    try:
        write_files(config, prompts, tokenizer, progress)
        return _launched(config) if config.launch else f"files: {config.out}\nlaunch: {shlex.join(command(config))}"
    finally:
        folder.close()


def _check(config: PpoConfig) -> None:
    gpus = config.nodes * config.gpus
    if config.minibatch % (gpus * config.accumulate):
        raise BadInput(
            f"--minibatch {config.minibatch} cannot be cut into {gpus} GPUs × --accumulate {config.accumulate}"
        )
    if "adapter" in parse_llm(config.policy).options:
        raise BadInput(f"--policy {config.policy}: verl starts from whole weights; merge the adapter first")
    for line in config.override:
        if "=" not in line:
            raise BadInput(f"--override {line!r} is not key=value")


def _tokenizer(config: PpoConfig) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("--engine verl", "torch") from None
    options = parse_llm(config.policy).options
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_weights(options["model"]), revision=options.get("revision"))
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"cannot load the tokenizer of {config.policy!r}: {str(error).splitlines()[0]}") from None
    if not tokenizer.chat_template:
        raise BadInput(f"--policy {config.policy}: verl needs a chat template, and this tokenizer has none")
    return tokenizer


def write_files(config: PpoConfig, prompts: Prompts, tokenizer: Any, progress: Progress) -> None:
    assert config.out is not None
    for name, chosen in ((TRAIN, prompts.train), (HELD_OUT, prompts.held_out)):
        if (config.out / name).exists():  # whole, or it would not be there
            continue
        progress.begin(f"writing {name}", total=len(chosen))
        write_parquet(config.out / name, list(_rows(config, prompts, chosen, tokenizer, progress)))
    shutil.copyfile(str(files("prb") / "serving" / "clients.py"), config.out / REWARD)
    draft = config.out / f"{NAME}.yaml.part"
    draft.write_text(_yaml(settings(config, len(prompts.train))), "utf-8")
    draft.replace(config.out / f"{NAME}.yaml")


def _rows(
    config: PpoConfig, prompts: Prompts, chosen: Sequence[Prompt], tokenizer: Any, progress: Progress
) -> Iterator[dict[str, Any]]:
    for prompt in chosen:
        (shown,) = prompts.show([prompt])
        fitted = shown if isinstance(shown, Failure) else _fitted(shown, tokenizer, config.max_prompt)
        if isinstance(fitted, Failure) or isinstance(shown, Failure):
            progress.note(f"{prompt.item.id} is left out: {fitted}")
        else:
            yield row(prompt, shown, fitted, prompts.dataset.name)
        progress.advance()


def _fitted(shown: Shown, tokenizer: Any, limit: int) -> Query | Failure:
    def tokens(text: str, _: str) -> list[int]:
        made = tokenizer(chat_text(tokenizer, (Message("user", text),)), add_special_tokens=False)["input_ids"]
        return one_bos(tokenizer, made)

    found = fit(shown.policy, [""], tokens, limit)
    return found if isinstance(found, Failure) else found[0]


def row(prompt: Prompt, shown: Shown, fitted: Query, source: str) -> dict[str, Any]:
    """A row as verl's RLHFDataset reads it; there is no right answer, so ground truth is empty."""
    asked = shown.reward
    posts = [post._asdict() for post in asked.posts]
    query = {"question": asked.question, "user": asked.user, "posts": posts, "plan": asked.plan}
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": render(fitted)}],
        "ability": "personalization",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": prompt.item.id, "user": prompt.item.user, "query": json.dumps(query)},
    }


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = {"data_source": pa.string(), "ability": pa.string()}
    message = pa.struct({"role": pa.string(), "content": pa.string()})
    answer = pa.struct({"style": pa.string(), "ground_truth": pa.string()})
    extra = pa.struct({"index": pa.string(), "user": pa.string(), "query": pa.string()})
    schema = pa.schema({**texts, "prompt": pa.list_(message), "reward_model": answer, "extra_info": extra})
    draft = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(list(rows), schema), draft)
    draft.replace(path)


def settings(config: PpoConfig, prompts: int) -> dict[str, Any]:
    """Ours in verl's words."""
    assert config.out is not None
    out = config.out.resolve()
    url = {"url": config.reward_url}
    return {
        "data": {
            "train_files": str(out / TRAIN),
            "val_files": str(out / (HELD_OUT if config.holdout else TRAIN)),
            "train_batch_size": config.batch,
            "max_prompt_length": config.max_prompt,
            "max_response_length": config.max_new_tokens,
            "seed": config.seed,
        },
        "actor_rollout_ref": _policy(config),
        "critic": {
            "model": _model(config),
            "optim": {"lr": config.critic_lr, "weight_decay": 0.0},
            "ppo_micro_batch_size_per_gpu": _piece(config),
            "cliprange_value": 1e9 if config.value_clip is None else config.value_clip,
            "grad_clip": config.max_grad_norm,
            "data_loader_seed": config.seed,
        },
        "algorithm": {
            "adv_estimator": "gae",
            "gamma": config.gamma,
            "lam": config.lam,
            "use_kl_in_reward": config.kl > 0,
            "kl_ctrl": {
                "type": "fixed" if config.kl_target is None else "adaptive",
                "kl_coef": config.kl,
                "horizon": config.kl_horizon,
                "target_kl": config.kl_target or 0.1,
            },
        },
        "reward": {
            "custom_reward_function": {"path": str(out / REWARD), "name": "compute_score", "reward_kwargs": url}
        },
        "trainer": _trainer(config, prompts, out),
    }


def _policy(config: PpoConfig) -> dict[str, Any]:
    return {
        "model": _model(config),
        "actor": {
            "optim": {"lr": config.lr, "weight_decay": 0.0},
            "ppo_mini_batch_size": config.minibatch,
            "ppo_micro_batch_size_per_gpu": _piece(config),
            "ppo_epochs": config.epochs,
            **dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), config.clip),
            "grad_clip": config.max_grad_norm,
            "data_loader_seed": config.seed,
        },
        "ref": {"log_prob_micro_batch_size_per_gpu": _piece(config)},
        "rollout": {
            "name": config.rollout,
            "temperature": config.temperature,
            "seed": config.seed,
            "tensor_model_parallel_size": 1,
            "log_prob_micro_batch_size_per_gpu": _piece(config),
            "load_format": "safetensors" if config.lora else "dummy",
            "val_kwargs": {"do_sample": True, "temperature": config.temperature},
        },
    }


def _piece(config: PpoConfig) -> int:
    """Answers a forward pass."""
    return config.minibatch // (config.nodes * config.gpus * config.accumulate)


def _model(config: PpoConfig) -> dict[str, Any]:
    options = parse_llm(config.policy).options
    where = resolve_weights(options["model"])
    return {
        "path": str(Path(where).resolve()) if Path(where).exists() else where,
        "trust_remote_code": options.get("trust_remote_code", "").lower() in ("true", "1", "yes"),
        "lora_rank": config.lora,
        "lora_alpha": 2 * config.lora or 16,
        "target_modules": "all-linear",
    }


def _trainer(config: PpoConfig, prompts: int, out: Path) -> dict[str, Any]:
    epochs = 1 if config.steps is None else math.ceil(config.steps * config.batch / prompts) + 1
    return {
        "project_name": "prb-ppo",
        "experiment_name": out.name,
        "logger": ["console", *([] if config.tracker == "none" else [config.tracker])],
        "nnodes": config.nodes,
        "n_gpus_per_node": config.gpus,
        "total_epochs": epochs,
        "total_training_steps": config.steps,
        "save_freq": config.checkpoint_every,
        "test_freq": config.checkpoint_every,
        "val_before_train": config.holdout > 0,
        "default_local_dir": str(out / "checkpoints"),
        "resume_mode": "auto",
    }


def _yaml(tree: Mapping[str, Any]) -> str:
    """On top of verl's own defaults; what stands in braces is JSON, which YAML reads."""
    head = "# Written by `prb ppo --engine verl`.\ndefaults:\n  - ppo_trainer\n  - _self_\n"
    return head + "".join(f"{name}: {json.dumps(branch, indent=2)}\n" for name, branch in tree.items())


def command(config: PpoConfig) -> list[str]:
    assert config.out is not None
    where = ["--config-dir", str(config.out.resolve()), "--config-name", NAME]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *where, *config.override]


def _launched(config: PpoConfig) -> str:
    assert config.out is not None
    words = command(config)
    if find_spec("verl") is None:
        there = shlex.join(["python", *words[1:]])
        raise BadInput(f"verl is not installed here (tested with {TESTED}); where it is, run: {there}")
    _ask_once(config)
    code = subprocess.run(words, check=False).returncode  # noqa: S603 - our own words
    if code:
        raise PrbError(f"verl ended with code {code}; the same command goes on from its last checkpoint")
    return f"checkpoints: {config.out / 'checkpoints'}"


def _ask_once(config: PpoConfig) -> None:
    """The very function that verl will call, once: is there a server, and does it serve this model?"""
    assert config.out is not None
    import pyarrow.parquet as pq

    found = spec_from_file_location("prb_reward", config.out / REWARD)
    assert found is not None
    assert found.loader is not None
    client = module_from_spec(found)
    found.loader.exec_module(client)
    query = pq.read_table(config.out / TRAIN).slice(0, 1).to_pylist()[0]["extra_info"]["query"]
    try:
        reply = client.score(query, ["Yes."], url=config.reward_url, patience=2)
    except RuntimeError as error:
        raise BadInput(f"no reward from `prb serve --model {config.model}`: {error}") from None
    if reply["model"] != config.model:
        raise BadInput(f"{config.reward_url} serves {reply['model']!r}, not --model {config.model!r}")
