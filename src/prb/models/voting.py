"""Several opinions on the same answers: samples of one judge, or a panel of different models.

Whoever failed has no vote, but what it cost is booked; where fewer than half have one, there is no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from prb.errors import BadSpec
from prb.models import MODELS, is_remote
from prb.types import Ask, Comparer, Duel, Failure, Recorded, Reward, Scorer, Verdict, Winner

Opinion = TypeVar("Opinion", Verdict, Reward)
BETWEEN = "\n\n--- another vote ---\n\n"


def vote(opinions: Sequence[Verdict | Failure]) -> Verdict | Failure:
    """The verdict of most; as many for the one as for the other answer is a tie."""
    verdicts = [opinion for opinion in opinions if isinstance(opinion, Verdict)]
    if len(opinions) == 1 or 2 * len(verdicts) < len(opinions):
        return _too_few(opinions)
    ahead = sum({"first": 1, "second": -1, "tie": 0}[verdict.choice] for verdict in verdicts)
    choice: Winner = "tie" if not ahead else "first" if ahead > 0 else "second"
    return Verdict(
        choice=choice,
        tokens=sum(map(_tokens, opinions)),
        cut=max(verdict.cut for verdict in verdicts),
        cost=sum(opinion.cost for opinion in opinions),
        text=BETWEEN.join(verdict.text for verdict in verdicts),
    )


def mean_reward(opinions: Sequence[Reward | Failure]) -> Reward | Failure:
    rewards = [opinion for opinion in opinions if isinstance(opinion, Reward)]
    if len(opinions) == 1 or 2 * len(rewards) < len(opinions):
        return _too_few(opinions)
    return Reward(
        fmean(rewards),
        tokens=sum(map(_tokens, opinions)),
        cut=max(reward.cut for reward in rewards),
        cost=sum(opinion.cost for opinion in opinions),
        text=BETWEEN.join(reward.text for reward in rewards),
    )


def _tokens(opinion: Verdict | Reward | Failure) -> int:
    return opinion.prompt_tokens + opinion.completion_tokens if isinstance(opinion, Failure) else opinion.tokens


def _too_few(opinions: Sequence[Opinion | Failure]) -> Opinion | Failure:
    """The only opinion as it is; of several, the first failure with the cost of all."""
    if len(opinions) == 1:
        return opinions[0]
    failures = [opinion for opinion in opinions if isinstance(opinion, Failure)]
    given = len(opinions) - len(failures)
    return replace(
        failures[0],
        detail=f"{given} of {len(opinions)} votes; {failures[0].detail}",
        prompt_tokens=sum(failure.prompt_tokens for failure in failures)
        + sum(opinion.tokens for opinion in opinions if not isinstance(opinion, Failure)),
        completion_tokens=sum(failure.completion_tokens for failure in failures),
        cost=sum(opinion.cost for opinion in opinions),
    )


class Panel:
    """Every member has one vote: judges by their verdict, scorers by which answer they score higher."""

    def __init__(self, members: Sequence[Scorer | Comparer]) -> None:
        self._members = members
        self.fingerprint = "panel-" + "+".join(member.fingerprint for member in members)
        self.remote = any(map(is_remote, members))

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        votes = [_verdicts(member, duels) for member in self._members]
        return [vote(opinions) for opinions in zip(*votes, strict=True)]


@MODELS.register("panel")
def panel(models: str) -> Comparer:
    """Majority vote of several models: models=SPEC|SPEC|… (their ? and & written %3F and %26)."""
    made = [MODELS.make(spec) for spec in models.split("|")]
    members = [member for member in made if not isinstance(member, Recorded)]
    if len(members) < 2 or len(members) < len(made):
        raise BadSpec("a panel needs two or more models that can judge new answers: models=SPEC|SPEC")
    return Panel(members)


def _verdicts(member: Scorer | Comparer, duels: Sequence[Duel]) -> list[Verdict | Failure]:
    if not isinstance(member, Scorer):
        return list(member.prefer(duels))
    scores = member.score([Ask(duel.query, answer) for duel in duels for answer in (duel.first, duel.second)])
    return [_by_scores(*scores[at : at + 2]) for at in range(0, len(scores), 2)]


def _by_scores(first: float | Failure, second: float | Failure) -> Verdict | Failure:
    if isinstance(first, Failure) or isinstance(second, Failure):
        return first if isinstance(first, Failure) else second  # type: ignore[return-value]
    both = [score for score in (first, second) if isinstance(score, Reward)]
    return Verdict(
        choice="tie" if first == second else "first" if first > second else "second",
        tokens=sum(score.tokens for score in both),
        cut=max((score.cut for score in both), default=0),
        cost=sum(score.cost for score in both),
        text=f"{float(first):.4g} : {float(second):.4g}",
    )
