"""Content hashes: keys of caches, fingerprints, and draws that depend on nothing but their arguments."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson


def draw(*parts: object, bits: int = 64) -> int:
    """A number below 2**bits fixed by `parts` alone, so that subsets, orders, processes and reruns agree."""
    text = ":".join(map(str, parts))
    whole = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    return whole >> (256 - bits)


def digest(*parts: Any) -> bytes:
    """A cache key from anything JSON can hold."""
    return hashlib.blake2b(orjson.dumps(parts), digest_size=20).digest()


def text_digest(*texts: str) -> str:
    """Sixteen hexadecimal digits for a sequence of texts."""
    joined = "\0".join(texts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(joined, digest_size=8).hexdigest()


def settings_digest(settings: object) -> str:
    """Twelve hexadecimal digits for a fingerprint, from the `repr` of everything an output depends on."""
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]


def short_digest(value: Any) -> str:
    """Eight hexadecimal digits that name a folder; the order of keys does not matter."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
