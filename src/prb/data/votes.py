"""Real users' votes: many people, the same prompts and answers, and a history made of their other votes.

A source of votes is read twice. The first pass keeps a few numbers per vote and spools the past choices of all users to
a temporary file; the second streams one row per vote, or under `mirror` one row per vote and couple. Two users who
preferred different answers of the same list are a couple of real people: the two answers they preferred are their
mirror pair, on which a user-blind model has exactly 50 %.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import orjson
from pydantic import Field

from prb.data.rows import converted
from prb.data.source import RawRow, Row, Source, dict_row
from prb.hashing import draw
from prb.text.words import normalized


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
    per_pair: Annotated[int, Field(ge=1)] = 4
    """Couples per prompt and answers, or per two items, at most; users who are in the fewest couples come first."""
    history: Annotated[int, Field(ge=0)] = 16
    """Past choices per row: the user's last other votes in the order of the file, never on the same prompt."""
    seed: int = 0


class VoteSource:
    """The votes that a source's rows are converted to, as rows with a history."""

    def __init__(
        self, name: str, inner: Source, convert: Callable[[Row, RawRow], Iterable[Vote]], settings: Voting
    ) -> None:
        self.name = name
        self.inner = inner
        self.convert = convert
        self.settings = settings

    def rows(self) -> Iterator[RawRow]:
        number = 0
        for vote in converted(self.inner, self.convert):
            if isinstance(vote, RawRow):
                yield vote
                continue
            if self.settings.mirror:
                tops, text = self.index.tops, {_hash(answer): answer for answer in vote.answers}
                for partner in self._partners.get(number, ()):
                    other = self.index.ids[partner]
                    answers = {"chosen": text[tops[number]], "rejected": text[tops[partner]]}
                    yield self._row(vote, id=f"{vote.id}~{other}", mirror=f"{other}~{vote.id}", **answers)
            else:
                best, others = vote.sides()
                if others:
                    yield self._row(vote, id=vote.id, chosen=one_or_all(best), rejected=one_or_all(others))
            number += 1

    def _row(self, vote: Vote, **more: Any) -> RawRow:
        return vote_row(vote, self.index.past.choices(vote, self.settings.history), **more)

    def agreements(self) -> list[float]:
        index = self.index
        return [
            1.0 if index.tops[a] == index.tops[b] else 0.5 if 0 in (index.tops[a], index.tops[b]) else 0.0
            for numbers in index.groups.values()
            for again in _by_user(numbers, index.users).values()
            for a, b in combinations(again, 2)
        ]

    @cached_property
    def index(self) -> VoteIndex:
        votes = (vote for vote in converted(self.inner, self.convert) if isinstance(vote, Vote))
        return VoteIndex(votes, keep_choices=self.settings.history > 0, seed=self.settings.seed)

    @cached_property
    def _partners(self) -> dict[int, list[int]]:
        partners: dict[int, list[int]] = defaultdict(list)
        for a, b in self.index.couples(self.settings.per_pair, self.settings.seed):
            partners[a].append(b)
            partners[b].append(a)
        return partners


def vote_row(vote: Vote, choices: list[Row], **more: Any) -> RawRow:
    """A vote as a row, with past choices of the user."""
    row: Row = {
        "user": vote.user,
        "question": vote.question,
        "profile": list(vote.profile),
        "rubric_aspects": list(vote.rubric),
        "narrative": vote.narrative,
        "category": vote.category,
        **more,
    }
    optional = {"context": list(vote.context), "split": vote.split, "groups": dict(vote.groups), "choices": choices}
    return dict_row(vote.at.place, vote.at.line, row | {key: value for key, value in optional.items() if value})


@runtime_checkable
class Voted(Protocol):
    """A source of votes."""

    def agreements(self) -> list[float]:
        """For every two votes of one user on the same: 1 if they agree, ½ if one is a tie, 0 if they are opposite."""
        ...


def retest(source: Source) -> dict[str, float] | None:
    """How often users who voted twice on the same preferred the same, and the number of such vote pairs.

    `None` where nobody did.
    """
    agreements = source.agreements() if isinstance(source, Voted) else []
    return {"agreement": sum(agreements) / len(agreements), "n": len(agreements)} if agreements else None


class VoteIndex:
    """What is kept of every vote: id, user, what they preferred, and who else voted on the same."""

    def __init__(self, votes: Iterable[Vote], *, keep_choices: bool, seed: int) -> None:
        self.ids: list[str] = []
        self.users: list[str] = []
        self.tops = array("q")
        """Hash of the preferred answer; 0 where a user preferred none, or several."""
        self.groups: dict[int, list[int]] = defaultdict(list)
        """Votes on the same prompt with the same answers, by a hash of both."""
        self.past = PastChoices(seed)
        names: dict[str, str] = {}
        for number, vote in enumerate(votes):
            self.ids.append(vote.id)
            self.users.append(names.setdefault(vote.user, vote.user))
            best, others = vote.sides()
            self.tops.append(_hash(best[0]) if len(best) == 1 else 0)
            answers = sorted(_hash(answer) for answer in vote.answers)
            self.groups[_hash(vote.question, vote.context, answers, vote.split)].append(number)
            if keep_choices and others and vote.split != "test":
                self.past.add(vote, best[0], others)

    def couples(self, per_pair: int, seed: int) -> Iterator[tuple[int, int]]:
        """Votes of two users with different preferences. Whoever is in the fewest couples comes first."""
        used: Counter[str] = Counter()
        for key in sorted(self.groups, key=lambda key: draw(seed, key)):
            by_user = _by_user(self.groups[key], self.users)
            # users who contradict themselves are in no couple
            voters = [v[0] for v in by_user.values() if len({self.tops[n] for n in v}) == 1 and self.tops[v[0]]]
            if len({self.tops[n] for n in voters}) < 2:
                continue
            luck = {n: draw(seed, key, self.users[n]) for n in voters}
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


class PastChoices:
    """Past choices of all users, spooled to a temporary file. Test rows are in nobody's history."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._file = SpooledTemporaryFile(max_size=64 << 20)  # noqa: SIM115 - lives as long as the source
        self._of_user: dict[str, array[int]] = {}
        self._start, self._prompt, self._unit = array("q", [0]), array("q"), array("q")

    def add(self, vote: Vote, chosen: str, others: Sequence[str]) -> None:
        lowest = [a for a, rank in zip(vote.answers, vote.ranks, strict=True) if rank == max(vote.ranks)]
        worst = sorted(set(lowest) & set(others)) or others
        rejected = worst[draw(self._seed, vote.id, "rejected") % len(worst)]
        raw = orjson.dumps({"question": vote.question, "chosen": chosen, "rejected": rejected})
        self._of_user.setdefault(vote.user, array("q")).append(len(self._prompt))
        self._file.write(raw)
        self._start.append(self._start[-1] + len(raw))
        self._prompt.append(_hash(normalized(vote.question)))
        self._unit.append(_hash(vote.unit) if vote.unit else 0)

    def choices(self, vote: Vote, most: int) -> list[Row]:
        """The last `most` of the user's choices, on other prompts and in other conversations; newest last."""
        prompt, unit = _hash(normalized(vote.question)), _hash(vote.unit) if vote.unit else None
        newest_first = reversed(self._of_user.get(vote.user, ()))
        others = (n for n in newest_first if self._prompt[n] != prompt and self._unit[n] != unit)
        choices: list[Row] = []
        for n in reversed(list(islice(others, most))):
            self._file.seek(self._start[n])
            choices.append(orjson.loads(self._file.read(self._start[n + 1] - self._start[n])))
        return choices


def _hash(*parts: Any) -> int:
    """A signed 64-bit hash that is never 0, the same in every process."""
    return draw(*parts) - (1 << 63) or 1


def _by_user(numbers: Iterable[int], users: Sequence[str]) -> dict[str, list[int]]:
    by_user: dict[str, list[int]] = defaultdict(list)
    for n in numbers:
        by_user[users[n]].append(n)
    return by_user


def ranks_by(scores: Sequence[float]) -> list[int]:
    """0 for the highest score; equal scores are ties."""
    levels = sorted(set(scores), reverse=True)
    return [levels.index(score) for score in scores]


def one_or_all(answers: list[str]) -> str | list[str]:
    return answers[0] if len(answers) == 1 else answers
