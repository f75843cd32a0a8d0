"""Whole language models as reward models, through trl: `reward-model` trains a head with the Bradley-Terry loss,
`dpo` a policy whose log-probabilities are the reward (Rafailov et al. 2023, arXiv 2305.18290).

Prompts are tokenized here, by the code that scores them later, and trl gets token ids: the same template, one BOS,
oldest posts cut first, answers whole. What `prb evaluate` shows the finished model is what it was trained on.

`out` is the model, as transformers reads it, with a card; `out/training` holds settings, checkpoints while it lasts,
and the evaluation on held-out persons. Left out: quantised bases, packing, trl's other losses. Several GPUs go by
`accelerate launch -m prb train …`; that way was tried with two processes on a CPU, nothing more.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import orjson
import tyro

from prb import __version__
from prb.config import Condition
from prb.data.load import Dataset
from prb.errors import BadInput, MissingExtra, RunConflict
from prb.evaluation.config import EvaluateConfig
from prb.progress import SILENT, Progress
from prb.runs import Folder, write_json
from prb.training.examples import open_training

CARD, ADAPTER, WORK = "card.json", "adapter", "training"
CURVE = 500
"""Points of the loss curve that a card keeps, at most."""
JUDGED = 2_000
"""Held-out rows that are evaluated for the card, at most."""


@dataclass(frozen=True, kw_only=True)
class FullConfig:
    """Fine-tune a language model, or a LoRA adapter on it, into a reward model. Wants a GPU for real sizes."""

    method: tyro.conf.Positional[Literal["reward-model", "dpo"]]
    """A classification head read by `classifier?path=`, or a policy read by `implicit?policy=`."""
    base: str
    """Folder, hub id or pulled name of the model to start from."""
    out: Path
    """Folder of the trained model; the same command resumes it."""
    dataset: str = "mirror"
    """A name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split to learn from; `train` where rows carry one, else all rows."""
    limit: int | None = None
    """Only the first N rows of the split."""
    condition: Literal["none", "profile", "plan"] = "profile"
    """What the prompt tells of the person; evaluate under the same one."""
    k: int = 10
    """How many posts of the history the prompt shows."""
    budget: int | None = None
    """At most this many tokens of posts, estimated as characters / 4."""
    ranker: Literal["embedding", "bm25", "recency"] = "embedding"
    """How the k posts are picked."""
    planner: str = "extractive"
    """How condition `plan` infers what the person wants."""
    max_length: int | None = None
    """Longest input in tokens; over it the oldest posts go first. Default: what model and tokenizer say."""
    lora: int = 0
    """Rank of a LoRA adapter on all linear layers; 0 trains every weight."""
    merge: bool = True
    """Write base and adapter as one model; without it only the adapter is written."""
    epochs: float = 1.0
    """Passes over the rows."""
    lr: float | None = None
    """Highest step size of AdamW; default 1e-5, with LoRA 1e-4."""
    batch: int = 8
    """Pairs a step and device."""
    accumulate: int = 1
    """Steps whose gradients are summed before the weights move."""
    warmup: float = 0.05
    """Share of the steps in which the step size rises; then it falls linearly to 0."""
    beta: float = 0.1
    """Of DPO: how dear it is to leave the base."""
    validation: float = 0.1
    """Share of persons held out to report on; 0 trains on all of them."""
    save_every: int = 200
    """Steps between checkpoints; an interrupted run loses at most these."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: fp32 weights, on a GPU computed in bf16. bf16: the weights too, for LoRA on a large base."""
    device: Literal["auto", "cpu"] = "auto"
    """cpu: even if there is a GPU."""
    gradient_checkpointing: bool = False
    """Less memory, more time."""
    revision: str | None = None
    """Commit or tag of a hub repository."""
    trust_remote_code: bool = False
    """Run code that comes with the weights. Only for repositories you trust."""
    seed: int = 0
    """Fixes a fresh head, the adapter, the order of rows and who is held out."""
    json: bool = False
    """Print card.json to stdout instead of a few lines."""
    quiet: bool = False
    """No progress."""


PRESENTATION = frozenset({"out", "json", "quiet"})


def settings_of(config: FullConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in PRESENTATION}


def check(config: FullConfig) -> None:
    """Every setting, before anything expensive happens."""
    least = {"limit": 1, "k": 0, "max_length": 8, "lora": 0, "batch": 1, "accumulate": 1, "save_every": 1}
    for setting, low in least.items():
        value = getattr(config, setting)
        if value is not None and value < low:
            raise BadInput(f"--{setting.replace('_', '-')} {value}: wants {low} or more")
    for setting in ("epochs", "lr", "beta"):
        value = getattr(config, setting)
        if value is not None and not 0 < value < math.inf:
            raise BadInput(f"--{setting} {value}: wants a positive number")
    for setting in ("validation", "warmup"):
        if not 0 <= getattr(config, setting) < 1:
            raise BadInput(f"--{setting} {getattr(config, setting)}: wants a share from 0 to below 1")
    if not config.merge and not config.lora:
        raise BadInput("--no-merge is for LoRA: give --lora RANK")


def finetune(config: FullConfig, *, progress: Progress = SILENT) -> Path:
    """Train or resume; the folder of the finished model, with its card."""
    check(config)
    _libraries()
    from prb.engine.chat import Chat
    from prb.training.full_tokens import read_about, write_rows
    from prb.training.full_trainer import fit, load_base, make_trainer, save

    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit)
    with Workplace(config, dataset) as place:
        if (config.out / CARD).exists():
            progress.note(f"{config.out} is finished")
            return config.out
        base = load_base(config)
        if place.main:
            write_rows(config, dataset, Chat(base.tokenizer), base.limit, place.folder, progress)
        place.wait()
        trainer = make_trainer(config, base, place.folder, progress)
        history = fit(trainer, place.folder)
        save(config, trainer, config.out / ADAPTER)
        about = read_about(place.folder)
        made = card(config, dataset, base.fingerprint, about["counts"], history)
        del trainer, base  # the evaluation loads the finished model
        place.wait()
        if place.main:
            made["validation"] = judge(config, dataset, about["held"], progress)
            write_json(config.out / CARD, made)
            place.clean()
        place.wait()
    return config.out


def _libraries() -> None:
    try:
        import peft  # noqa: F401
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtra("training a whole model", "train") from None


class Workplace:
    """The folder of a training run. Of several processes the first one owns it, the others wait for what it writes."""

    def __init__(self, config: FullConfig, dataset: Dataset) -> None:
        from accelerate import PartialState

        self.folder = config.out / WORK
        self._state = PartialState(cpu=config.device == "cpu")
        self.main = bool(self._state.is_main_process)
        self._folder = Folder(self.folder, {"train": settings_of(config), "data": dataset.fingerprint})

    def __enter__(self) -> Self:
        out = self.folder.parent
        if self.main:
            if out.exists() and not self.folder.exists() and (not out.is_dir() or any(out.iterdir())):
                raise RunConflict(f"{out} exists and is not a training folder; choose another --out")
            self._folder.open()
        self.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self.main:
            return
        self._folder.close()
        if isinstance(error, BadInput) and not any(self.folder.glob("checkpoint-*")):  # as if it never happened
            shutil.rmtree(self.folder)
            if not any(self.folder.parent.iterdir()):
                self.folder.parent.rmdir()

    def wait(self) -> None:
        self._state.wait_for_everyone()

    def clean(self) -> None:
        """Checkpoints hold the optimizer's state, twice the model: nobody needs them any more."""
        for path in self.folder.glob("checkpoint-*"):
            shutil.rmtree(path)
        for path in [*self.folder.glob("*.arrow"), self.folder / "README.md"]:
            path.unlink(missing_ok=True)


def model_spec(config: FullConfig) -> str:
    """What to give to `prb evaluate --model`."""
    base, out, adapter = (quote(str(p), safe="/:") for p in (config.base, config.out, config.out / ADAPTER))
    model, more = (out, "") if config.merge else (base, f"&adapter={adapter}")
    more += f"&max_length={config.max_length}" if config.max_length else ""
    if config.method == "reward-model":
        return f"classifier?path={model}{more}"
    return f"implicit?policy={model}&reference={base}&beta={config.beta}{more}"


def card(
    config: FullConfig, dataset: Dataset, base: str, counts: dict[str, Any], history: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the model tells of itself: data, settings, curves."""
    losses = [{"step": entry["step"], "loss": float(entry["loss"])} for entry in history if "loss" in entry]
    held_out = [entry for entry in history if "eval_loss" in entry]
    return {
        "format": 1,
        "prb": __version__,
        "method": config.method,
        "model": model_spec(config),
        "base": config.base,
        "base_fingerprint": base,
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "split": dataset.split,
            "rows": len(dataset),
            "persons": len(set(dataset.index.users)),
            **counts,
        },
        "train": settings_of(config),
        "seed": config.seed,
        "steps": losses[-1]["step"] if losses else 0,
        "curve": losses[:: 1 + len(losses) // CURVE],
        "held_out": [{"step": entry["step"], "loss": float(entry["eval_loss"])} for entry in held_out],
    }


def judge(config: FullConfig, dataset: Dataset, held: list[str], progress: Progress) -> dict[str, Any] | None:
    """An evaluation of the finished model on the held-out persons: with the person, without, with somebody else's."""
    if not held:
        return None
    from prb.evaluation.run import evaluate

    rows = config.out / WORK / "held.jsonl"
    copy_rows(dataset, set(held[:JUDGED]), rows)
    shutil.rmtree(config.out / WORK / "validation", ignore_errors=True)  # of an attempt that did not end
    conditions: tuple[Condition, ...] = ("none", config.condition, "shuffled")
    settings = EvaluateConfig(
        model=(model_spec(config),),
        condition=tuple(dict.fromkeys(conditions)),
        dataset=str(rows),
        k=config.k,
        budget=config.budget,
        ranker=config.ranker,
        planner=config.planner,
        seed=config.seed,
        out=config.out / WORK / "validation",
    )
    return evaluate(settings, progress=progress).summary


def copy_rows(dataset: Dataset, wanted: set[str], target: Path) -> None:
    """These rows as they came, without their split (what is held out of `train` is a test set of its own), and
    without a twin that is not among them."""
    with target.open("wb") as file:
        for row in dataset.source.rows():
            if isinstance(row.data, dict) and str(row.data.get("id")) in wanted:
                drop = {"split"} if str(row.data.get("mirror")) in wanted else {"split", "mirror"}
                kept = {key: value for key, value in row.data.items() if key not in drop}
                file.write(orjson.dumps(kept, option=orjson.OPT_APPEND_NEWLINE))
