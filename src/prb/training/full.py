"""Whole LLMs as reward models, through trl: `reward-model` trains a head with the Bradley-Terry loss, `dpo` a policy
whose log-probabilities are the reward (Rafailov et al. 2023, arXiv 2305.18290).

The target folder is the model, as transformers reads it, with a card; its subfolder `training` holds settings, rows,
checkpoints until training is finished, and the evaluation on held-out users. Not supported: quantized bases, packing,
trl's other losses. For several GPUs use `accelerate launch -m prb train …`; tested with two CPU processes.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import huggingface_hub.constants
import torch
import transformers
import trl
from peft import LoraConfig
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from transformers.utils.logging import get_verbosity, set_verbosity

from prb import __version__
from prb.config import ConditionName, UserConfig
from prb.data.load import Dataset
from prb.engine.chat import Chat, Text, common_prefix, fit
from prb.engine.load import Checkpoint, Loading, load
from prb.errors import BadInput, PrbError, RunConflict, first_line
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.planners import PLANNERS
from prb.progress import SILENT, Progress
from prb.runs import Finished, RunFolder, draft, read_json, write_json, write_lines
from prb.stats.estimate import codes
from prb.training.config import LORA_ALPHA, FullConfig
from prb.training.learning import open_training, split_off
from prb.types import Failure, Pair, TrainedOn
from prb.weights import make_readable
from prb.work import chunks

CARD, WORK = "card.json", "training"
FORMAT = 1
CURVE = 500
"""Points of the loss curve that a card keeps, at most."""
VALIDATION_ROWS = 2_000
"""Held-out rows that are evaluated for the card, at most."""


def finetune(config: FullConfig, *, progress: Progress = SILENT) -> Finished:
    """Train or resume; the folder of the finished model, with its card. Of several processes the first one writes, and
    the others wait for what it writes."""
    from accelerate import PartialState

    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit)
    state, target, folder = PartialState(cpu=config.options.device == "cpu"), config.target, config.target / WORK
    main, wait = bool(state.is_main_process), state.wait_for_everyone
    with ExitStack() as stack:
        if main:
            if target.exists() and not folder.exists() and (not target.is_dir() or any(target.iterdir())):
                raise RunConflict(f"{target} exists and is not a training folder; choose another --out")
            stack.callback(remove_empty, target)
            stack.enter_context(RunFolder(folder, {"train": config.saved(), "data": dataset.fingerprint}))
        wait()
        if (target / CARD).exists():
            progress.note(f"{target} is finished")
        else:
            base = load_base(config)
            if main:
                write_rows(config, dataset, Chat(base.tokenizer), base.max_length, folder, progress)
            wait()
            trainer = make_trainer(config, base, folder, progress)
            last = checkpoints(folder)[-1:]
            trainer.train(resume_from_checkpoint=str(last[0]) if last else None)
            save_model(config, trainer)
            rows = read_json(folder / ABOUT)
            card = describe(config, dataset, base.fingerprint, rows["counts"], trainer.state.log_history)
            held = set(rows["held"])
            card["trained_on"] = TrainedOn.of(item for item in dataset if item.id not in held).as_card()
            del trainer, base  # the evaluation loads the finished model
            wait()
            if main:
                card["validation"] = validate(config, dataset, rows["held"], progress)
                write_json(target / CARD, card)
        wait()
        if main:  # what only an unfinished run needs: tokens, and checkpoints with the optimizer's state
            for path in folder.glob("checkpoint-*"):
                shutil.rmtree(path)
            for name in (FITTED, HELD, "README.md"):
                (folder / name).unlink(missing_ok=True)
        wait()
    return Finished(target, read_json(target / CARD))


def remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something
        folder.rmdir()


def describe(
    config: FullConfig, dataset: Dataset, base: str, counts: dict[str, Any], history: list[dict[str, Any]]
) -> dict[str, Any]:
    """The card without its validation: data, settings, curves. `history` is what was logged since the first step."""
    losses = [{"step": entry["step"], "loss": float(entry["loss"])} for entry in history if "loss" in entry]
    held_out = [entry for entry in history if "eval_loss" in entry]
    return {
        "format": FORMAT,
        "prb": __version__,
        "method": config.method,
        "model": config.model_spec,
        "base": config.base,
        "base_fingerprint": base,
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "split": dataset.split,
            "rows": len(dataset),
            "users": len(set(dataset.index.users)),
            **counts,
        },
        "train": config.saved(),
        "seed": config.seed,
        "steps": losses[-1]["step"] if losses else 0,
        "curve": losses[:: 1 + len(losses) // CURVE],
        "held_out": [{"step": entry["step"], "loss": float(entry["eval_loss"])} for entry in held_out],
    }


def validate(config: FullConfig, dataset: Dataset, held: list[str], progress: Progress) -> dict[str, Any] | None:
    """An evaluation of the finished model on the held-out users: without history, with theirs, with a donor's."""
    if not held:
        return None
    from prb.evaluation.run import evaluate

    rows, folder = config.target / WORK / "held.jsonl", config.target / WORK / "validation"
    copy_rows(dataset, set(held[:VALIDATION_ROWS]), rows)
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that did not finish
    conditions: tuple[ConditionName, ...] = ("none", config.condition, "shuffled")
    settings = EvaluateConfig(
        model=(config.model_spec,),
        condition=tuple(dict.fromkeys(conditions)),
        dataset=str(rows),
        **{field.name: getattr(config, field.name) for field in fields(UserConfig)},
        seed=config.seed,
        out=folder,
    )
    return evaluate(settings, progress=progress).summary


def copy_rows(dataset: Dataset, ids: set[str], target: Path) -> None:
    """These rows without their split (held-out rows of `train` are a test set of their own), and without the link to
    a twin that is not among them."""

    def rows() -> Iterator[dict[str, Any]]:
        for row in dataset.source.rows():
            if isinstance(row.data, dict) and str(row.data.get("id")) in ids:
                drop = {"split"} if str(row.data.get("mirror")) in ids else {"split", "mirror"}
                yield {key: value for key, value in row.data.items() if key not in drop}

    write_lines(target, rows())


LR, LORA_LR = 1e-5, 1e-4
"""Default peak learning rates."""
WARMUP = 0.05
"""Share of the steps in which the learning rate rises; then it falls linearly to 0."""
SAVE_EVERY = 200
"""Steps between checkpoints; an interrupted run loses at most this many."""


def load_base(config: FullConfig) -> Checkpoint:
    """What training starts from; `max_length` is the longest input in tokens."""
    verbosity = get_verbosity()
    set_verbosity(logging.ERROR)  # it warns that a fresh head is fresh
    transformers.set_seed(config.seed)  # transformers draws a fresh head from the global state
    options = config.options
    loading = Loading(
        revision=options.revision,
        dtype="bf16" if options.dtype == "bf16" else "fp32",
        device="cpu",  # the trainer moves it
        trust_remote_code=options.trust_remote_code,
    )
    try:
        if config.kind == "dpo":
            base = load(config.source, "causal", loading)
        else:
            base = load(config.source, "classifier", loading, fresh_head=True, num_labels=1)
    except RuntimeError as error:  # weights of another shape, such as a head of several logits
        reason = first_line(error)
        raise BadInput(f"cannot load {config.source!r} for {config.method}: {reason}") from None
    finally:
        set_verbosity(verbosity)
    if base.tokenizer.pad_token is None and base.tokenizer.eos_token is None:
        raise BadInput(f"{config.source}: its tokenizer has neither a padding nor an end token")
    return replace(base, max_length=min(base.max_length, options.max_length or base.max_length))


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
    device, dtype = config.options.device, config.options.dtype
    on_gpu = device == "auto" and torch.cuda.is_available()
    renamed = "activation_checkpointing" in transformers.TrainingArguments.__dataclass_fields__  # transformers 5.23
    return {
        "output_dir": str(folder),
        "num_train_epochs": config.epochs,
        "learning_rate": config.lr or (LORA_LR if config.lora else LR),
        "lr_scheduler_type": "linear",
        "warmup_steps": WARMUP,
        "per_device_train_batch_size": config.batch,
        "per_device_eval_batch_size": config.batch,
        "gradient_accumulation_steps": config.accumulate,
        "activation_checkpointing" if renamed else "gradient_checkpointing": on_gpu,
        "bf16": on_gpu and dtype != "fp32",
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": on_gpu,
        "max_length": None,  # rows are cut by us, so that no answer is
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would show the last finite loss in place of a NaN
        "eval_strategy": "epoch" if evaluated else "no",
        "save_steps": SAVE_EVERY,
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
                raise PrbError(f"{name} is {value} at step {state.global_step}: lower --lr, or train in fp32")
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


# Pairs as tokens, on disk: what trl trains on. Prompts are tokenized by the code that scores them later: the same
# queries, the same template, one BOS, oldest posts cut first, answers whole. So a model is evaluated on what it was
# trained on.

FITTED, HELD, ABOUT = "fit.arrow", "held.arrow", "rows.json"
COLUMNS = {"reward-model": ("chosen_ids", "rejected_ids"), "dpo": ("prompt_ids", "chosen_ids", "rejected_ids")}
"""What trl reads of a row that is already tokenized."""
CHUNK = 64
"""Pairs whose plans are inferred and whose tokens are written together."""


class Texts(NamedTuple):
    """Both answers after the same prompt."""

    chosen: Text
    rejected: Text
    cut: int
    """How many posts did not fit, plus one if the question was cut too."""


def write_rows(config: FullConfig, dataset: Dataset, chat: Chat, limit: int, folder: Path, progress: Progress) -> None:
    """Tokens of the rows to fit on and of the rows of held-out users; a resumed run finds them there."""
    if (folder / ABOUT).exists():
        return
    import pyarrow as pa

    held = set(split_off(codes(dataset.index.clusters), config.validation, config.seed)[1].tolist())
    failed: Counter[str] = Counter()
    held_ids, cut, written = [], 0, Counter({FITTED: 0, HELD: 0})
    schema = pa.schema([(name, pa.list_(pa.int32())) for name in COLUMNS[config.kind]])
    progress.begin(f"tokens of {dataset.name}", total=len(dataset))
    with ExitStack() as stack:  # Arrow files, since `datasets` memory-maps them, whatever their size
        drafts = {name: stack.enter_context(draft(folder / name)) for name in written}
        tables = {name: stack.enter_context(pa.ipc.new_stream(str(path), schema)) for name, path in drafts.items()}
        pairs = enumerate(tokenized(config, dataset, chat, limit))
        for batch in chunks(pairs, CHUNK):
            rows: dict[str, list[dict[str, list[int]]]] = {FITTED: [], HELD: []}
            for position, (pair, texts) in batch:
                if isinstance(texts, Failure):
                    failed[texts.reason] += 1
                    continue
                rows[HELD if position in held else FITTED].append(token_columns(config.kind, texts))
                held_ids += [pair.id] if position in held else []
                cut += texts.cut > 0
            for name, table in tables.items():
                table.write_table(pa.Table.from_pylist(rows[name], schema=schema))
                written[name] += len(rows[name])
            progress.advance(len(batch))
        if not written[FITTED]:
            raise BadInput(f"{config.dataset}: no pair can be trained on: {dict(failed)}")
    counts = {"fitted": written[FITTED], "held_out": written[HELD], "cut": cut, "failed": dict(failed)}
    write_json(folder / ABOUT, {"counts": counts, "held": held_ids})  # last: its presence means the rows are there


def tokenized(config: FullConfig, dataset: Dataset, chat: Chat, limit: int) -> Iterator[tuple[Pair, Texts | Failure]]:
    """Every pair as tokens of the query that an evaluation would make of it."""
    builder = QueryBuilder.of(config, dataset, PLANNERS.make(config.planner), reader=None, seed=config.seed)
    stream = (item for item in dataset if isinstance(item, Pair))
    for chunk in chunks(stream, CHUNK):
        plans = builder.plans(chunk) if config.condition == "plan" else {}
        for pair in chunk:
            built = builder.build(pair, config.condition, plans.get(pair.id))
            if isinstance(built, Failure):
                yield pair, built
                continue
            answers = pair.contrast
            # what is too long loses its oldest posts first; an answer is never cut
            fitted = fit(built.query, lambda q: max(len(text.ids) for text in chat.texts(q, answers)) <= limit)  # noqa: B023
            if isinstance(fitted, Failure):
                yield pair, fitted
                continue
            chosen, rejected = chat.texts(fitted[0], answers)
            yield pair, Texts(chosen, rejected, cut=fitted[1])


def token_columns(method: str, texts: Texts) -> dict[str, list[int]]:
    """DPO gets exactly the tokens whose log-probabilities `implicit` adds up later: the answer's own."""
    chosen, rejected = texts.chosen, texts.rejected
    if method == "reward-model":
        return {"chosen_ids": list(chosen.ids), "rejected_ids": list(rejected.ids)}
    shared = min(common_prefix([chosen.ids, rejected.ids]), chosen.start, rejected.start)
    return {
        "prompt_ids": list(chosen.ids[:shared]),
        "chosen_ids": list(chosen.ids[shared : chosen.end]),
        "rejected_ids": list(rejected.ids[shared : rejected.end]),
    }
