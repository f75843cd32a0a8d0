"""Can the set be solved without the person? A user-blind judge and a user-blind learner try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prb.building.choose import Desk
from prb.building.job import Made
from prb.models.judge import PairwiseJudge
from prb.models.judge_parse import STYLES
from prb.stats.blind import blind_margins, credits_of
from prb.stats.estimate import components
from prb.text.encoders import ENCODERS
from prb.text.tokens import sentences, words
from prb.types import Duel, Failure, Query, Verdict


@dataclass(frozen=True)
class Finding:
    """What one user-blind model made of the set; twins of a couple count half each, by construction."""

    name: str
    credits: tuple[float | None, ...]
    """One a pair, `None` where it could not be asked; a couple's is the credit of its first person's row."""
    margins: tuple[float, ...]
    """How surely it was right; sorts the worst pairs first."""

    def accuracy(self, made: Sequence[Made]) -> float | None:
        rows = self.row_credits(made)
        return sum(rows) / len(rows) if rows else None

    def row_credits(self, made: Sequence[Made]) -> list[float]:
        rows: list[float] = []
        for pair, credit in zip(made, self.credits, strict=True):
            if credit is not None:
                rows += [credit] if pair.job.partner is None else [credit, 1 - credit]
        return rows

    def worst(self, made: Sequence[Made], limit: float) -> list[str]:
        """The ids that must go for the rest to be within the limit: those told most surely first."""
        rows = self.row_credits(made)
        total, count = sum(rows), len(rows)
        lone = [n for n, pair in enumerate(made) if pair.job.partner is None]
        told = [(credit, n) for n in lone if (credit := self.credits[n]) is not None and credit > limit]
        worst = []
        for credit, n in sorted(told, key=lambda own: -self.margins[own[1]]):
            if total <= limit * count + 1e-9:
                break
            total, count = total - credit, count - 1
            worst.append(made[n].job.id)
        return worst


def find_out(desk: Desk, made: Sequence[Made]) -> list[Finding]:
    findings = []
    if "blind-judge" not in desk.config.skip_gate:
        findings.append(_judge(desk, made))
    if "blind-learner" not in desk.config.skip_gate and (learner := _learner(made)):
        findings.append(learner)
    desk.done("blind")
    return findings


def _judge(desk: Desk, made: Sequence[Made]) -> Finding:
    """Asked in both orders with the question alone. Of twins it would be right once and wrong once: no need to ask."""
    judge = PairwiseJudge(desk.voice("blind"), STYLES["pairwise"], sampling=desk.sampling("blind"))
    asked = [n for n, pair in enumerate(made) if pair.job.partner is None]
    duels = [duel for n in asked for duel in _duels(made[n])]
    verdicts = judge.prefer(duels)
    credits: list[float | None] = [0.5] * len(made)
    for k, n in enumerate(asked):
        forward, backward = verdicts[2 * k : 2 * k + 2]
        credits[n] = _credit(forward, backward)
        for verdict in (forward, backward):
            if isinstance(verdict, Failure):
                desk.fails(made[n].job.id, made[n].round, "pair", "blind-judge", verdict)
    return Finding("blind-judge", tuple(credits), tuple(c or 0.0 for c in credits))


def _duels(pair: Made) -> tuple[Duel, Duel]:
    query = Query(question=pair.job.record.question)
    return Duel(query, pair.chosen, pair.rejected), Duel(query, pair.rejected, pair.chosen)


def _credit(forward: Verdict | Failure, backward: Verdict | Failure) -> float | None:
    if isinstance(forward, Failure) or isinstance(backward, Failure):
        return None
    worth = {"first": 1.0, "tie": 0.5, "second": 0.0}
    return (worth[forward.choice] + 1 - worth[backward.choice]) / 2


def _learner(made: Sequence[Made]) -> Finding | None:
    """Static vectors and a few marks of style of both answers; a couple is one cluster, counted with both labels."""
    encoder = ENCODERS.make("static")
    rows = [(n, sign) for n, pair in enumerate(made) for sign in ((1, -1) if pair.job.partner else (1,))]
    texts = [pair.chosen for pair in made], [pair.rejected for pair in made]
    chosen, rejected = (np.hstack([encoder.encode(side), np.array([_style(t) for t in side])]) for side in texts)
    index = np.array([n for n, _ in rows])
    swap = np.array([sign < 0 for _, sign in rows])[:, None]
    first = np.where(swap, rejected[index], chosen[index])
    second = np.where(swap, chosen[index], rejected[index])
    clusters = _clusters(made)
    margins = blind_margins(first, second, [clusters[n] for n, _ in rows])
    if margins is None:
        return None
    own = [n for n, (_, sign) in enumerate(rows) if sign > 0]
    return Finding("blind-learner", tuple(credits_of(margins[own])), tuple(map(float, margins[own])))


def _clusters(made: Sequence[Made]) -> list[str]:
    """People linked by a couple are one cluster."""
    users = [pair.job.record.user for pair in made]
    others = [pair.job.partner.record.user if pair.job.partner else pair.job.record.user for pair in made]
    names = components(zip(users, others, strict=True))
    return [names[user] for user in users]


def _style(text: str) -> list[float]:
    found = words(text)
    count = max(len(found), 1)
    return [len(text) / 1000, len(sentences(text)) / count, text.count(",") / count, len(set(found)) / count]
