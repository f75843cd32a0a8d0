"""The part of `full.py` that talks to transformers, peft and trl. Imported only when a whole model is trained."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import torch
import transformers
import trl
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from transformers.utils.logging import get_verbosity, set_verbosity

from prb.engine.load import Checkpoint, Loading, load
from prb.errors import BadInput, PrbError
from prb.progress import Progress
from prb.runs import read_json
from prb.training.config import FullConfig
from prb.training.full import FITTED, HELD
from prb.weights import resolve_weights

LR, LORA_LR = 1e-5, 1e-4
"""Default peak learning rates."""
ALPHA = 2
"""LoRA's alpha, as a multiple of the rank."""


def load_base(config: FullConfig) -> Checkpoint:
    """What training starts from; `max_length` is the longest input in tokens."""
    verbosity = get_verbosity()
    set_verbosity(logging.ERROR)  # it warns that a fresh head is fresh
    transformers.set_seed(config.seed)  # transformers draws a fresh head from the global state
    options = Loading(
        revision=config.revision,
        dtype="bf16" if config.dtype == "bf16" else "fp32",
        device="cpu",  # the trainer moves it
        trust_remote_code=config.trust_remote_code,
    )
    try:
        if config.method == "dpo":
            base = load(config.base, "causal", options)
        else:
            base = load(config.base, "classifier", options, fresh_head=True, num_labels=1)
            if not config.merge and not _has_reward_head(config):
                raise BadInput(
                    f"{config.base} has no reward head of one logit, so an adapter alone could not be read; merge it"
                )
    except RuntimeError as error:  # weights of another shape, such as a head of several logits
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"cannot load {config.base!r} for {config.method}: {reason}") from None
    finally:
        set_verbosity(verbosity)
    if base.tokenizer.pad_token is None and base.tokenizer.eos_token is None:
        raise BadInput(f"{config.base}: its tokenizer has neither a padding nor an end token")
    return replace(base, max_length=min(base.max_length, config.max_length or base.max_length))


def _has_reward_head(config: FullConfig) -> bool:
    saved = transformers.AutoConfig.from_pretrained(
        resolve_weights(config.base), revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    return saved.num_labels == 1 and "ForSequenceClassification" in "".join(saved.architectures or [])


class TokenDPOTrainer(trl.DPOTrainer):  # type: ignore[name-defined, misc]
    """DPO on rows that are already tokenized; `RewardTrainer` recognizes such rows by itself."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def make_trainer(config: FullConfig, base: Checkpoint, folder: Path, progress: Progress) -> Any:
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # trl reports every trainer that is made
    held = datasets.Dataset.from_file(str(folder / HELD))
    settings = _arguments(config, folder, evaluated=bool(len(held)))
    adapter = None
    if config.lora:
        from peft import LoraConfig

        adapter = LoraConfig(
            task_type="SEQ_CLS" if config.method == "reward-model" else "CAUSAL_LM",
            r=config.lora,
            lora_alpha=ALPHA * config.lora,
            lora_dropout=0.0,
            target_modules="all-linear",
        )
    library: Any = trl
    try:
        if config.method == "reward-model":
            make, arguments = library.RewardTrainer, library.RewardConfig(**settings)
        else:
            make, arguments = TokenDPOTrainer, library.DPOConfig(**settings, beta=config.beta)
        trainer = make(
            model=base.model,
            args=arguments,
            train_dataset=datasets.Dataset.from_file(str(folder / FITTED)),
            eval_dataset=held if len(held) else None,
            processing_class=base.tokenizer,
            peft_config=adapter,
            callbacks=[Watch(progress)],
        )
    except ValueError as error:  # settings that trl or accelerate refuse, such as several GPUs without a launcher
        raise BadInput(str(error)) from None
    trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(config: FullConfig, folder: Path, *, evaluated: bool) -> dict[str, Any]:
    on_gpu = config.device == "auto" and torch.cuda.is_available()
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "learning_rate": config.lr or (LORA_LR if config.lora else LR),
        "lr_scheduler_type": "linear",
        "warmup_steps": config.warmup,
        "per_device_train_batch_size": config.batch,
        "per_device_eval_batch_size": config.batch,
        "gradient_accumulation_steps": config.accumulate,
        "gradient_checkpointing": config.gradient_checkpointing,
        "bf16": on_gpu and config.dtype != "fp32",
        "use_cpu": config.device == "cpu",
        "dataloader_pin_memory": on_gpu,
        "max_length": None,  # rows are cut by us, so that no answer is
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would show the last finite loss in place of a NaN
        "eval_strategy": "epoch" if evaluated else "no",
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "report_to": [],
        "disable_tqdm": True,
        "seed": config.seed,
        "data_seed": config.seed,
    }


class Watch(TrainerCallback):
    """Shows progress, and stops training where the loss is not finite."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._progress.begin("training", total=state.max_steps, done=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._progress.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        for name in ("loss", "grad_norm", "eval_loss"):
            value = (logs or {}).get(name)
            if value is not None and not math.isfinite(float(value)):
                raise PrbError(f"{name} is {value} at step {state.global_step}: lower --lr, or try --dtype fp32")
        if logs and "loss" in logs:
            self._progress.status(f"loss {float(logs['loss']):.3f}")


def checkpoints(folder: Path) -> list[Path]:
    """Complete ones, oldest first: the last file of a checkpoint to be written is its `trainer_state.json`."""
    complete = []
    for path in folder.glob("checkpoint-*"):
        try:
            complete += [path] if read_json(path / "trainer_state.json") else []
        except BadInput:
            continue
    return sorted(complete, key=lambda path: int(path.name.rpartition("-")[2]))


def train_from_last_checkpoint(trainer: Any, folder: Path) -> list[dict[str, Any]]:
    """Returns everything that was logged since the first step."""
    last = checkpoints(folder)[-1:]
    trainer.train(resume_from_checkpoint=str(last[0]) if last else None)
    history: list[dict[str, Any]] = trainer.state.log_history
    return history


def save_model(config: FullConfig, trainer: Any) -> None:
    """Safetensors and tokenizer as one model; with LoRA, the adapter too."""
    folder = config.adapter if config.lora else config.target
    trainer.save_model(str(folder))
    if trainer.accelerator.is_main_process:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle: nobody should have to open one
        if config.lora and config.merge:
            trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(config.target)
            trainer.processing_class.save_pretrained(config.target)
