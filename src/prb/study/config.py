"""Settings of `prb study …`, one class per verb; what annotators are asked to rate, and what a judgment is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from prb.config import Count, Name, Place, Positional, Positive, Repeated, Settings, Size, config
from prb.serving.server import Port

Kind = Literal["validate", "collect"]
DEFAULT_PORT = 8600
StudyPath = Positional[str]
CRITERIA = {
    "correctness": "Is what it says right?",
    "relevance": "Does it answer the question?",
    "helpfulness": "Can one act on it?",
}
"""What answers are rated for, and how annotators are asked."""


class Judgment(msgspec.Struct, frozen=True, kw_only=True):
    """What one annotator said of one item, unblinded: A and B are chosen and rejected again."""

    item: str
    user: str
    cluster: str
    group: str
    """The item, or the first of two mirror twins."""
    mirror: str | None
    check: bool
    rubric: bool = True
    annotator: str
    first: str
    """Which answer was shown as A."""
    ratings: dict[str, dict[str, int]]
    """By answer and criterion."""
    before: str | None
    after: str | None
    """The preference before and after the rubric was shown."""
    difference: str | None
    skipped: str | None
    revised: bool
    seconds: list[float]
    at: float
    more: dict[str, str] = {}
    """Replies to all other questions."""

    def row(self) -> dict[str, Any]:
        return {**{name: value for name, value in msgspec.structs.asdict(self).items() if name != "more"}, **self.more}


@config
class NewConfig(Settings):
    """Create a study: items, balanced assignments, invitation links. Links and password are shown once, here."""

    presentation: ClassVar[frozenset[str]] = frozenset({"out", "url", "json"})

    dataset: Name = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    kind: Kind = "validate"
    """validate: annotators check pairs. collect: participants give posts, questions and preferences of their own."""
    annotators: Count = 5
    """Number of invitation links, or of places behind the public link."""
    overlap: Count = 3
    """validate: annotators per item."""
    checks: Size = 2
    """validate: attention checks per annotator; in each, one of the two answers belongs to another question."""
    limit: Count | None = None
    """At most N rows, drawn at random; mirror twins stay together."""
    public: bool = False
    """One link for everybody instead of one per annotator, as recruiting platforms use: each new PROLIFIC_PID (or id)
    in it takes the next free place."""
    completion: str = ""
    """Completion code, or https:// address, that is shown at the end."""
    contact: str = ""
    """Whom to write to with questions; shown at the foot of every page."""
    consent: Place | None = None
    """Text file that annotators must agree to first. Default for collect: a short text that comes with prb."""
    out: Name = "study.db"
    """SQLite file to create, or postgresql://user@host/name."""
    url: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    """Address of the study; invitation links begin with it."""


@config
class ServeConfig(Settings):
    """Serve a study on this machine. For access from elsewhere, put a reverse proxy with TLS in front of it."""

    study: StudyPath = "study.db"
    """SQLite file or PostgreSQL URL."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = DEFAULT_PORT
    """Port to listen on; 0 picks a free one."""
    url: str = ""
    """Public address behind a proxy, such as https://study.example.org; with https, cookies are Secure."""
    proxy: Repeated[str] = ()
    """Address of a reverse proxy whose X-Forwarded-For is trusted, such as 127.0.0.1. Without it, everybody behind the
    proxy shares one limit of sign-ins."""
    new_password: bool = False
    """Replace the administrator's password and print the new one."""


@config
class ExportConfig(Settings):
    """Write what a study holds so far: judgments (validate), or a dataset of pairs and ratings (collect)."""

    study: StudyPath = "study.db"
    """SQLite file or PostgreSQL URL."""
    out: Place = Path("study-export")
    """Folder to write to."""


@config
class AgreeConfig(Settings):
    """Do annotators agree, are both answers equally good, is the labeled one preferred? A verdict in sentences."""

    study: StudyPath = "study.db"
    """A study (file or URL), or the judgements.jsonl of an export."""
    margin: Positive = 0.5
    """Two answers count as equally good if their ratings (1 to 5) differ by less than this."""
    require: str = ""
    """Exit with 1 unless these hold; any of parity, preference, personal, agreement, separated by commas."""
    out: Place | None = None
    """Also write the result to this JSON file."""


@config
class DemoConfig(Settings):
    """A filled example in one command: simulated annotators have judged most of it, the rest is yours."""

    out: str = ""
    """Where to keep it. Default: a temporary file that is deleted at the end."""
    port: Port = DEFAULT_PORT
    """Port to listen on; 0 picks a free one."""
