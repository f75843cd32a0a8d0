"""Everything `prb build` can be told. One class is the Python API, the flags and the saved `config.json`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from prb.errors import BadInput

Stage = Literal["rubric", "couple", "negative", "answer", "grade", "quality", "blind"]
STAGES: tuple[Stage, ...] = ("rubric", "couple", "negative", "answer", "grade", "quality", "blind")
Role = Literal["write", "grade", "judge"]
ROLES: dict[Stage, Role] = {
    "rubric": "write",
    "negative": "write",
    "couple": "judge",
    "answer": "write",
    "grade": "grade",
    "quality": "judge",
    "blind": "judge",
}


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Build a personalized benchmark from people's records: rubrics, two good answers each, every pair verified."""

    input: str
    """Records: a .jsonl or .parquet file, a folder of them, or lampqa:FOLDER with LaMP-QA files as published."""
    llm: str
    """Language model for every role, e.g. `openai/gpt-5;usd_in=1.25;usd_out=10`."""
    out: Path
    """Folder of the build; the same command goes on where it stopped."""
    write_llm: str | None = None
    """Another one for rubrics and answers."""
    grade_llm: str | None = None
    """Another one that grades answers against the rubric."""
    judge_llm: str | None = None
    """Another one for general quality, couples and the user-blind check."""
    mode: Literal["oppose", "avoid"] = "oppose"
    """The rejected answer suits a person with opposite wishes, or leaves the wishes out (the paper's way)."""
    mirror: bool = True
    """Pair records with similar questions and conflicting rubrics, and swap their labels."""
    limit: int | None = None
    """Only the first N records."""
    aspects: tuple[int, int] = (2, 6)
    """Fewest and most aspects of a rubric."""
    words: int = 120
    """Length both answers aim at."""
    candidates: int = 2
    """Answers written for each side of a pair."""
    rounds: int = 3
    """How often a pair is tried in all, if it fails or a user-blind model can tell it."""
    temperature: float = 0.8
    """Of the answers; everything else is asked for at 0."""
    max_tokens: int = 1024
    """The longest reply."""
    max_gap: float = 0.15
    """Largest difference in length (characters) of the two answers, as a share of the longer."""
    shared_words: int = 5
    """So many words in a row may not be shared with rubric or narrative."""
    min_posts: int = 1
    """People with fewer posts are left out: there is nothing to infer from."""
    quality_floor: float = 3.5
    """Both answers' mean rating (1-5), judged without rubric and profile."""
    quality_margin: float = 0.5
    """Largest difference of the two."""
    blind_limit: float = 0.6
    """A user-blind judge and a user-blind learner may not be right more often than this."""
    duplicate: float = 0.95
    """Cosine from which two records count as the same question."""
    similar: float = 0.75
    """Cosine from which two people's questions may become a mirror couple."""
    skip_gate: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Do not apply a gate; repeat for several. Names: see docs/build.md."""
    mask_pii: Literal["auto", "on", "off"] = "auto"
    """Mask e-mails, phone numbers, IBANs and handles in all texts; auto: if a model runs elsewhere."""
    skip_bad: bool = False
    """Use the good records of a file with errors; the others go to the rejects."""
    max_usd: float | None = None
    """Stop before more is spent; needs prices (usd_in, usd_out) in the llm specs."""
    max_total_tokens: int | None = None
    """Stop before more tokens are read and written."""
    batch: int = 64
    """Requests sent at once; a crash costs at most one batch."""
    seed: int = 0
    """Fixes the sampling of answers."""
    until: Stage | None = None
    """Stop after this stage."""
    redo: Stage | None = None
    """Ask this stage anew, and what depends on it; all else is taken from the log."""
    dry_run: bool = False
    """Only say how many calls, tokens and dollars it would take."""
    json: bool = False
    """Print the card as JSON."""
    quiet: bool = False
    """No progress."""

    def spec_of(self, role: Role) -> str:
        own: str | None = getattr(self, f"{role}_llm")
        return own or self.llm


PASSING = frozenset({"out", "max_usd", "max_total_tokens", "batch", "until", "redo", "dry_run", "json", "quiet"})
"""Settings that say nothing about the pairs; the others stand in the card."""


def settings_of(config: BuildConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name not in PASSING}


def checked(config: BuildConfig) -> BuildConfig:
    from prb.building.gates import SKIPPABLE
    from prb.errors import unknown

    for name in config.skip_gate:
        if name not in SKIPPABLE:
            raise unknown("gate that can be skipped", name, SKIPPABLE)
    fewest, most = config.aspects
    if not 1 <= fewest <= most <= 12:
        raise BadInput(f"--aspects {fewest} {most}: wants 1 <= fewest <= most <= 12")
    least = {"limit": 1, "words": 10, "candidates": 1, "rounds": 1, "max_tokens": 16, "shared_words": 2, "batch": 1}
    least |= {"min_posts": 0, "temperature": 0, "max_usd": 0, "max_total_tokens": 0, "quality_margin": 0}
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and value < low:
            raise BadInput(f"--{name.replace('_', '-')} {value}: wants {low} or more")
    if not 1 <= config.quality_floor <= 5:
        raise BadInput(f"--quality-floor {config.quality_floor}: ratings are 1 to 5")
    for name in ("max_gap", "blind_limit", "duplicate", "similar"):
        if not 0 <= getattr(config, name) <= 1:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(config, name)}: wants 0 to 1")
    return config
