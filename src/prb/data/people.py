"""Who is in a dataset, and where to find anybody's posts again without keeping them all in memory."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import SpooledTemporaryFile
from typing import Any

import orjson

from prb.types import Profile


class People:
    """Posts are spooled to a temporary file and read back one person at a time."""

    def __init__(self, keep_posts: bool = False) -> None:
        self.keep_posts = keep_posts
        self.names: list[str] = []
        """People with posts, sorted, so that a draw does not depend on the order of the file."""
        self.cluster_of: Mapping[str, str] = {}
        self._file = SpooledTemporaryFile(max_size=64 << 20)  # noqa: SIM115 - lives as long as the dataset
        self._at: dict[tuple[str, str | None], tuple[int, int]] = {}
        self._split: str | None = None

    def add(self, user: str, split: str | None, profile: list[dict[str, Any]]) -> None:
        if not self.keep_posts or not profile or (user, split) in self._at:
            return
        raw = orjson.dumps(profile)
        start = self._file.seek(0, 2)
        self._file.write(raw)
        self._at[user, split] = start, len(raw)

    def of_split(self, split: str | None, cluster_of: Mapping[str, str]) -> People:
        self.names = sorted(user for user, own in self._at if own == split)
        self._split = split
        self.cluster_of = cluster_of
        return self

    def cluster(self, user: str) -> str:
        return self.cluster_of.get(user, user)

    def posts(self, user: str) -> Profile:
        start, length = self._at[user, self._split]
        self._file.seek(start)
        return Profile(orjson.loads(self._file.read(length)))
