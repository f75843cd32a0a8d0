"""What `prb audit` returns and prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import msgspec

from prb.evaluation.audit import AuditSummary, VoteShares
from prb.reporting.format import Table, dataset_name, interval, number, p_value, percent
from prb.reporting.results import Result, Run


class Audit(Run):
    """The result of `prb audit`."""

    def tables(self) -> Sequence[Table]:
        first, *others = audit_tables(self.summary)
        return [first._replace(title=self.summary["verdict"], lead=(first.title,)), *others]


def audit_tables(content: Result) -> Iterator[Table]:
    result = msgspec.convert(content, AuditSummary)
    if result.votes:
        yield _vote_table(result.votes)
    if not result.floors:
        return
    data, blind, giveaways = result.dataset, result.blind, result.giveaways
    title = f"{dataset_name(content['dataset'])}: {data.rows} pairs, {data.clusters} clusters"
    rows = tuple((name, interval(estimate), str(estimate.failed)) for name, estimate in result.estimates.items())
    notes = ["Accuracy in % with a 95 % interval by cluster; a tie counts half, failures are left out."]
    if blind:
        notes.append(
            f"Learner: linear Bradley-Terry on {blind.features}, out of fold; {blind.groups} groups kept whole "
            f"(by {blind.grouped_by}, near-duplicate questions together)."
        )
    yield Table(f"{title}, {data.mirror_rows} mirror rows", ("scorer", "accuracy", "failed"), rows, tuple(notes))
    yield Table("What to look at", ("finding", "result"), tuple(_findings(result)))
    if giveaways.words:
        words = tuple((w.word, str(w.chosen), str(w.rejected), p_value(w.p)) for w in giveaways.words)
        title = f"Giveaway words: {giveaways.more_than_chance} of {giveaways.looked_at} tested"
        note = "Pairs in which only one answer has the word; sign test by cluster, Holm over all words tested."
        yield Table(title, ("word", "only chosen", "only rejected", "p"), words, (note,))


def _vote_table(votes: Sequence[VoteShares]) -> Table:
    """Parts of the variance of votes, by table."""
    columns = ("votes of", "votes", "users", "items", *votes[0].parts, "detectable")
    rows = tuple(
        (
            table.name,
            str(table.votes),
            str(table.users),
            str(table.items),
            *(interval(asdict(share), digits=0) if share else "–" for share in table.parts.values()),
            percent(table.individual.detectable),
        )
        for table in votes
    )
    notes = [
        "Parts of the variance in % with a 95 % interval over users and items. Shared: what all think of an item; "
        "leaning: how much a user agrees in general; group: what their group thinks of an item; "
        "detectable: the smallest individual share that is shown in 80 % of repetitions."
    ]
    if any(not table.repeated for table in votes):
        notes.append("Where nobody voted twice, individual is a lower bound: what a user's other votes predict.")
    several = {table.attribute or "" for table in votes if table.attributes > 1}
    if several:
        notes.append(f"Group: the attribute that explains most ({', '.join(sorted(several))}), which flatters it.")
    return Table("Whose votes they are", columns, rows, tuple(notes))


def _findings(result: AuditSummary) -> Iterator[tuple[str, str]]:
    length, repeats, leaks, splits = result.length, result.repeats, dict(result.leaks), result.splits
    if length is None or repeats is None:
        raise ValueError("an audit of pairs says how long answers are and which are repeated")
    ratio = number(length.median_ratio, 2)
    yield "chosen is the longer answer", f"{interval(length.chosen_longer)} %; median ratio {ratio}"
    yield "answers within 10 % of each other's length", f"{percent(length.within_a_tenth, 0)} %"
    several = f"{repeats.under_several_questions} of {repeats.answers}"
    one_sided = f"{repeats.of_these_always_on_one_side} always on one side"
    yield "answers under several questions", f"{several}, {one_sided}; in {repeats.rows_with_such_an_answer} rows"
    if repeats.rows_with_a_question_of_several_users is not None:
        yield "rows whose question several users ask", str(repeats.rows_with_a_question_of_several_users)
    yield "duplicate rows", str(repeats.rows_twice)
    restraint = result.dataset.restraint_rows
    sees = f"yes: a history must not decide {restraint} of {result.dataset.rows} rows"
    yield "can see restraint (over-personalization)", sees if restraint else "no: a history may decide every row"
    if topics := result.topics:
        for donor, label in ((topics.matched, "a matched donor's"), (topics.any, "any donor's")):
            closer = interval(donor.difference, scale=1, digits=3, sign=True)
            yield f"cosine of question and own posts, minus {label}", closer
    words = leaks.pop("words")
    places = ", ".join(f"{place} {n}" for place, n in leaks.items())
    yield f"rows that leak {words} consecutive hidden words to the model", places
    if splits:
        repeated = f"{splits.questions_elsewhere_too} the same, {splits.questions_nearly_elsewhere} nearly"
        yield "questions also in other splits", f"{repeated}, of {splits.questions}"
        also = f"{splits.answers_elsewhere_too}, {splits.people_elsewhere_too}"
        yield "answers and users also in other splits", also
