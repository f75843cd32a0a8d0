"""Everything `prb serve` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve a reward model over HTTP: POST /v1/score, OpenRLHF's /get_reward, GET /healthz and /metrics."""

    model: str
    """Model spec such as `embedding` or `classifier?path=…`: any that scores answers, none that only compares them."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines reach needs a token."""
    port: int = 8300
    """0 picks a free one."""
    token_file: Path | None = None
    """File with the bearer token that clients must send; else the environment variable PRB_SERVE_TOKEN."""
    window_ms: float = 10.0
    """How long a batch waits for company; a slow model up to a tenth of the batch's own time while more keep coming."""
    batch: int = 256
    """At most this many answers a call of the model."""
    batch_tokens: int = 65_536
    """At most this many tokens a call, estimated as characters / 4; what answers share counts once."""
    queue: int = 1024
    """Answers that may wait; more are told to come back later (429)."""
    max_answers: int = 256
    """Answers a request."""
    max_chars: int = 400_000
    """Characters of a whole query, and of each answer."""
    max_body: int = 8_000_000
    """Bytes of a request."""
    mask_pii: Literal["auto", "on", "off"] = "auto"
    """Mask e-mails, phone numbers, IBANs and handles in queries; auto: only for models that send texts elsewhere."""
    docs: bool = False
    """Show the API's description at /docs and /openapi.json."""
    json: bool = False
    """Print one line of JSON with the URL when ready."""
    quiet: bool = False
    """Say nothing on stderr but errors."""
