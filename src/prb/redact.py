"""Secrets stay out of terminals, files and pages: the one place that removes them from a text."""

from __future__ import annotations

import re

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
