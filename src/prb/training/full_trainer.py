"""The part of full fine-tuning that talks to transformers, peft and trl. Imported only when somebody trains."""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import datasets
import torch
import transformers
import trl
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

from prb.engine.load import fingerprint, longest
from prb.errors import BadInput, PrbError
from prb.progress import Progress
from prb.runs import read_json
from prb.training.full_tokens import FITTED, HELD
from prb.weights import resolve_weights

if TYPE_CHECKING:
    from prb.training.full import FullConfig


class Base(NamedTuple):
    """What training starts from."""

    model: Any
    tokenizer: Any
    fingerprint: str
    limit: int
    """Longest input in tokens."""


def load_base(config: FullConfig) -> Base:
    where = resolve_weights(config.base)
    shared = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    make: Any = transformers.AutoModelForCausalLM.from_pretrained
    if config.method == "reward-model":
        make = partial(transformers.AutoModelForSequenceClassification.from_pretrained, num_labels=1)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    loud = get_verbosity()
    set_verbosity(logging.ERROR)  # it warns that a fresh head is fresh
    transformers.set_seed(config.seed)  # transformers draws a fresh head from the global state
    try:
        if not config.merge and config.method == "reward-model":
            _want_head(config.base, transformers.AutoConfig.from_pretrained(where, **shared))
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **shared)
        dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
        model = make(where, dtype=dtype, use_safetensors=True, **shared)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        raise BadInput(f"cannot load {config.base!r} for {config.method}: {why}") from None
    finally:
        set_verbosity(loud)
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise BadInput(f"{config.base}: its tokenizer has neither a padding nor an end token")
    limit = min(longest(model, tokenizer), config.max_length or 10**9)
    return Base(model, tokenizer, fingerprint(where, config.revision), limit)


def _want_head(base: str, saved: Any) -> None:
    if saved.num_labels != 1 or "ForSequenceClassification" not in "".join(saved.architectures or []):
        raise BadInput(f"{base} has no reward head of one logit, so an adapter alone could not be read; merge it")


def make_trainer(config: FullConfig, base: Base, folder: Path, progress: Progress) -> Any:
    held = _read(folder / HELD)
    own = {"beta": config.beta} if config.method == "dpo" else {}
    name = {"reward-model": "Reward", "dpo": "DPO"}[config.method]
    trainer_of, arguments_of = getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")
    try:
        trainer = _ready(trainer_of)(
            model=base.model,
            args=arguments_of(**_arguments(config, folder, bool(len(held))), **own),
            train_dataset=_read(folder / FITTED),
            eval_dataset=held if len(held) else None,
            processing_class=base.tokenizer,
            peft_config=_adapter(config) if config.lora else None,
            callbacks=[Watch(progress)],
        )
    except ValueError as error:  # settings that trl or accelerate refuse, such as several GPUs without a launcher
        raise BadInput(str(error)) from None
    trainer.remove_callback(PrinterCallback)
    return trainer


def _read(path: Path) -> Any:
    return datasets.Dataset.from_file(str(path))


def _ready(trainer: type[Any]) -> type[Any]:
    """The same trainer for rows that are tokens already, without a message to its makers."""
    ours = {"_prepare_dataset": lambda self, rows, *_: rows, "_send_telemetry": lambda self: None}  # noqa: ARG005
    return type(trainer.__name__, (trainer,), ours)


def _adapter(config: FullConfig) -> Any:
    from peft import LoraConfig

    task = "SEQ_CLS" if config.method == "reward-model" else "CAUSAL_LM"
    return LoraConfig(
        task_type=task, r=config.lora, lora_alpha=2 * config.lora, lora_dropout=0.0, target_modules="all-linear"
    )


def _arguments(config: FullConfig, folder: Path, evaluated: bool) -> dict[str, Any]:
    on_gpu = config.device == "auto" and torch.cuda.is_available()
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "learning_rate": config.lr or (1e-4 if config.lora else 1e-5),
        "lr_scheduler_type": "linear",
        "warmup_steps": config.warmup,
        "per_device_train_batch_size": config.batch,
        "per_device_eval_batch_size": config.batch,
        "gradient_accumulation_steps": config.accumulate,
        "gradient_checkpointing": config.gradient_checkpointing,
        "bf16": on_gpu and config.dtype != "fp32",
        "use_cpu": config.device == "cpu",
        "dataloader_pin_memory": on_gpu,
        "max_length": None,  # cut by us, so that no answer is
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would show the last good loss in place of a NaN
        "eval_strategy": "epoch" if evaluated else "no",
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "report_to": [],
        "disable_tqdm": True,
        "seed": config.seed,
        "data_seed": config.seed,
    }


class Watch(TrainerCallback):
    """Progress, and a stop where the loss is no number any more."""

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
    """Whole ones, oldest first: a checkpoint's `trainer_state.json` is the last file to be written."""
    found = [path for path in folder.glob("checkpoint-*") if _whole(path / "trainer_state.json")]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def _whole(state: Path) -> bool:
    try:
        return bool(read_json(state))
    except BadInput:
        return False


def fit(trainer: Any, folder: Path) -> list[dict[str, Any]]:
    """Train from the last checkpoint on; all that was logged, from the first step."""
    last = checkpoints(folder)[-1:]
    trainer.train(resume_from_checkpoint=str(last[0]) if last else None)
    history: list[dict[str, Any]] = trainer.state.log_history
    return history


def save(config: FullConfig, trainer: Any, adapter: Path) -> None:
    """Safetensors and tokenizer, as one model and, of LoRA, as an adapter too."""
    target = adapter if config.lora else config.out
    trainer.save_model(str(target))
    if trainer.accelerator.is_main_process:
        (target / "training_args.bin").unlink(missing_ok=True)  # a pickle: nobody should have to open one
        if config.lora and config.merge:
            trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(config.out)
            trainer.processing_class.save_pretrained(config.out)
