"""What is known of users: their posts and past choices, kept for whoever borrows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import orjson

from prb.data.schema import to_choices
from prb.types import Choice, Item, Post, Profile


class History(NamedTuple):
    """What is known of a user."""

    posts: Sequence[Post]
    choices: tuple[Choice, ...] = ()


class Users:
    """The history of any user, spooled to a temporary file and read back one user at a time."""

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self.names: list[str] = []
        """Users with a history, sorted, so that a draw does not depend on the order of the file."""
        self.cluster_of: Mapping[str, str] = {}
        self._file = SpooledTemporaryFile(max_size=64 << 20)  # noqa: SIM115 - lives as long as the dataset
        self._at: dict[tuple[str, str | None], tuple[int, int]] = {}
        """Offset and size of the history of a user in a split."""
        self._asking: dict[tuple[str | None, str, str], set[str]] = {}
        """By split, `topic` or `category`, and its name: the users who ask about it."""
        self._alike: dict[tuple[str, str], list[str]] = {}
        self._split: str | None = None

    def add(self, user: str, row: Mapping[str, Any], **about: str | None) -> None:
        """A row's user; `about` names its topic and its category."""
        if not self.keep:
            return
        split, profile, choices = row.get("split"), row["profile"], row.get("choices", [])
        for kind, name in about.items():
            if name:
                self._asking.setdefault((split, kind, name), set()).add(user)
        if (user, split) in self._at or not (profile or choices):
            return
        raw = orjson.dumps({"profile": profile, "choices": choices})
        start = self._file.seek(0, 2)
        self._file.write(raw)
        self._at[user, split] = start, len(raw)

    def of_split(self, split: str | None, cluster_of: Mapping[str, str]) -> Users:
        self.names = sorted(user for user, user_split in self._at if user_split == split)
        self._split = split
        self.cluster_of = cluster_of
        names = set(self.names)
        groups = {(kind, name): users & names for (s, kind, name), users in self._asking.items() if s == split}
        self._alike = {group: sorted(users) for group, users in groups.items()}
        return self

    def asking_about(self, item: Item) -> list[list[str]]:
        """Users with a history who ask about the item's topic, and those who ask within its category; sorted."""
        groups = ("topic", getattr(item, "topic", None)), ("category", item.category)
        return [self._alike[kind, name] for kind, name in groups if name and (kind, name) in self._alike]

    def cluster(self, user: str) -> str:
        return self.cluster_of.get(user, user)

    def history(self, user: str) -> History:
        start, length = self._at[user, self._split]
        self._file.seek(start)
        row = orjson.loads(self._file.read(length))
        return History(Profile(row["profile"]), to_choices(row))
