"""Everything `prb study` can be told: one class a verb is the Python API and the flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Kind = Literal["validate", "collect"]
PORT = 8600
URL = f"http://127.0.0.1:{PORT}"
Where = Annotated[str, tyro.conf.Positional]


@dataclass(frozen=True, kw_only=True)
class NewConfig:
    """Make a study: items, balanced assignments, invitation links. Links and password are shown once, here."""

    dataset: str = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    kind: Kind = "validate"
    """validate: annotators check pairs. collect: participants give posts, questions and preferences of their own."""
    annotators: int = 5
    """How many invitation links to make."""
    overlap: int = 3
    """How many annotators judge each item (collect: how many are wanted for each question)."""
    quota: int | None = None
    """At most so many items for one annotator."""
    checks: int = 2
    """Attention checks for each annotator: one of the answers belongs to another question."""
    posts: int = 10
    """validate: posts shown with an item, those nearest to the question. collect: most a participant may give."""
    min_posts: int = 2
    """collect: posts a participant has to give."""
    out: str = "study.db"
    """SQLite file to make, or postgresql://user@host/name."""
    title: str = ""
    """What annotators read at the top."""
    consent: Path | None = None
    """collect: text file a participant has to agree to; a plain default is shipped."""
    task: Literal["pairs", "ratings"] = "pairs"
    """What the rows of the dataset are (ratings: collect only; rows of one question are its answers)."""
    split: str | None = None
    """Split to use; `test` where the set has splits."""
    limit: int | None = None
    """At most so many rows, drawn by the seed; mirror twins stay together."""
    url: str = URL
    """Where annotators will find the study; invitation links begin with it."""
    seed: int = 0
    """Fixes assignments and orders."""
    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve a study on this machine. Put a TLS reverse proxy in front of it for anybody else."""

    study: Where = "study.db"
    """SQLite file or PostgreSQL URL."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = PORT
    """0 takes a free one."""
    url: str = ""
    """The public address behind a proxy, such as https://study.example.org: cookies become Secure."""
    rate: int = 120
    """Requests a minute for one session; 0 is no limit. Signing in is always held at 10 a minute for one address."""
    new_password: bool = False
    """Give the administrator a new password and print it."""
    quiet: bool = False
    """Say nothing but errors."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write what a study holds so far: judgements (validate), or a dataset of pairs and ratings (collect)."""

    study: Where = "study.db"
    """SQLite file or PostgreSQL URL."""
    out: Path = Path("study-export")
    """Folder to write to."""
    json: bool = False
    """Print the counts as JSON."""


@dataclass(frozen=True, kw_only=True)
class AgreeConfig:
    """Do people agree, are the answers equally good, do they prefer the labelled one? A verdict in sentences."""

    study: Where = "study.db"
    """A study (file or URL), or judgements.jsonl of an export."""
    margin: float = 0.5
    """Two answers count as equally good if their ratings (1 to 5) differ by less."""
    min_checks: float = 0.5
    """Annotators who pass a smaller share of their attention checks are left out."""
    draws: int = 1000
    """Bootstrap resamples of questions."""
    require: str = ""
    """Exit 1 unless these hold: any of parity, preference, personal, agreement; comma between."""
    out: Path | None = None
    """Also write everything as JSON."""
    seed: int = 0
    """Fixes the resamples."""
    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """A filled example in one command: made-up annotators have judged most of it, the rest is yours."""

    kind: Kind = "validate"
    """Which of the two kinds to show."""
    out: str = ""
    """Where to keep it; a temporary file that goes away if absent."""
    port: int = PORT
    """0 takes a free one."""
    quiet: bool = False
    """Say nothing but the links."""
