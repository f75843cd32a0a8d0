"""Every error a user can meet, and the exit code it ends with.

PrbError                 1   something failed
├── ResultFailed         1   the run finished, but its result does not pass; carries the result
│   ├── GateFailed       1   a `--require` condition does not hold
│   ├── TooManyFailures  1   more rows failed than `--max-failed` allows
│   └── NotAccepted      1   submissions to a leaderboard were refused
├── Unreachable          1   a model cannot be reached; what was answered is kept
├── BudgetUsedUp         1   a budget is used up; what was answered is kept
└── BadInput             2   the request or the data is wrong
    ├── BadSpec          2   a spec string cannot be read
    ├── UnknownName      2   no such model, dataset, ranker …
    ├── BadData          2   rows with errors; carries every problem
    ├── RunConflict      2   the run folder belongs to another configuration
    │   └── ModelChanged 2   a model is not the one the run began with
    └── MissingExtra     2   an optional dependency is not installed
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple


class PrbError(Exception):
    exit_code = 1


class ResultFailed(PrbError):
    result: Any = None
    """What the verb would have returned."""


class GateFailed(ResultFailed):
    pass


class TooManyFailures(ResultFailed):
    pass


class NotAccepted(ResultFailed):
    pass


class Unreachable(PrbError):
    pass


class BudgetUsedUp(PrbError):
    pass


class BadInput(PrbError):
    exit_code = 2


class BadSpec(BadInput):
    pass


class UnknownName(BadInput):
    pass


class Problem(NamedTuple):
    """What is wrong with one row."""

    place: str
    line: int
    what: str
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.at}: {self.what}"

    @property
    def at(self) -> str:
        """Place and line; the place alone for what is wrong with a whole dataset."""
        return f"{self.place}:{self.line}" if self.line else self.place


def by_kind(problems: Sequence[Problem], shown: int | None = None) -> list[str]:
    """One line per kind of problem, with the first of its rows, how many there are and where some of them stand.

    Problems that differ only in quoted text and numbers are of one kind.
    """
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.level, re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "", problem.what)), []).append(problem)
    lines = []
    for first, *others in list(kinds.values())[:shown]:
        places = [other.at for other in others[:2]]
        more = ", …" if len(others) > 2 else ""
        lines.append(f"{first} (and {len(others)} more: {', '.join(places)}{more})" if others else str(first))
    if shown is not None and len(kinds) > shown:
        lines.append(f"… and {len(kinds) - shown} more kinds of problems")
    return lines


class BadData(BadInput):
    """Prints one line per kind of problem, up to `shown` of them."""

    def __init__(self, name: str, problems: Sequence[Problem], shown: int = 20) -> None:
        self.problems = list(problems)
        rows = len({(problem.place, problem.line) for problem in problems})
        lines = by_kind(self.problems, shown) if shown else []
        super().__init__("\n  ".join([f"{name}: {rows} {'row' if rows == 1 else 'rows'} with problems", *lines]))


class RunConflict(BadInput):
    pass


class ModelChanged(RunConflict):
    def __init__(self, message: str, name: str, fingerprint: str) -> None:
        super().__init__(message)
        self.name, self.fingerprint = name, fingerprint


class MissingExtra(BadInput):
    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the {extra!r} extra: pip install 'personalized-rewardbench[{extra}]'")


EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "accelerate": "torch",
    "gguf": "torch",
    "peft": "train",
    "trl": "train",
    "httpx2": "api",
    "xllamacpp": "llamacpp",
    "huggingface_hub": "hub",
    "datasets": "hub",
    "inspect_ai": "inspect",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "ray": "ray",
}
"""Optional module → the extra that installs it."""


def explain_import(feature: str, error: ImportError) -> BadInput:
    """What to say if `feature` cannot be imported: the extra it needs, or the module that is missing."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    return MissingExtra(feature, extra) if extra else BadInput(f"{feature} cannot be imported: {error}")


def first_line(error: BaseException) -> str:
    """What an error of another library says, without the paragraphs that may follow."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def unknown(kind: str, name: str, known: Collection[str], hint: str = "") -> UnknownName:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return UnknownName(f"no {kind} named {name!r}; did you mean {near[0]!r}?")
    return UnknownName(f"no {kind} named {name!r}; " + (hint or f"there are: {', '.join(sorted(known))}"))


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """What differs between two sets of settings, leaf by leaf, as `a.b: old → new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = {key: f"{at}.{key}".lstrip(".") for key in (*old, *new)}
        return [line for key, at in inner.items() for line in differences(old.get(key), new.get(key), at)]
    shown = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in (old, new))
    return [] if old == new else [f"{at}: {' → '.join(shown)}"]


# --- secrets stay out of terminals, files and pages: the one place that removes them from a text ---
REDACTED = "[redacted]"
SHORTEST = 8
"""Shorter keys are placeholders such as `none`, and words of ordinary texts."""
_URL = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")
_OPTION = re.compile(
    r"""([?&;,{\s"'](?:\w*password|passwd|pwd|\w*token|\w*api_?key|\w*secret)(?:=|["']\s*:\s*)["']?)[^\s&;,"'})]+""",
    re.I,
)
_known: dict[str, re.Pattern[str]] = {}


def remember_secret(secret: str) -> None:
    """A key that was read: `redact` removes it from now on, whole or cut off; its beginning would give it away."""
    if len(secret) >= SHORTEST:
        _known[secret] = re.compile(re.escape(secret[:SHORTEST]) + r"[^\s\"'<>]*")


def redact(text: str) -> str:
    """The text without keys that were read from the environment."""
    for secret, pattern in _known.items():
        if secret[:SHORTEST] in text:
            text = pattern.sub(REDACTED, text)
    return text


def redact_options(text: str) -> str:
    """As `redact`, for what a user typed: also without passwords in URLs and values of options that hold secrets."""
    return _OPTION.sub(rf"\1{REDACTED}", _URL.sub(rf"\1{REDACTED}@", redact(text)))
