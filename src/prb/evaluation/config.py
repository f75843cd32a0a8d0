"""Everything `prb evaluate` can be told. One class is the Python API, the flags and the saved `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

CONDITIONS = ("none", "profile", "plan", "shuffled", "oracle")
DEFAULT_MODELS = ("random", "length", "constant", "lexical", "embedding", "aspect-match")

Condition = Literal["none", "profile", "plan", "shuffled", "oracle"]
DEFAULT_CONDITIONS: tuple[Condition, ...] = ("none", "profile", "shuffled", "oracle")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Score reward models on a personalized benchmark. Without arguments: the embedded benchmark and models."""

    model: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Model spec such as `embedding` or `embedding?encoder=minilm`; repeat for several. All embedded ones if absent."""
    condition: tyro.conf.UseAppendAction[tuple[Condition, ...]] = ()
    """What the model is shown of the person; repeat for several. Default: none, profile, shuffled, oracle."""
    dataset: str = "mirror"
    """A name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split; `test` where rows carry one, else all rows."""
    limit: int | None = None
    """Only the first N rows of the split."""
    task: Literal["pairs", "ratings"] = "pairs"
    """Chosen/rejected pairs, or answers with each person's own rating in 0..1."""
    k: int = 10
    """How many posts of the history a model is shown."""
    budget: int | None = None
    """At most this many tokens of posts, estimated as characters / 4."""
    ranker: Literal["embedding", "bm25", "recency"] = "embedding"
    """How the k posts are picked."""
    planner: str = "extractive"
    """How condition `plan` infers what the person wants."""
    orders: Literal["both", "one"] = "both"
    """Ask comparers in both answer orders, or in one drawn by hash of the pair."""
    protocol: Literal["prb", "paper"] = "prb"
    """paper: the procedure of the paper's released scripts, faults included, to compare with published numbers."""
    judge_prompt: Path | None = None
    """With --protocol paper: your own judge prompt with the slots {question}, {answer_a}, {answer_b}."""
    on_overflow: Literal["cut", "error"] = "cut"
    """What does not fit a model loses the oldest posts and is counted, or stops the run."""
    batch: int = 64
    """Rows a batch; a crash costs at most one."""
    seed: int = 0
    """Fixes donors, answer orders and resampling."""
    skip_bad: bool = False
    """Use the good rows of a file with errors, and say how many were left out."""
    mask_pii: Literal["auto", "on", "off"] = "auto"
    """Mask e-mails, phone numbers, IBANs and handles; auto: only for models that send texts elsewhere."""
    out: Path | None = None
    """Run folder; the same command resumes it. Default: runs/<dataset>-<digest of these settings>."""
    require: str | None = None
    """Exit 1 unless it holds, e.g. "accuracy>0.6,control>0,accuracy@none<=0.55"."""
    json: bool = False
    """Print summary.json to stdout instead of a table."""
    quiet: bool = False
    """No progress."""


PRESENTATION = frozenset({"out", "require", "json", "quiet"})
"""Settings that do not change a single outcome, so a resumed run may differ in them."""
