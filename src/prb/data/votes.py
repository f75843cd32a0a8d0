"""Real users' votes, on lists of answers and on single items, as rows with a history made of their other votes.

*On answers* (`VoteSource`): many people, the same prompts and answers. The source is read twice. The first pass keeps a
few numbers per vote and spools the past choices of all users to a temporary file; the second streams one row per vote,
or under `mirror` one row per vote and couple. Two users who preferred different answers of the same list are a couple
of real people: the two answers they preferred are their mirror pair, on which a user-blind model has exactly 50 %.

*On items* (`PollSource`): many people, short statements on one topic, each agreed with, disagreed with or passed. A
poll is a table of users × items. A pair is formed across two items of the same poll: chosen is the one that the user
agreed with, rejected the one that they disagreed with. Two users who voted oppositely on both items are twins. Items
and users that have the fewest rows so far come first, so none dominates. The history of a row is the user's other
votes, as posts and as past choices; never one on an item of the pair.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import combinations, islice, product
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from prb.config import Count
from prb.data.schema import converted, pair
from prb.data.source import RawRow, Row, Source, Spool
from prb.errors import BadInput
from prb.hashing import draw
from prb.stats.estimate import Ints
from prb.summary import Retest
from prb.text.words import normalized
from prb.types import Query

Size = Annotated[int, Field(ge=0)]


# votes on lists of answers


class Vote(NamedTuple):
    """One user's ranking of the answers to one prompt."""

    at: RawRow
    """Where it is from."""
    id: str
    user: str
    question: str
    answers: Sequence[str]
    ranks: Sequence[int]
    """Of each answer; 0 is the best, equal numbers are ties."""
    context: Sequence[Mapping[str, str]] = ()
    profile: Sequence[Mapping[str, str]] = ()
    """What is known of the user besides their votes."""
    category: str = "votes"
    split: str | None = None
    groups: Mapping[str, str] = {}
    rubric: Sequence[Mapping[str, str]] = ()
    narrative: str = ""
    unit: str = ""
    """A conversation: its votes are never history of one another."""

    def sides(self) -> tuple[list[str], list[str]]:
        """The preferred answers and those below, worst last, each text once; both empty if the user preferred none.

        A text that is also among the preferred ones is no alternative to itself.
        """
        best = dict.fromkeys(answer for answer, rank in zip(self.answers, self.ranks, strict=True) if rank == 0)
        order = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        stripped = {answer.strip() for answer in best}
        below = (self.answers[n] for n in order if self.ranks[n] > 0)
        others = dict.fromkeys(answer for answer in below if answer.strip() not in stripped and answer.strip())
        return (list(best), list(others)) if others else ([], [])


@dataclass(frozen=True)
class Voting:
    """Settings of every source of votes."""

    mirror: bool = False
    """Only mirror pairs: every two users who preferred different answers of the same list."""
    per_pair: Count = 4
    """Couples per prompt and answers, or per two items, at most; users who are in the fewest couples come first."""
    history: Size = 16
    """Past choices per row: the user's last other votes in the order of the file, never on the same prompt."""
    seed: int = 0


@dataclass(frozen=True)
class VoteSource:
    """The votes that a source's rows are converted to, as rows with a history."""

    inner: Source
    convert: Callable[[Row, RawRow], Iterable[Vote]]
    settings: Voting = Voting()
    name: str = ""

    def rows(self) -> Iterator[RawRow]:
        number, index = 0, self.index
        for vote in converted(self.inner, self.convert):
            if isinstance(vote, RawRow):
                yield vote
                continue
            if self.settings.mirror:
                text = {_hash(answer): answer for answer in vote.answers}
                for partner in self._partners.get(number, ()):
                    other = index.ids[partner]
                    answers = {"chosen": text[index.tops[number]], "rejected": text[index.tops[partner]]}
                    yield self._row(vote, id=f"{vote.id}~{other}", mirror=f"{other}~{vote.id}", **answers)
            else:
                best, others = vote.sides()
                if others:
                    yield self._row(vote, id=vote.id, chosen=one_or_all(best), rejected=one_or_all(others))
            number += 1

    def _row(self, vote: Vote, **more: Any) -> RawRow:
        return pair(
            vote.at,
            user=vote.user,
            question=vote.question,
            context=list(vote.context),
            profile=list(vote.profile),
            choices=self.index.choices(vote, self.settings.history),
            rubric_aspects=list(vote.rubric),
            narrative=vote.narrative,
            category=vote.category,
            split=vote.split,
            groups=dict(vote.groups),
            **more,
        )

    def retest(self) -> Retest | None:
        """How often users who voted twice on the same preferred the same; a tie agrees by half with a preference.
        `None` where nobody did."""
        index = self.index
        agreements = [
            1.0 if index.tops[a] == index.tops[b] else 0.5 if 0 in (index.tops[a], index.tops[b]) else 0.0
            for numbers in index.groups.values()
            for again in index.by_user(numbers).values()
            for a, b in combinations(again, 2)
        ]
        return Retest(agreement=sum(agreements) / len(agreements), n=len(agreements)) if agreements else None

    @cached_property
    def index(self) -> VoteIndex:
        votes = (vote for vote in converted(self.inner, self.convert) if isinstance(vote, Vote))
        return VoteIndex(votes, keep_choices=self.settings.history > 0, seed=self.settings.seed)

    @cached_property
    def _partners(self) -> dict[int, list[int]]:
        partners: dict[int, list[int]] = defaultdict(list)
        for a, b in self.index.couples(self.settings.per_pair):
            partners[a].append(b)
            partners[b].append(a)
        return partners


class VoteIndex:
    """What is kept of every vote: id, user, what they preferred, and who else voted on the same.

    Past choices of all users are spooled to a temporary file. Test rows are in nobody's history.
    """

    def __init__(self, votes: Iterable[Vote], *, keep_choices: bool, seed: int) -> None:
        self.ids: list[str] = []
        self.users: list[str] = []
        self.tops = array("q")
        """Hash of the preferred answer; 0 where a user preferred none, or several."""
        self.groups: dict[int, list[int]] = defaultdict(list)
        """Votes on the same prompt with the same answers, by a hash of both."""
        self._seed = seed
        self._choices = Spool()
        self._choices_of: dict[str, array[int]] = {}
        """Numbers of a user's choices."""
        self._prompt, self._unit = array("q"), array("q")
        names: dict[str, str] = {}
        for number, vote in enumerate(votes):
            self.ids.append(vote.id)
            self.users.append(names.setdefault(vote.user, vote.user))
            best, others = vote.sides()
            self.tops.append(_hash(best[0]) if len(best) == 1 else 0)
            answers = sorted(_hash(answer) for answer in vote.answers)
            self.groups[_hash(vote.question, vote.context, answers, vote.split)].append(number)
            if not keep_choices or not others or vote.split == "test":
                continue
            lowest = {a for a, rank in zip(vote.answers, vote.ranks, strict=True) if rank == max(vote.ranks)}
            worst = sorted(lowest & set(others)) or others
            rejected = worst[draw(seed, vote.id, "rejected") % len(worst)]
            choice = {"question": vote.question, "chosen": best[0], "rejected": rejected}
            self._choices_of.setdefault(vote.user, array("q")).append(self._choices.add(choice))
            self._prompt.append(_hash(normalized(vote.question)))
            self._unit.append(_hash(vote.unit) if vote.unit else 0)

    def choices(self, vote: Vote, most: int) -> list[Row]:
        """The last `most` of the user's choices, on other prompts and in other conversations; newest last."""
        prompt, unit = _hash(normalized(vote.question)), _hash(vote.unit) if vote.unit else None
        newest_first = reversed(self._choices_of.get(vote.user, ()))
        others = (n for n in newest_first if self._prompt[n] != prompt and self._unit[n] != unit)
        return [self._choices[n] for n in reversed(list(islice(others, most)))]

    def by_user(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        by_user: dict[str, list[int]] = defaultdict(list)
        for n in numbers:
            by_user[self.users[n]].append(n)
        return by_user

    def couples(self, per_pair: int) -> Iterator[tuple[int, int]]:
        """Votes of two users with different preferences. Whoever is in the fewest couples comes first."""
        used: Counter[str] = Counter()
        for key in sorted(self.groups, key=lambda key: draw(self._seed, key)):
            by_user = self.by_user(self.groups[key])
            # users who contradict themselves are in no couple
            voters = [v[0] for v in by_user.values() if len({self.tops[n] for n in v}) == 1 and self.tops[v[0]]]
            if len({self.tops[n] for n in voters}) < 2:
                continue
            luck = {n: draw(self._seed, key, self.users[n]) for n in voters}
            taken: set[tuple[int, int]] = set()
            for _ in range(per_pair):
                order = sorted(voters, key=lambda n: (used[self.users[n]], luck[n]))
                pairs = ((a, b) for a in order for b in order if self.tops[a] != self.tops[b])
                couple = next(((min(p), max(p)) for p in pairs if (min(p), max(p)) not in taken), None)
                if couple is None:
                    break
                taken.add(couple)
                used.update(self.users[n] for n in couple)
                yield couple


def _hash(*parts: Any) -> int:
    """A signed 64-bit hash that is never 0, the same in every process."""
    return draw(*parts) - (1 << 63) or 1


def ranks_by(scores: Sequence[float]) -> list[int]:
    """0 for the highest score; equal scores are ties."""
    levels = sorted(set(scores), reverse=True)
    return [levels.index(score) for score in scores]


def one_or_all(answers: list[str]) -> str | list[str]:
    return answers[0] if len(answers) == 1 else answers


# votes on single items

KINDS = {1: ("agreed", "Agreed: "), -1: ("disagreed", "Disagreed: ")}
"""Category and first words of a post about a vote."""
ASKED = "Which of these two statements do you agree with?"
"""The question of past choices. It is not the poll's own: choices about the question at hand are never shown."""
SPLIT_SHARES = {"train": 0.6, "dev": 0.2, "test": 0.2}
MOST_CELLS = 200_000_000
Signs = NDArray[np.int8]


def quoted_votes(answers: Sequence[str]) -> set[str]:
    """Posts that tell how a user voted on one of these items."""
    return {word + answer for answer in answers for _, word in KINDS.values()}


def votes_of(query: Query) -> dict[str, float]:
    """What a query shows of the user's votes by text: 1 agreed, −1 disagreed; contradicting ones are left out."""
    cast = [
        (post.text.removeprefix(prefix), float(sign))
        for sign, (_, prefix) in KINDS.items()
        for post in query.posts
        if post.text.startswith(prefix)
    ]
    cast += [vote for choice in query.choices for vote in ((choice.chosen, 1.0), (choice.rejected, -1.0))]
    votes: dict[str, float] = {}
    for text, sign in cast:
        votes[text] = sign if votes.get(text, sign) == sign else 0.0
    return {text: sign for text, sign in votes.items() if sign}


def user_split(user: str) -> str:
    """Train, dev or test, fixed by the user's name alone."""
    at = draw("split", user) / 2**64
    return "train" if at < SPLIT_SHARES["train"] else "dev" if at < 1 - SPLIT_SHARES["test"] else "test"


@dataclass(frozen=True)
class PollVoting(Voting):
    """Settings of every source of votes on items."""

    history: Size = 100
    """Other votes of the user per row, at most."""
    per_user: Count = 8
    """Couples per user, at most; rows without mirror."""
    least: Annotated[int, Field(ge=2)] = 7
    """Users who agreed or disagreed with fewer items are left out, as Polis does."""


class Ballot(NamedTuple):
    """One user's vote on one item, as a table has it."""

    category: str
    question: str
    user: str
    item: str
    value: float
    split: str | None = None
    profile: Sequence[Mapping[str, str]] = ()
    groups: Mapping[str, str] = {}


@dataclass(frozen=True)
class Poll:
    """The votes of many users on the items of one topic."""

    name: str
    """Category of its rows."""
    question: str
    items: Sequence[str]
    """Texts, each once."""
    users: Mapping[str, Ballot]
    """Their last ballots, which say what else is known of them."""
    values: NDArray[np.float32]
    """Users × items: the vote or rating as given, NaN where there is none."""
    prefix: str
    """Where one table has several polls: what begins the ids of rows."""
    middle: float
    """Above is agreed, below is disagreed."""
    place: str

    @cached_property
    def names(self) -> list[str]:
        return list(self.users)

    @cached_property
    def signs(self) -> Signs:
        """1 agreed, −1 disagreed, 0 neither."""
        return (self.values > self.middle).astype(np.int8) - (self.values < self.middle).astype(np.int8)


def collect(ballots: Iterable[Ballot], *, middle: float = 0.0, place: str = "") -> Iterator[Poll]:
    """A poll per question. Of several votes of a user on one item the last counts."""
    by_topic: dict[tuple[str, str], list[Ballot]] = {}
    for ballot in ballots:
        by_topic.setdefault((ballot.category, ballot.question), []).append(ballot)
    for number, ((category, question), cast) in enumerate(by_topic.items(), 1):
        users = {ballot.user: ballot for ballot in cast}
        row_of = {user: n for n, user in enumerate(users)}
        items = {item: n for n, item in enumerate(dict.fromkeys(ballot.item for ballot in cast))}
        if len(users) * len(items) > MOST_CELLS:
            size = f"{len(users):,} users × {len(items):,} items"
            raise BadInput(f"{category}: {size} are more than {MOST_CELLS:,} votes")
        values = np.full((len(users), len(items)), np.nan, dtype=np.float32)
        for ballot in cast:
            values[row_of[ballot.user], items[ballot.item]] = ballot.value
        prefix = f"{number}-" if len(by_topic) > 1 else ""
        yield Poll(category, question, list(items), users, values, prefix, middle, place)


class Past(NamedTuple):
    """A vote of a user for or against an item of some poll."""

    order: float
    """A drawn number: histories are in random order."""
    poll: int
    item: int
    sign: int


@dataclass(frozen=True)
class PollSource:
    """The votes of polls as rows with a history."""

    read: Callable[[], Iterable[Poll | RawRow]]
    settings: PollVoting
    name: str = ""

    @cached_property
    def _read(self) -> list[Poll | RawRow]:
        return list(self.read())

    @cached_property
    def polls(self) -> list[Poll]:
        return [poll for poll in self._read if isinstance(poll, Poll)]

    def rows(self) -> Iterator[RawRow]:
        yield from (row for row in self._read if isinstance(row, RawRow))
        polls, settings = self.polls, self.settings
        history: dict[str, list[Past]] = {}  # all votes of each user, in all polls
        for number, poll in enumerate(polls):
            users, items = np.nonzero(poll.signs)
            order = np.random.default_rng(draw(settings.seed, poll.name, poll.question)).random(len(users))
            votes = (users, order, items, poll.signs[users, items])
            for user, at, item, sign in zip(*(column.tolist() for column in votes), strict=True):
                history.setdefault(poll.names[user], []).append(Past(at, number, item, sign))
        for past in history.values():
            past.sort()
        for number, poll in enumerate(polls):
            signs = poll.signs.copy()
            signs[[len(history.get(user, ())) < settings.least for user in poll.names]] = 0
            splits = np.array([ballot.split or "" for ballot in poll.users.values()], dtype=object)
            for split in sorted(set(splits)):
                members = np.flatnonzero(splits == split)
                rng = np.random.default_rng(draw(settings.seed, poll.name, poll.question, split, "pairs"))
                for user, i, j, names in self._drawn(poll, signs[members], members.tolist(), rng):
                    past = history[poll.names[user]]
                    others = [vote for vote in past if vote.poll != number or vote.item not in (i, j)]
                    yield self._row(poll, user, i, j, others[max(0, len(others) - settings.history) :], names)

    def _drawn(
        self, poll: Poll, signs: Signs, members: Sequence[int], rng: np.random.Generator
    ) -> Iterator[tuple[int, int, int, dict[str, str]]]:
        """User, the chosen and the rejected item, and the ids of row and twin."""
        settings = self.settings
        if settings.mirror:
            for i, j, a, b in draw_twins(signs, settings.per_pair, settings.per_user, rng):
                one, other = poll.names[members[a]], poll.names[members[b]]
                first, second = f"{poll.prefix}{one}~{other}-{i}-{j}", f"{poll.prefix}{other}~{one}-{j}-{i}"
                yield members[a], i, j, {"id": first, "mirror": second}
                yield members[b], j, i, {"id": second, "mirror": first}
        else:
            for u, i, j in draw_pairs(signs, settings.per_pair, settings.per_user, rng):
                yield members[u], i, j, {"id": f"{poll.prefix}{poll.names[members[u]]}-{i}-{j}"}

    def _row(
        self, poll: Poll, user: int, chosen: int, rejected: int, votes: Sequence[Past], names: dict[str, str]
    ) -> RawRow:
        ballot, posts = poll.users[poll.names[user]], []
        sides: dict[int, list[str]] = {1: [], -1: []}
        for past in votes:
            (kind, prefix), item = KINDS[past.sign], self.polls[past.poll].items[past.item]
            posts.append({"id": f"{past.poll + 1}-{past.item}", "category": kind, "text": prefix + item})
            sides[past.sign].append(item)
        choices = [{"question": ASKED, "chosen": a, "rejected": b} for a, b in zip(sides[1], sides[-1], strict=False)]
        return pair(
            RawRow(poll.place, user + 2, b""),
            **names,
            user=ballot.user,
            question=poll.question,
            profile=[*ballot.profile, *posts],
            category=poll.name,
            chosen=poll.items[chosen],
            rejected=poll.items[rejected],
            split=ballot.split,
            groups=dict(ballot.groups),
            choices=choices,
        )


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
