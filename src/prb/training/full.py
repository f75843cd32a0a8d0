"""Whole LLMs as reward models, through trl: `reward-model` trains a head with the Bradley-Terry loss, `dpo` a policy
whose log-probabilities are the reward (Rafailov et al. 2023, arXiv 2305.18290).

The target folder is the model, as transformers reads it, with a card; its subfolder `training` holds settings, and
checkpoints until training is finished. Not supported: quantized bases, packing, trl's other losses. For several GPUs
use `accelerate launch -m prb train …`; tested with two CPU processes.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import huggingface_hub.constants
import torch
import transformers
import trl
from accelerate import PartialState
from peft import LoraConfig
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from prb.data.load import Dataset
from prb.engine.chat import Chat, Text, common_prefix, fit
from prb.engine.load import Checkpoint, Loading, load
from prb.errors import BadInput, PrbError, RunConflict, first_line
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import Finished, RunFolder, read_json, write_json
from prb.stats.estimate import codes
from prb.training.config import LORA_ALPHA, FullConfig
from prb.training.learning import open_training, provenance, split_off
from prb.types import Failure, Pair, Query, TrainedOn
from prb.weights import make_readable
from prb.work import chunks

CARD, WORK = "card.json", "training"
FORMAT = 1
CURVE = 500
"""Points of the loss curve that a card keeps, at most."""
LR, LORA_LR = 1e-5, 1e-4
"""Default peak learning rates."""
WARMUP = 0.05
"""Share of the steps in which the learning rate rises; then it falls linearly to 0."""
SAVE_EVERY = 200
"""Steps between checkpoints; an interrupted run loses at most this many."""
CHUNK = 64
"""Pairs whose plans are inferred together."""


def finetune(config: FullConfig, *, progress: Progress = SILENT) -> Finished:
    """Train or resume; the folder of the finished model, with its card. Of several processes the first one writes."""
    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit)
    state, target, folder = PartialState(cpu=config.options.device == "cpu"), config.target, config.target / WORK
    with ExitStack() as stack:
        if state.is_main_process:
            if target.exists() and not folder.exists() and (not target.is_dir() or any(target.iterdir())):
                raise RunConflict(f"{target} exists and is not a training folder; choose another --out")
            stack.callback(remove_empty, target)
            stack.enter_context(RunFolder(folder, {"train": config.saved(), "data": dataset.fingerprint}))
        state.wait_for_everyone()
        if (target / CARD).exists():
            progress.note(f"{target} is finished")
        else:
            base = load_base(config)
            rows = token_rows(config, dataset, Chat(base.tokenizer), base.max_length, progress)
            trainer = make_trainer(config, base, rows, progress)
            trainer.train(resume_from_checkpoint=last_checkpoint(folder))
            save_model(config, trainer)
            if state.is_main_process:
                write_json(target / CARD, describe(config, dataset, base.fingerprint, rows, trainer.state.log_history))
        state.wait_for_everyone()
        if state.is_main_process:
            for path in folder.glob("checkpoint-*"):
                shutil.rmtree(path)
            (folder / "README.md").unlink(missing_ok=True)  # trl's card of the model
    return Finished(target, read_json(target / CARD))


def remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something
        folder.rmdir()


# Prompts are tokenized by the code that scores them later: the same queries, the same template, one BOS, oldest posts
# cut first, answers whole. So a model is evaluated on what it was trained on.


class TokenRows(NamedTuple):
    """Pairs as trl reads them once they are tokenized."""

    fit: list[dict[str, list[int]]]
    held: list[dict[str, list[int]]]
    """Of the users who are held out."""
    held_ids: set[str]
    counts: dict[str, Any]
    """How many pairs were fitted, held out, cut, or failed for which reason."""


def token_rows(config: FullConfig, dataset: Dataset, chat: Chat, limit: int, progress: Progress) -> TokenRows:
    """Every pair as tokens of the query that an evaluation would make of it."""
    _, held = split_off(codes(dataset.index.clusters), config.validation, config.seed)
    held_users = {dataset.index.users[n] for n in held}
    builder = QueryBuilder.of(config, dataset, PLANNERS.make(config.planner), reader=None, seed=config.seed)
    rows, cut, failed = TokenRows([], [], set(), {}), 0, Counter[str]()

    def fitted(pair: Pair, query: Query) -> tuple[Query, int] | Failure:
        """What fits of the query beside both answers, and how many parts were cut."""
        return fit(query, lambda part: all(len(text.ids) <= limit for text in chat.texts(part, pair.contrast)))

    progress.begin(f"tokens of {dataset.name}", total=len(dataset))
    for chunk in chunks((item for item in dataset if isinstance(item, Pair)), CHUNK):
        queries = builder.queries(chunk, config.condition)
        for pair in chunk:
            progress.advance()
            query = queries[pair.id]
            if isinstance(shown := query if isinstance(query, Failure) else fitted(pair, query), Failure):
                failed[shown.reason] += 1
                continue
            cut += shown[1] > 0
            columns = token_columns(config.kind, *chat.texts(shown[0], pair.contrast))
            if pair.user in held_users:
                rows.held.append(columns)
                rows.held_ids.add(pair.id)
            else:
                rows.fit.append(columns)
    if not rows.fit:
        raise BadInput(f"{config.dataset}: no pair can be trained on: {dict(failed)}")
    rows.counts.update(fitted=len(rows.fit), held_out=len(rows.held), cut=cut, failed=dict(failed))
    return rows


def token_columns(method: str, chosen: Text, rejected: Text) -> dict[str, list[int]]:
    """DPO gets exactly the tokens whose log-probabilities `implicit` adds up later: the answer's own."""
    if method == "reward-model":
        return {"chosen_ids": list(chosen.ids), "rejected_ids": list(rejected.ids)}
    shared = min(common_prefix([chosen.ids, rejected.ids]), chosen.start, rejected.start)
    return {
        "prompt_ids": list(chosen.ids[:shared]),
        "chosen_ids": list(chosen.ids[shared : chosen.end]),
        "rejected_ids": list(rejected.ids[shared : rejected.end]),
    }


def load_base(config: FullConfig) -> Checkpoint:
    transformers.set_seed(config.seed)  # transformers draws a fresh head from the global state
    options = config.options
    loading = Loading(
        revision=options.revision,
        dtype="bf16" if options.dtype == "bf16" else "fp32",
        device="cpu",  # the trainer moves it
        max_length=options.max_length,
        trust_remote_code=options.trust_remote_code,
    )
    try:
        if config.kind == "dpo":
            base = load(config.source, "causal", loading)
        else:
            base = load(config.source, "classifier", loading, fresh_head=True, num_labels=1)
    except RuntimeError as error:  # weights of another shape, such as a head of several logits
        raise BadInput(f"cannot load {config.source!r} for {config.method}: {first_line(error)}") from None
    if base.tokenizer.pad_token is None and base.tokenizer.eos_token is None:
        raise BadInput(f"{config.source}: its tokenizer has neither a padding nor an end token")
    return base


class TokenDPOTrainer(trl.DPOTrainer):  # type: ignore[name-defined, misc]
    """DPO on rows that are already tokenized; `RewardTrainer` recognizes such rows by itself."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def make_trainer(config: FullConfig, base: Checkpoint, rows: TokenRows, progress: Progress) -> Any:
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # trl reports every trainer that is made
    on_gpu = config.options.device == "auto" and torch.cuda.is_available()
    renamed = "activation_checkpointing" in transformers.TrainingArguments.__dataclass_fields__  # transformers 5.23
    settings: dict[str, Any] = {
        "output_dir": str(config.target / WORK),
        "num_train_epochs": config.epochs,
        "learning_rate": config.lr or (LORA_LR if config.lora else LR),
        "lr_scheduler_type": "linear",
        "warmup_steps": WARMUP,
        "per_device_train_batch_size": config.batch,
        "per_device_eval_batch_size": config.batch,
        "activation_checkpointing" if renamed else "gradient_checkpointing": on_gpu,
        "bf16": on_gpu and config.options.dtype != "fp32",
        "use_cpu": config.options.device == "cpu",
        "dataloader_pin_memory": on_gpu,
        "max_length": None,  # rows are cut by us, so that no answer is
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would show the last finite loss in place of a NaN
        "eval_strategy": "epoch" if rows.held else "no",
        "save_steps": SAVE_EVERY,
        "save_total_limit": 2,
        "report_to": [],
        "disable_tqdm": True,
        "seed": config.seed,
        "data_seed": config.seed,
    }
    adapter = LoraConfig(
        task_type="SEQ_CLS" if config.kind == "reward-model" else "CAUSAL_LM",
        r=config.lora,
        lora_alpha=LORA_ALPHA * config.lora,
        lora_dropout=0.0,
        target_modules="all-linear",
    )
    library: Any = trl
    try:
        if config.kind == "reward-model":
            make, arguments = library.RewardTrainer, library.RewardConfig(**settings)
        else:
            make, arguments = TokenDPOTrainer, library.DPOConfig(**settings, beta=config.dpo.beta)
        trainer = make(
            model=base.model,
            args=arguments,
            train_dataset=datasets.Dataset.from_list(rows.fit),
            eval_dataset=datasets.Dataset.from_list(rows.held) if rows.held else None,
            processing_class=base.tokenizer,
            peft_config=adapter if config.lora else None,
            callbacks=[Watch(progress)],
        )
    except ValueError as error:  # settings that trl or accelerate refuse, such as several GPUs without a launcher
        raise BadInput(str(error)) from None
    trainer.remove_callback(PrinterCallback)
    return trainer


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
                raise PrbError(f"{name} is {value} at step {state.global_step}: lower --lr, or train in fp32")


def last_checkpoint(folder: Path) -> str | None:
    """The last complete one: its `trainer_state.json` is written after all other files."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2]))) if complete else None


def save_model(config: FullConfig, trainer: Any) -> None:
    """Safetensors and tokenizer as one model; with LoRA, the adapter too."""
    folder = config.target / "adapter" if config.lora else config.target
    trainer.save_model(str(folder))
    if trainer.accelerator.is_main_process:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle: nobody should have to open one
        if config.lora:
            trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(config.target)
            trainer.processing_class.save_pretrained(config.target)
        for saved in {folder, config.target}:
            make_readable(saved)


def describe(
    config: FullConfig, dataset: Dataset, base: str, rows: TokenRows, history: list[dict[str, Any]]
) -> dict[str, Any]:
    """The card. `history` is what was logged since the first step."""
    losses = [{"step": entry["step"], "loss": float(entry["loss"])} for entry in history if "loss" in entry]
    held_out = [entry for entry in history if "eval_loss" in entry]
    card = provenance(config, dataset)
    card["data"] |= {"users": len(set(dataset.index.users)), **rows.counts}
    model = Spec("classifier", {"path": str(config.target)})
    if config.kind == "dpo":
        reference = {"reference": config.source, "beta": str(config.dpo.beta)}
        model = Spec("implicit", {"policy": str(config.target), **reference})
    if config.options.max_length:
        model = Spec(model.name, {**model.options, "max_length": str(config.options.max_length)})
    return card | {
        "format": FORMAT,
        "method": config.method,
        "model": str(model),  # what to give to `prb evaluate --model`
        "base": config.base,
        "base_fingerprint": base,
        "trained_on": TrainedOn.of(item for item in dataset if item.id not in rows.held_ids).as_card(),
        "curve": losses[:: 1 + len(losses) // CURVE],
        "held_out": [{"step": entry["step"], "loss": float(entry["eval_loss"])} for entry in held_out],
    }
