"""Everything `prb grade` can be told. One class is the Python API, the flags and the saved `config.json`."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from prb.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class GradeConfig:
    """Grade answers against each person's rubric (--answers), or find out what a grader is worth (--validate)."""

    grader: str = "embedded"
    """Grader spec: `embedded`, `embedded?encoder=minilm`, `llm?llm=openai/gpt-5`, `llm?llm=SPEC&way=each`."""
    dataset: str = "mirror"
    """Whose rubrics: a name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split; `test` where rows carry one, else all rows."""
    answers: Path | None = None
    """JSONL with one {"pair": id of a row, "answer": text} a line."""
    validate: bool = False
    """Grade the chosen and the rejected answer of every row, and tell how often the grader has them in order."""
    human: Path | None = None
    """With --validate: JSONL with people's grades, {"pair": id, "answer": text, "grades": [0, 2, 1]} a line."""
    retest: bool = False
    """With --validate: grade everything twice, under another seed, and tell how often the grades are the same."""
    limit: int | None = None
    """Only the first N rows; with --answers the first N answers."""
    batch: int = 32
    """Answers a batch; a crash costs at most one."""
    seed: int = 0
    """Fixes resampling."""
    skip_bad: bool = False
    """Use the good rows of a dataset with errors, and say how many were left out."""
    mask_pii: Literal["auto", "on", "off"] = "auto"
    """Mask e-mails, phone numbers, IBANs and handles; auto: only for graders that send texts elsewhere."""
    out: Path | None = None
    """Run folder; the same command resumes it. Default: runs/grade-<dataset>-<digest of these settings>."""
    json: bool = False
    """Print summary.json to stdout instead of a table."""
    quiet: bool = False
    """No progress."""


PRESENTATION = frozenset({"batch", "out", "json", "quiet"})
"""Settings that do not change a single grade, so a resumed run may differ in them."""


def complete(config: GradeConfig) -> GradeConfig:
    """Every setting checked, before anything expensive happens."""
    if config.validate == (config.answers is not None):
        raise BadInput("prb grade wants either --answers FILE or --validate")
    if (config.human or config.retest) and not config.validate:
        raise BadInput("--human and --retest belong to --validate")
    for setting in ("limit", "batch"):
        value = getattr(config, setting)
        if value is not None and value < 1:
            raise BadInput(f"--{setting} {value}: wants 1 or more")
    return config if config.out else replace(config, out=default_folder(config))


def settings_of(config: GradeConfig) -> dict[str, Any]:
    kept = {key: value for key, value in asdict(config).items() if key not in PRESENTATION}
    return {key: str(value) if isinstance(value, Path) else value for key, value in kept.items()}


def default_folder(config: GradeConfig) -> Path:
    digest = hashlib.sha256(orjson.dumps(settings_of(config), option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
    name = "".join(c if c.isalnum() else "-" for c in Path(config.dataset).name).strip("-")
    return Path("runs") / f"grade-{name}-{digest}"
