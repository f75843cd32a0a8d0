"""Votes on single items: many people, short statements on one topic, each agreed with, disagreed with or passed.

A poll is a table of users × items. A pair is formed across two items of the same poll: chosen is the one that the user
agreed with, rejected the one that they disagreed with. Two users who voted oppositely on both items are twins. Items
and users that have the fewest rows so far come first, so none dominates. The history of a row is the user's other
votes, as posts and as past choices; never one on an item of the pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from heapq import heapify, heappop, heappush
from itertools import combinations, product
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from prb.data.source import RawRow, Row, dict_row
from prb.data.votes import Vote, Voting, vote_row
from prb.errors import BadInput, BadSpec
from prb.hashing import draw
from prb.stats.estimate import Ints

KINDS = {1: ("agreed", "Agreed: "), -1: ("disagreed", "Disagreed: ")}
"""Category and first words of a post about a vote."""
ASKED = "Which of these two statements do you agree with?"
"""The question of past choices. It is not the poll's own: choices about the question at hand are never shown."""
SPLIT_SHARES = {"train": 0.6, "dev": 0.2, "test": 0.2}
MOST_CELLS = 200_000_000
Signs = NDArray[np.int8]


@dataclass(frozen=True)
class PollVoting(Voting):
    """Settings of every source of votes on items."""

    history: Annotated[int, Field(ge=0)] = 100
    """Other votes of the user per row, at most."""
    per_user: Annotated[int, Field(ge=1)] = 8
    """Couples per user, at most; rows without mirror."""
    least: Annotated[int, Field(ge=2)] = 7
    """Users who agreed or disagreed with fewer items are left out, as Polis does."""
    rows: Literal["pairs", "ratings"] = "pairs"
    """`ratings`: a row per vote for `--task ratings`, on a scale from 0 to 1; the history is other ratings."""
    order: Literal["any", "time"] = "any"
    """`time`: the history is what the user voted before; the earlier half of their votes is history only."""


@dataclass(frozen=True)
class Poll:
    """The votes of many users on the items of one topic."""

    name: str
    """Category of its rows."""
    question: str
    items: Sequence[str]
    """Texts, each once."""
    users: Sequence[str]
    values: NDArray[np.float32]
    """Users × items: the vote or rating as given, NaN where there is none."""
    number: int | None = None
    """Where one table has several polls; part of the ids of rows."""
    middle: float = 0.0
    """Above is agreed, below is disagreed."""
    scale: tuple[float, float] | None = None
    """The lowest and the highest possible value; those given where it is unknown."""
    times: NDArray[np.float64] | None = None
    splits: Sequence[str | None] = ()
    """Of each user; none where there are no splits."""
    profiles: Sequence[Sequence[Mapping[str, str]]] = ()
    groups: Sequence[Mapping[str, str]] = ()
    again: Mapping[tuple[int, int], Sequence[float]] = field(default_factory=dict)
    """By user and item: all votes of those who voted more than once."""
    place: str = ""

    @cached_property
    def ratings(self) -> NDArray[np.float32]:
        """Values from 0 to 1, NaN where there are none."""
        low, high = self.scale or (np.nanmin(self.values), np.nanmax(self.values))
        scaled: NDArray[np.float32] = np.clip((self.values - low) / ((high - low) or 1), 0, 1)
        return scaled

    @cached_property
    def signs(self) -> Signs:
        """1 agreed, −1 disagreed, 0 neither."""
        return (self.values > self.middle).astype(np.int8) - (self.values < self.middle).astype(np.int8)

    def every_vote(self) -> tuple[Ints, Ints, NDArray[np.float64]]:
        """Users, items and values of all votes, repeated ones too."""
        once = ~np.isnan(self.values)
        for cell in self.again:
            once[cell] = False
        users, items = np.nonzero(once)
        repeated = [(*cell, value) for cell, values in self.again.items() for value in values]
        more = np.array(repeated, dtype=np.float64).reshape(-1, 3)
        at = [np.concatenate([codes, more[:, n].astype(np.int64)]) for n, codes in enumerate((users, items))]
        return at[0], at[1], np.concatenate([self.values[users, items].astype(np.float64), more[:, 2]])


class Ballot(NamedTuple):
    """One user's vote on one item, as a table has it."""

    category: str
    question: str
    user: str
    item: str
    value: float
    time: float = np.nan
    split: str | None = None
    profile: Sequence[Mapping[str, str]] = ()
    groups: Mapping[str, str] = {}


def user_split(user: str) -> str:
    """Train, dev or test, fixed by the user's name alone."""
    at = draw("split", user) / 2**64
    return "train" if at < SPLIT_SHARES["train"] else "dev" if at < 1 - SPLIT_SHARES["test"] else "test"


def collect(
    ballots: Iterable[Ballot],
    *,
    middle: float = 0.0,
    scale: tuple[float, float] | None = None,
    place: str = "",
) -> Iterator[Poll]:
    """A poll per question. Of several votes on one item the last counts, unless they contradict each other."""
    by_topic: dict[tuple[str, str], list[Ballot]] = {}
    for ballot in ballots:
        by_topic.setdefault((ballot.category, ballot.question), []).append(ballot)
    for number, ((category, question), cast) in enumerate(by_topic.items(), 1):
        users = {user: n for n, user in enumerate(dict.fromkeys(ballot.user for ballot in cast))}
        items = {item: n for n, item in enumerate(dict.fromkeys(ballot.item for ballot in cast))}
        if len(users) * len(items) > MOST_CELLS:
            raise BadInput(
                f"{category}: {len(users):,} users × {len(items):,} items are more than {MOST_CELLS:,} votes"
            )
        latest: dict[tuple[int, int], Ballot] = {}
        again: dict[tuple[int, int], list[float]] = {}
        for ballot in cast:
            cell = users[ballot.user], items[ballot.item]
            if (before := latest.get(cell)) is not None:
                again.setdefault(cell, [before.value]).append(ballot.value)
                if (before.value > middle, before.value < middle) != (ballot.value > middle, ballot.value < middle):
                    ballot = ballot._replace(value=middle)  # noqa: PLW2901 - a contradiction is no preference
            latest[cell] = ballot
        values = np.full((len(users), len(items)), np.nan, dtype=np.float32)
        times = np.full(values.shape, np.nan)
        at = tuple(np.array(list(latest)).T)
        values[at] = [ballot.value for ballot in latest.values()]
        times[at] = [ballot.time for ballot in latest.values()]
        known = list({ballot.user: ballot for ballot in cast}.values())
        yield Poll(
            name=category,
            question=question,
            number=number if len(by_topic) > 1 else None,
            items=list(items),
            users=list(users),
            values=values,
            middle=middle,
            scale=scale,
            times=None if np.isnan(times).all() else times,
            splits=[ballot.split for ballot in known] if any(ballot.split for ballot in known) else (),
            profiles=[ballot.profile for ballot in known],
            groups=[ballot.groups for ballot in known],
            again=again,
            place=place,
        )


@dataclass(frozen=True)
class PollSource:
    """The votes of polls as rows with a history."""

    name: str
    read: Callable[[], Iterable[Poll | RawRow]]
    settings: PollVoting = field(default_factory=PollVoting)

    @cached_property
    def _read(self) -> list[Poll | RawRow]:
        return list(self.read())

    @property
    def polls(self) -> list[Poll]:
        return [poll for poll in self._read if isinstance(poll, Poll)]

    def agreements(self) -> list[float]:
        signs = [np.sign(np.array(votes) - poll.middle) for poll in self.polls for votes in poll.again.values()]
        return [float(1 - abs(one - other) / 2) for votes in signs for one, other in combinations(votes, 2)]

    def __post_init__(self) -> None:
        if self.settings.mirror and self.settings.rows == "ratings":
            raise BadSpec(f"{self.name}: ratings have no mirror pairs; give rows=pairs or mirror=false")

    def rows(self) -> Iterator[RawRow]:
        if self.settings.order == "time":
            for poll in self.polls:
                if poll.times is None:
                    raise BadInput(f"{self.name}: order=time needs the times of votes, and {poll.name} has none")
        yield from (row for row in self._read if isinstance(row, RawRow))
        history = Histories(self.polls, self.settings)
        for number, poll in enumerate(self.polls):
            yield from PollRows(number, poll, history, self.settings).rows()


class Past(NamedTuple):
    """A vote of a user for or against an item of some poll."""

    when: float
    """Its time, or a drawn number that stands for it."""
    poll: int
    item: int
    sign: int
    rating: float


class Histories:
    """All votes of each user, in all polls, oldest first."""

    def __init__(self, polls: Sequence[Poll], settings: PollVoting) -> None:
        self._settings, self._polls = settings, polls
        self._of: dict[str, list[Past]] = {}
        for number, poll in enumerate(polls):
            users, items = np.nonzero(self._counted(poll))
            rng = np.random.default_rng(draw(settings.seed, poll.name, poll.question))
            when = rng.random(len(users))
            if settings.order == "time" and poll.times is not None:
                when = poll.times[users, items]
            known = (column[users, items].tolist() for column in (poll.signs, poll.ratings))
            for user, at, item, sign, rating in zip(users.tolist(), when.tolist(), items.tolist(), *known, strict=True):
                self._of.setdefault(poll.users[user], []).append(Past(at, number, item, sign, rating))
        for votes in self._of.values():
            votes.sort()

    def _counted(self, poll: Poll) -> Signs:
        """Votes for or against; with rows=ratings all."""
        return poll.signs if self._settings.rows == "pairs" else (~np.isnan(poll.values)).astype(np.int8)

    def usable(self, number: int, poll: Poll) -> Signs:
        """Votes that may become rows: of users with enough of them; by time only those of the later half."""
        signs = self._counted(poll).copy()
        for user, name in enumerate(poll.users):
            votes = self._of.get(name, [])
            if len(votes) < self._settings.least:
                signs[user] = 0
            elif self._settings.order == "time":
                early = [past.item for past in votes[: len(votes) // 2] if past.poll == number]
                signs[user, early] = 0
        return signs

    def other_votes(self, user: str, number: int, pair: tuple[int, ...]) -> tuple[list[Row], list[Row]]:
        """Posts and past choices: what the user voted on besides the two items, with order=time what came before."""
        votes = self._of[user]
        if self._settings.order == "time":
            first = min(past.when for past in votes if past.poll == number and past.item in pair)
            votes = [past for past in votes if past.when < first]
        shown = [past for past in votes if past.poll != number or past.item not in pair]
        shown = shown[max(0, len(shown) - self._settings.history) :]
        sides: dict[int, list[str]] = {1: [], 0: [], -1: []}
        for past in shown:
            sides[past.sign].append(self._polls[past.poll].items[past.item])
        pairs = zip(sides[1], sides[-1], strict=False)
        choices: list[Row] = [{"question": ASKED, "chosen": like, "rejected": dislike} for like, dislike in pairs]
        return [self._post(past.poll, past.item, past.sign, past.rating) for past in shown], choices

    @cache  # noqa: B019 - lives as long as its rows
    def _post(self, poll: int, item: int, sign: int, rating: float) -> Row:
        kind, said = (
            KINDS.get(sign, ("", ""))
            if self._settings.rows == "pairs"
            else ("rated", f"Rated {100 * rating:.0f} of 100: ")
        )
        return {"id": f"{poll + 1}-{item}", "category": kind, "text": said + self._polls[poll].items[item]}


@dataclass(frozen=True)
class PollRows:
    """The rows of one poll."""

    number: int
    poll: Poll
    history: Histories
    settings: PollVoting

    def rows(self) -> Iterator[RawRow]:
        poll, settings = self.poll, self.settings
        prefix = "" if poll.number is None else f"{poll.number}-"
        splits = np.array([split or "" for split in poll.splits] or [""] * len(poll.users), dtype=object)
        usable = self.history.usable(self.number, poll)
        for split in sorted(set(splits)):
            members = np.flatnonzero(splits == split)
            rng = np.random.default_rng(draw(settings.seed, poll.name, poll.question, split, "pairs"))
            if settings.rows == "ratings":
                for u, i in draw_ratings(usable[members], settings.per_user, rng):
                    yield self._rating(int(members[u]), i, split, f"{prefix}{poll.users[members[u]]}-{i}")
            elif settings.mirror:
                for i, j, a, b in draw_twins(usable[members], settings.per_pair, settings.per_user, rng):
                    one, other = int(members[a]), int(members[b])
                    names = [f"{poll.users[u]}~{poll.users[v]}" for u, v in ((one, other), (other, one))]
                    ids = f"{prefix}{names[0]}-{i}-{j}", f"{prefix}{names[1]}-{j}-{i}"
                    yield self._row(one, i, j, split, id=ids[0], mirror=ids[1])
                    yield self._row(other, j, i, split, id=ids[1], mirror=ids[0])
            else:
                for u, i, j in draw_pairs(usable[members], settings.per_pair, settings.per_user, rng):
                    user = int(members[u])
                    yield self._row(user, i, j, split, id=f"{prefix}{poll.users[user]}-{i}-{j}")

    def _row(self, user: int, chosen: int, rejected: int, split: str, **names: str) -> RawRow:
        poll = self.poll
        posts, choices = self.history.other_votes(poll.users[user], self.number, (chosen, rejected))
        vote = Vote(
            at=RawRow(poll.place, user + 2, b""),
            id=names["id"],
            user=poll.users[user],
            question=poll.question,
            answers=(poll.items[chosen], poll.items[rejected]),
            ranks=(0, 1),
            profile=[*(poll.profiles[user] if poll.profiles else ()), *posts],
            category=poll.name,
            split=split or None,
            groups=poll.groups[user] if poll.groups else {},
        )
        return vote_row(vote, choices, chosen=vote.answers[0], rejected=vote.answers[1], **names)

    def _rating(self, user: int, item: int, split: str, row_id: str) -> RawRow:
        poll, name = self.poll, self.poll.users[user]
        posts, choices = self.history.other_votes(name, self.number, (item,))
        row: Row = {
            "id": row_id,
            "user": name,
            "question": poll.question,
            "answer": poll.items[item],
            "rating": float(poll.ratings[user, item]),
            "profile": [*(poll.profiles[user] if poll.profiles else ()), *posts],
            "category": poll.name,
        }
        optional = {"split": split, "groups": dict(poll.groups[user]) if poll.groups else {}, "choices": choices}
        return dict_row(poll.place, user + 2, row | {key: value for key, value in optional.items() if value})


def draw_ratings(rated: Signs, per_user: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """A user, and an item that they rated."""
    item_rows = np.zeros(rated.shape[1], dtype=int)
    for user in rng.permutation(len(rated)).tolist():
        items = _least_used(np.flatnonzero(rated[user]), item_rows, rng)[:per_user]
        item_rows[items] += 1
        yield from ((user, int(item)) for item in items)


def draw_twins(
    signs: Signs, per_pair: int, per_user: int, rng: np.random.Generator
) -> Iterator[tuple[int, int, int, int]]:
    """Items i and j, user a who agrees with i and disagrees with j, and user b who does the reverse."""
    agreed, disagreed = signs == 1, signs == -1
    user_rows, item_rows = np.zeros(len(signs), dtype=int), np.zeros(signs.shape[1], dtype=int)
    done = np.eye(signs.shape[1], dtype=bool)
    queue = [(0, luck, i) for i, luck in enumerate(rng.permutation(signs.shape[1]).tolist())]
    heapify(queue)
    while queue:
        _, luck, i = heappop(queue)
        free = user_rows < per_user
        yes, no = free & agreed[:, i], free & disagreed[:, i]
        couples = np.minimum(np.count_nonzero(disagreed[yes], axis=0), np.count_nonzero(agreed[no], axis=0))
        others = np.flatnonzero((couples > 0) & ~done[i])
        if not len(others):
            continue  # nobody is left for this item
        j = int(_least_used(others, item_rows, rng)[0])
        most = min(per_pair, int(couples[j]))
        opposite = yes & disagreed[:, j], no & agreed[:, j]
        sides = [_least_used(np.flatnonzero(side), user_rows, rng)[:most] for side in opposite]
        done[i, j] = done[j, i] = True
        item_rows[[i, j]] += most
        for users in sides:
            user_rows[users] += 1
        yield from ((i, j, int(a), int(b)) for a, b in zip(*sides, strict=True))
        heappush(queue, (int(item_rows[i]), luck, i))


def draw_pairs(signs: Signs, per_pair: int, per_user: int, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """A user, an item that they agree with, and one that they disagree with."""
    item_rows, pair_rows = np.zeros(signs.shape[1], dtype=int), Counter[tuple[int, int]]()
    for user in rng.permutation(len(signs)).tolist():
        liked, disliked = (
            _least_used(np.flatnonzero(signs[user] == sign), item_rows, rng)[:per_user].tolist() for sign in (1, -1)
        )
        places = product(range(len(liked)), range(len(disliked)))
        in_turn = sorted(places, key=lambda at: ((at[1] - at[0]) % per_user, at))  # each item once before any twice
        pairs = [(liked[x], disliked[y]) for x, y in in_turn]
        for i, j in [p for p in pairs if pair_rows[min(p), max(p)] < per_pair][:per_user]:
            pair_rows[min(i, j), max(i, j)] += 1
            item_rows[[i, j]] += 1
            yield user, i, j


def _least_used(members: Ints, rows: Ints, rng: np.random.Generator) -> Ints:
    """Those with the fewest rows first, in drawn order where they are equal."""
    return members[np.lexsort((rng.permutation(len(members)), rows[members]))]


def quoted_votes(answers: Sequence[str]) -> set[str]:
    """Posts that tell how a user voted on one of these items."""
    return {word + answer for answer in answers for _, word in KINDS.values()}
