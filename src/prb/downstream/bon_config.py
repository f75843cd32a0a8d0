"""Everything `prb bon` can be told. One class is the Python API, the flags and the saved `config.json`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson
import tyro

from prb.config import Condition
from prb.errors import BadInput
from prb.stats.best_of import powers

DEFAULT_MODELS = ("random", "length", "lexical", "embedding")


@dataclass(frozen=True, kw_only=True)
class BonConfig:
    """What a reward model picks from N answers of a policy, graded against the person's rubric."""

    policy: str
    """LLM spec of what answers: `llamacpp/smollm2`, `transformers/FOLDER`, `openai/NAME;base_url=…`."""
    model: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Reward model spec; repeat for several, or add some to a folder later. Default: the embedded ones."""
    grader: str = "embedded"
    """Grader spec: `embedded`, or `llm?llm=SPEC`."""
    n: int = 16
    """Answers sampled for each query."""
    best_of: tyro.conf.UseAppendAction[tuple[int, ...]] = ()
    """Report best-of-k for this k; repeat for several. Default: 1, 2, 4, … N."""
    dataset: str = "mirror"
    """A name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split; `test` where rows carry one, else all rows."""
    per_user: int | None = None
    """At most this many rows of a person: other people tell more than other questions."""
    limit: int | None = None
    """Only the first so many of these rows."""
    condition: Condition = "profile"
    """What policy and reward models are shown of the person."""
    k: int = 10
    """How many posts of the history they are shown."""
    budget: int | None = None
    """At most this many tokens of posts, estimated as characters / 4."""
    ranker: Literal["embedding", "bm25", "recency"] = "embedding"
    """How the k posts are picked."""
    planner: str = "extractive"
    """How condition `plan` infers what the person wants."""
    temperature: float = 1.0
    """Of the policy."""
    top_p: float = 0.9
    """Of the policy."""
    max_tokens: int = 512
    """The policy's answers are cut there, and counted."""
    at_once: int = 8
    """Answers asked for in one call; a crash costs at most these. More for endpoints that take many requests."""
    seed: int = 0
    """Fixes samples, donors and resampling."""
    skip_bad: bool = False
    """Use the good rows of a file with errors, and say how many were left out."""
    mask_pii: Literal["auto", "on", "off"] = "auto"
    """Mask e-mails, phone numbers, IBANs and handles; auto: only for what sends texts elsewhere."""
    retry_failed: bool = False
    """Do again what failed in an earlier call."""
    out: Path | None = None
    """Run folder; the same command resumes it. Default: runs/bon-<dataset>-<digest of these settings>."""
    json: bool = False
    """Print summary.json to stdout instead of a table."""
    quiet: bool = False
    """No progress."""


PRESENTATION = frozenset({"model", "best_of", "at_once", "retry_failed", "out", "json", "quiet"})
"""Settings that change no line already written, so a later call on the same folder may differ in them."""

LEAST = {"n": 1, "per_user": 1, "limit": 1, "k": 0, "budget": 0, "temperature": 0, "max_tokens": 1, "at_once": 1}


def complete(config: BonConfig) -> BonConfig:
    """Defaults filled in and every setting checked, before anything expensive happens."""
    for setting, least in LEAST.items():
        value = getattr(config, setting)
        if value is not None and not value >= least:
            raise BadInput(f"--{setting.replace('_', '-')} {value}: wants {least} or more")
    if not 0 < config.top_p <= 1:
        raise BadInput(f"--top-p {config.top_p}: wants more than 0 and at most 1")
    for k in config.best_of:
        if not 1 <= k <= config.n:
            raise BadInput(f"--best-of {k}: there are {config.n} samples of a query (--n), so it wants 1 to {config.n}")
    ks = tuple(sorted(set(config.best_of))) or powers(config.n)
    models = tuple(dict.fromkeys(config.model))
    return replace(config, best_of=ks, model=models, out=config.out or default_folder(config))


def settings_of(config: BonConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in PRESENTATION}


def default_folder(config: BonConfig) -> Path:
    digest = hashlib.sha256(orjson.dumps(settings_of(config), option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
    name = "".join(c if c.isalnum() else "-" for c in Path(config.dataset).name).strip("-")
    return Path("runs") / f"bon-{name}-{digest}"
