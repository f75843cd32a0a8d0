"""The pipeline: records → rubrics → couples → opposite wishes → answers → gates → a set that needs the user.

Gates are pure: texts, grades and ratings in; a reason for failing, or `None`, out. In a round cheap gates come first,
so that LLMs are asked only about what may still pass. Nothing here knows of resuming: every call goes through the
ledger, so a build that was stopped runs again from the top and finds its calls in the log.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import product
from shutil import rmtree
from typing import Any, NamedTuple

import numpy as np

from prb import __version__
from prb.building.config import GATES, ROLES, ROUNDS, STAGES, BuildConfig, Role, gate_limits
from prb.building.stages import (
    SIDES,
    AnswerPair,
    Candidate,
    Ledger,
    PairTask,
    Reject,
    Rubric,
    StageLLM,
    UserRecord,
    estimate_cost,
    judge_couples,
    propose_couples,
    rate_quality,
    read_records,
    write_answers,
    write_opposites,
    write_rubrics,
)
from prb.data.publish import HUB, convert, render, write_folder
from prb.data.source import MemorySource
from prb.errors import TooManyFailures
from prb.grading import Answered
from prb.grading.llm import LLMGrader
from prb.llm import LLM, check_llm, make_llm
from prb.models.judge import STYLES, PairwiseJudge
from prb.progress import SILENT, Progress
from prb.prompts import load
from prb.runs import Finished, RunFolder, write_json, write_lines
from prb.stats.bias import blind_margins, credits_of
from prb.stats.credit import CREDIT
from prb.stats.estimate import components
from prb.text.encoders import ENCODERS
from prb.text.words import LEAK_WORDS, SharedWording, hidden_texts, is_list, near_duplicates, style_rates
from prb.types import Duel, Failure, Query
from prb.work import open_replies, refuse_failures, unanswered

PAIRS, REJECTS, CHECKS, CARD = "pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json"
BLIND_GATES = ("blind-judge", "blind-learner")
QUALITY_TRIES = 2
"""Candidate pairs of a task that are rated in one round."""


def build(
    config: BuildConfig | None = None,
    *,
    llms: Mapping[Role, LLM] | None = None,
    progress: Progress = SILENT,
    **settings: Any,
) -> Finished:
    """Run or resume; a dry run asks nobody and returns an estimate. `llms` takes the place of the specs, by role."""
    config = BuildConfig.of(config, settings)
    records = read_records(config.input)[: config.limit]
    if config.dry_run:
        if not llms:
            for role in ROLES:
                check_llm(config.spec_of(role))
        limits = gate_limits(config.gate)["input"]
        usable = [record for record in records if not record_gate(record, **limits)]
        return Finished(config.out, estimate_cost(config, usable))
    given, llm_of = bool(llms), cache(make_llm)  # roles with the same spec share one
    llms = llms or {role: llm_of(config.spec_of(role)) for role in ROLES}
    if any(config.masks(llm) for llm in llms.values()):
        records = [record.masked() for record in records]
    # a folder belongs to one input; all else may change, since replies are looked up by content
    identity = {"build": {"input": config.input}}
    with (
        RunFolder(config.out, identity, fresh=config.fresh),
        open_replies(config.out, progress, cache=config.cache) as replies,
    ):
        ledger = Ledger(config=config, llms=llms, replies=replies, given=given, progress=progress)
        return Finished(config.out, Pipeline(ledger, records).run())


def check_failures(card: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of the requests failed, or if nothing was built."""
    failures, counts = card["failures"], card["counts"]
    refuse_failures([("requests", sum(failures.values()), counts["requests"], failures)], max_failed)
    if not counts["rows"]:
        gates = ", ".join(f"{gate} {n}" for gate, n in counts["rejected_by_gate"].items())
        raise TooManyFailures(f"no pair was built; {counts['rejected']} rejected: {gates} (reasons in rejects.jsonl)")


# --- the gates ---


def record_gate(record: UserRecord, posts: float) -> str | None:
    if len(record.posts) < posts:
        return f"{len(record.posts)} posts, at least {posts:g} required"
    return None if record.narrative or record.rubric else "neither narrative nor rubric"


REFUSAL = re.compile(
    r"^\W*(?:as\s+an\s+ai\b|(?:(?:(?:i\s+am|i['’]m)\s+(?:\w+\s+)?(?:sorry|afraid)|sorry|unfortunately|i\s+apologi[sz]e)\b"
    r"[\s,.;:]*(?:but\s+|that\s+)?)?(?:i\s+(?:can(?:no|['’])t|cannot|won['’]t|am\s+(?:unable|not\s+able)\s+to|must\s+decline))"
    r"\s+(?:to\s+)?(?:help|assist|provide|answer|comply|do\s+that|give|write|discuss|support|fulfil))",
    re.IGNORECASE,
)


def wording_gate(answer: str, record: UserRecord, words: float) -> str | None:
    """Wording of the question may be repeated."""
    hidden = SharedWording(hidden_texts(record.narrative, record.rubric), int(words), allowed=record.question)
    shared = hidden.first_in(answer)
    return f"shares {shared!r} with rubric or narrative" if shared else None


def aspects_gate(grades: Sequence[float], *, follows: bool) -> str | None:
    """Of an answer that should follow a rubric, or go against it."""
    for n, grade in enumerate(grades, 1):
        if follows and grade < 1:
            return f"chosen does not meet aspect {n}"
        if not follows and grade > 0:
            return f"rejected meets aspect {n} (grade {grade:g})"
    return None


def length_gate(chosen: str, rejected: str, gap: float) -> str | None:
    """In characters, so that it means the same in every language."""
    share = length_gap(chosen, rejected)
    return f"{len(chosen)} and {len(rejected)} characters differ by {share:.0%}" if share > gap else None


def length_gap(chosen: str, rejected: str) -> float:
    return abs(len(chosen) - len(rejected)) / max(len(chosen), len(rejected), 1)


def quality_gate(chosen: float, rejected: float, floor: float, margin: float) -> str | None:
    if min(chosen, rejected) < floor:
        return f"rated {chosen:.2f} and {rejected:.2f}, at least {floor:g} required for both"
    if abs(chosen - rejected) > margin + 1e-9:
        return f"rated {chosen:.2f} and {rejected:.2f}, must be within {margin:g} of each other"
    return None


# --- the pipeline ---


class Check(NamedTuple):
    """One gate applied once, passed or not."""

    record: str
    round: int
    what: str
    gate: str
    reason: str | None


class Pipeline:
    def __init__(self, ledger: Ledger, records: list[UserRecord]) -> None:
        self.ledger, self.config = ledger, ledger.config
        self.limits = gate_limits(self.config.gate)
        self.checks: list[Check] = []
        self.total = len(records)
        self.records, self.rejects = records, list[Reject]()
        self.verified: dict[str, AnswerPair] = {}
        self.blind: list[BlindResult] = []
        self.posts_left_out = 0

    def run(self) -> dict[str, Any]:
        """The card of the build, after writing everything."""
        limits = self.limits
        records = [r for r in self.records if self._admits(r, "input", record_gate(r, **limits["input"]))]
        first: dict[int, int] = {}
        """Position of a record → position of the first one with nearly the same question and narrative."""
        if records and "duplicate" in limits:
            rows = ENCODERS.make("static").encode([f"{record.question}\n{record.narrative}" for record in records])
            for later, earlier in near_duplicates(rows, limits["duplicate"]["cosine"]):
                first.setdefault(later, earlier)
        self.records = [
            record
            for n, record in enumerate(records)
            if self._admits(record, "duplicate", f"duplicate of {records[first[n]].id!r}" if n in first else None)
        ]
        self._write_rubrics()
        couples = self._couple() if self.config.mirror else []
        taken = {record.id for task in couples for record in task.users}
        alone = self._oppose([record for record in self.records if record.id not in taken])
        self._run_rounds([*couples, *alone])
        return self._write()

    def _check(self, record: str, round: int, what: str, gate: str, reason: str | Failure | None) -> bool:
        """Record a check; whether it was passed. A gate that is off passes everything, one that failed nothing."""
        if isinstance(reason, Failure):
            gate = "endpoint" if unanswered(reason) else gate
        elif gate not in self.limits:
            return True
        self.checks.append(Check(record, round, what, gate, None if reason is None else str(reason)))
        return reason is None

    def _apply(
        self, record: str, round: int, what: str, gate: str, test: Callable[..., str | None], *arguments: Any
    ) -> bool:
        """As `_check`, with the reason that a gate gives under its limits."""
        limits = self.limits.get(gate)
        return limits is None or self._check(record, round, what, gate, test(*arguments, **limits))

    def _admits(self, record: UserRecord, gate: str, reason: str | Failure | None) -> bool:
        passed = self._check(record.id, 0, "record", gate, reason)
        if not passed:
            self.rejects.append(Reject(record.id, self.checks[-1].gate, str(reason)))
        return passed

    def _write_rubrics(self) -> None:
        """Rubrics of the input are kept. Posts that repeat the hidden part word for word leave the profile."""
        without = [record for record in self.records if not record.rubric]
        written = iter(write_rubrics(StageLLM(self.ledger, "rubric"), without))
        kept = []
        for record in self.records:
            rubric: Rubric | Failure = record.rubric or next(written)
            if isinstance(rubric, Failure):
                self._admits(record, "rubric", rubric)
                continue
            self._admits(record, "rubric", None)
            hidden = SharedWording(hidden_texts(record.narrative, rubric), LEAK_WORDS)
            posts = tuple(post for post in record.posts if not hidden.first_in(post.text))
            clean, leaks = replace(record, rubric=rubric, posts=posts), len(record.posts) - len(posts)
            self.posts_left_out += leaks
            if not leaks or self._admits(clean, "input", record_gate(clean, **self.limits["input"])):
                kept.append(clean)
        self.records = kept

    def _couple(self) -> list[PairTask]:
        couples = propose_couples(self.records, ENCODERS.make("static"), self.limits["couple"]["cosine"])
        tasks = []
        for couple, verdict in zip(couples, judge_couples(StageLLM(self.ledger, "couple"), couples), strict=True):
            first, second = couple
            if isinstance(verdict, Failure) and unanswered(verdict):  # alone they would cost, and be couples next time
                for record in couple:
                    self._admits(record, "couple", verdict)
                    self.records.remove(record)
                continue
            reason = None if verdict == "conflict" else str(verdict)
            if self._check(first.id, 0, f"with {second.id}", "couple", reason):
                tasks.append(PairTask(users=couple, against=second.wishes))
        return tasks

    def _oppose(self, records: Sequence[UserRecord]) -> list[PairTask]:
        """Tasks of users alone, against opposite wishes."""
        if self.config.mode == "avoid":
            return [PairTask(users=(record,)) for record in records]
        tasks = []
        for record, against in zip(records, write_opposites(StageLLM(self.ledger, "negative"), records), strict=True):
            if isinstance(against, Failure):
                self._admits(record, "negative", against)
            else:
                self._admits(record, "negative", None)
                tasks.append(PairTask(users=(record,), against=against))
        return tasks

    def _run_rounds(self, tasks: Sequence[PairTask]) -> None:
        """Write and verify; up to `ROUNDS` times, rewrite what failed or what can be predicted without the user."""
        for round in range(1, ROUNDS + 1):
            rejects = self._run_round(tasks, round)
            failed = [task for task in tasks if task.id in rejects]
            predictable = self._find_predictable(round)
            if round == ROUNDS:
                for task in failed:
                    self.rejects += [rejects[task.id]._replace(record=record.id) for record in task.users]
                while predictable:  # what remains is another set, so it is measured again
                    self.rejects += predictable.values()
                    for id_ in predictable:
                        del self.verified[id_]
                    predictable = self._find_predictable(round)
                return
            # a couple for whom no answers were found continues as two users
            alone = [task for task in failed if not task.coupled]
            separated = [record for task in failed if task.coupled for record in task.users]
            rewritten = [self.verified.pop(id_).task for id_ in predictable]
            tasks = [*alone, *self._oppose(separated), *rewritten]
            if not tasks:
                return

    def _run_round(self, tasks: Sequence[PairTask], round: int) -> dict[str, Reject]:
        """Write candidates, drop those that fail a gate, keep the best pair of each task. Why the others have none."""
        first_check = len(self.checks)
        candidates: dict[str, list[Candidate]] = {task.id: [] for task in tasks}
        for candidate in self._grade(self._write_candidates(tasks, round), round):
            candidates[candidate.task.id].append(candidate)
        matched = [pairs for of_task in candidates.values() if (pairs := self._match(of_task, round))]
        if "quality" not in self.limits:
            self.verified |= {pairs[0].task.id: pairs[0] for pairs in matched}
        for n in range(QUALITY_TRIES if "quality" in self.limits else 0):
            tried = [pairs[n] for pairs in matched if n < len(pairs) and pairs[0].task.id not in self.verified]
            ratings = rate_quality(StageLLM(self.ledger, "quality"), tried) if tried else []
            for pair, quality in zip(tried, ratings, strict=True):
                at = (pair.task.id, round, pair.name, "quality")
                if isinstance(quality, Failure):
                    self._check(*at, quality)
                elif self._apply(*at, quality_gate, *quality):
                    self.verified[pair.task.id] = replace(pair, quality=quality)
        order = list(GATES)
        failed = [check for check in self.checks[first_check:] if check.reason is not None]
        # whatever got furthest; of several such, the last
        furthest = {c.record: c for c in sorted(failed, key=lambda check: order.index(check.gate))}
        return {
            id_: Reject(id_, check.gate, f"{check.what}: {check.reason}")
            for id_, check in furthest.items()
            if id_ not in self.verified
        }

    def _write_candidates(self, tasks: Sequence[PairTask], round: int) -> list[Candidate]:
        """Candidates that are not refusals and leak nothing of either user."""
        kept = []
        for candidate in write_answers(StageLLM(self.ledger, "answer"), tasks, round):
            at, text = (candidate.task.id, round, candidate.name), candidate.text
            refusal = f"begins like a refusal: {text[:60]!r}" if REFUSAL.match(text) else None
            if candidate.failure:
                self._check(*at, "answer", candidate.failure)
            elif self._check(*at, "refusal", refusal) and all(
                self._apply(*at, "wording", wording_gate, text, record) for record in candidate.task.users
            ):
                kept.append(candidate)
        return kept

    def _grade(self, candidates: list[Candidate], round: int) -> list[Candidate]:
        """Graded blind: the grader is not told the side. Answers for a couple are graded against both rubrics."""
        if "aspects" not in self.limits:
            return candidates
        llm = StageLLM(self.ledger, "grade")
        asked = [
            Answered(question=c.task.question, answer=c.text, rubric=record.rubric, narrative=record.narrative)
            for c in candidates
            for record in c.task.users
        ]
        grades = iter(LLMGrader(llm, sampling=llm.sampling).grade(asked))
        kept = []
        for candidate in candidates:
            passed, of_user = [], None
            for whose in ("user", "partner")[: len(candidate.task.users)]:
                graded = next(grades)
                reason: str | Failure | None
                if isinstance(graded, Failure):
                    reason = graded
                else:
                    reason = aspects_gate(graded.aspects, follows=(candidate.side == "chosen") == (whose == "user"))
                    reason = reason and f"{reason} of the {whose}'s rubric"
                    of_user = graded if whose == "user" else of_user
                passed.append(self._check(candidate.task.id, round, candidate.name, "aspects", reason))
            if all(passed):
                kept.append(replace(candidate, grades=of_user))
        return kept

    def _match(self, candidates: Sequence[Candidate], round: int) -> list[AnswerPair]:
        """Pairs of one length and form among the candidates of a task. First those whose chosen answer meets more,
        then those whose lengths are closer."""
        ranked: list[tuple[float, float, AnswerPair]] = []
        for chosen, rejected in product(*([c for c in candidates if c.side == side] for side in SIDES)):
            pair, texts = AnswerPair(chosen=chosen, rejected=rejected, round=round), (chosen.text, rejected.text)
            at = (pair.task.id, round, pair.name)
            form = "one answer is a list, the other is not" if is_list(texts[0]) != is_list(texts[1]) else None
            if self._apply(*at, "length", length_gate, *texts) and self._check(*at, "form", form):
                met = sum(chosen.grades.aspects) if chosen.grades else 0.0
                ranked.append((-met, length_gap(*texts), pair))
        return [pair for *_, pair in sorted(ranked, key=lambda entry: entry[:2])]

    def _find_predictable(self, round: int) -> dict[str, Reject]:
        """Pairs that must go for the set to be within the blind limit, and those that could not be judged."""
        pairs = list(self.verified.values())
        self.blind = []
        if pairs and "blind-judge" in self.limits:
            self.blind.append(self._judge_blind(pairs))
        if pairs and "blind-learner" in self.limits and (learner := learn_blind(pairs)):
            self.blind.append(learner)
        rejects: dict[str, Reject] = {}
        for result in self.blind:
            worst = result.worst(pairs, **self.limits[result.name])
            reason = f"predicted without the user; accuracy on the set {result.accuracy(pairs) or 0:.1%}"
            for pair, credit in zip(pairs, result.credits, strict=True):
                id_ = pair.task.id
                if credit is None:
                    last = next(c for c in reversed(self.checks) if c.record == id_ and c.reason)
                    rejects.setdefault(id_, Reject(id_, last.gate, str(last.reason)))
                elif not self._check(id_, round, "pair", result.name, reason if id_ in worst else None):
                    rejects.setdefault(id_, Reject(id_, result.name, reason))
        return rejects

    def _judge_blind(self, pairs: Sequence[AnswerPair]) -> BlindResult:
        """By a judge who sees the question alone, in both orders. It is not asked about couples, where its accuracy is
        50 % anyway."""
        llm = StageLLM(self.ledger, "blind")
        asked = [n for n, pair in enumerate(pairs) if not pair.task.coupled]
        duels: list[Duel] = []
        for pair in (pairs[n] for n in asked):
            query, answers = Query(question=pair.task.question), (pair.chosen.text, pair.rejected.text)
            duels += [Duel(query, *answers), Duel(query, *reversed(answers))]
        verdicts = PairwiseJudge(llm, STYLES["pairwise"], sampling=llm.sampling).prefer(duels)
        credits: list[float | None] = [0.5] * len(pairs)
        for n, forward, backward in zip(asked, verdicts[::2], verdicts[1::2], strict=True):
            for verdict in (forward, backward):
                if isinstance(verdict, Failure):
                    self._check(pairs[n].task.id, pairs[n].round, "pair", "blind-judge", verdict)
                    credits[n] = None
            if not isinstance(forward, Failure) and not isinstance(backward, Failure):
                credits[n] = (CREDIT[forward.choice] + 1 - CREDIT[backward.choice]) / 2
        return BlindResult("blind-judge", tuple(credits), tuple(credit or 0.0 for credit in credits))

    def _write(self) -> dict[str, Any]:
        pairs, ledger, out = list(self.verified.values()), self.ledger, self.config.out
        rows = [row for pair in pairs for row in pair_rows(pair)]
        prompts = sorted({"material", "build_avoid", *(job.prompt for job in STAGES.values())})
        applied = Counter(check.gate for check in self.checks)
        passed = Counter(check.gate for check in self.checks if check.reason is None)
        blind: dict[str, float | None] = dict.fromkeys(name for name in BLIND_GATES if name in self.limits)
        blind |= {result.name: result.accuracy(pairs) for result in self.blind}
        card = {
            "prb": __version__,
            "settings": self.config.saved(),
            "llms": {role: llm.fingerprint for role, llm in ledger.llms.items()},
            "prompts": {name: hashlib.sha256(load(name).encode()).hexdigest()[:16] for name in prompts},
            "counts": {
                "records": self.total,
                "rows": len(rows),
                "people": len({row["user"] for row in rows}),
                "mirror_rows": sum("mirror" in row for row in rows),
                "rejected": len(self.rejects),
                "rejected_by_gate": dict(sorted(Counter(reject.gate for reject in self.rejects).items())),
                "posts_left_out": self.posts_left_out,
                "requests": ledger.asked,
            },
            "failures": dict(sorted(ledger.failures.items())),
            "gates": {gate: {"applied": applied[gate], "passed": passed[gate]} for gate in GATES if applied[gate]},
            "user_blind_accuracy": blind,
            "cost": {stage: asdict(ledger.usage[stage]) for stage in STAGES if stage in ledger.usage},
            "usd": ledger.usd,
        }
        write_lines(out / CHECKS, [check._asdict() for check in self.checks])
        convert(MemorySource(PAIRS, rows), out / PAIRS)
        write_lines(out / REJECTS, [reject._asdict() for reject in self.rejects])
        write_json(out / CARD, card)
        if rows:  # what `prb data push` publishes and `datasets.load_dataset` reads, with the card as its README
            text = render(files("prb.building") / "card.md.jinja", **card, known=GATES)
            write_folder(MemorySource(PAIRS, rows), out / HUB, text)
        else:
            rmtree(out / HUB, ignore_errors=True)
        return card


# --- the set: can a judge or a learner that knows nothing of the users predict which answer is chosen? ---


@dataclass(frozen=True)
class BlindResult:
    """How a user-blind model did on the set. On the two rows of a couple it is right once and wrong once."""

    name: str
    credits: tuple[float | None, ...]
    """One per pair, `None` if it failed; for a couple, the credit on the first user's row."""
    margins: tuple[float, ...]
    """How confidently it was right."""

    def accuracy(self, pairs: Sequence[AnswerPair]) -> float | None:
        rows = self._row_credits(pairs)
        return sum(rows) / len(rows) if rows else None

    def worst(self, pairs: Sequence[AnswerPair], limit: float) -> list[str]:
        """Ids of the pairs to remove for the rest to be within the limit, the most confidently predicted first."""
        rows = self._row_credits(pairs)
        total, count = sum(rows), len(rows)
        predicted = [
            (margin, credit, pair.task.id)
            for pair, credit, margin in zip(pairs, self.credits, self.margins, strict=True)
            if not pair.task.coupled and credit is not None and credit > limit
        ]
        worst = []
        for _, credit, pair_id in sorted(predicted, key=lambda entry: -entry[0]):
            if total <= limit * count + 1e-9:
                break
            total, count = total - credit, count - 1
            worst.append(pair_id)
        return worst

    def _row_credits(self, pairs: Sequence[AnswerPair]) -> list[float]:
        rows: list[float] = []
        for pair, credit in zip(pairs, self.credits, strict=True):
            if credit is not None:
                rows += [credit, 1 - credit] if pair.task.coupled else [credit]
        return rows


def learn_blind(pairs: Sequence[AnswerPair]) -> BlindResult | None:
    """From static vectors and style features of both answers. A couple is one cluster and counts with both labels."""
    encoder = ENCODERS.make("static")
    sides = []
    for side in SIDES:
        answers = [getattr(pair, side).text for pair in pairs]
        style = [[len(text) / 1000, *style_rates(text)[:3]] for text in answers]
        sides.append(np.hstack([encoder.encode(answers), np.array(style)]))
    chosen, rejected = sides
    rows = [(n, swapped) for n, pair in enumerate(pairs) for swapped in (False, True)[: len(pair.task.users)]]
    index = [n for n, _ in rows]
    swap = np.array([swapped for _, swapped in rows])[:, None]
    users = [[record.user for record in pair.task.users] for pair in pairs]
    cluster_of = components((linked[0], linked[-1]) for linked in users)
    clusters = [cluster_of[linked[0]] for linked in users]
    first = np.where(swap, rejected[index], chosen[index])
    second = np.where(swap, chosen[index], rejected[index])
    margins = blind_margins(first, second, [clusters[n] for n in index])
    if margins is None:
        return None
    unswapped = margins[~swap[:, 0]]
    return BlindResult("blind-learner", tuple(credits_of(unswapped).tolist()), tuple(map(float, unswapped)))


# --- what is written ---


def pair_rows(pair: AnswerPair) -> Iterator[dict[str, Any]]:
    """One row, or the mirror rows of a couple: the same question and answers with swapped labels."""
    task, answers = pair.task, (pair.chosen.text, pair.rejected.text)
    for n, record in enumerate(task.users):
        chosen, rejected = reversed(answers) if n else answers
        row = {
            **record.other,
            "id": record.id,
            "user": record.user,
            "question": task.question,
            "profile": [post._asdict() for post in record.posts],
            "rubric_aspects": [aspect.as_row() for aspect in record.rubric],
            "narrative": record.narrative,
            "category": record.category,
            "chosen": chosen,
            "rejected": rejected,
        }
        row |= {"mirror": task.users[1 - n].id} if task.coupled else {"negative_rubric": list(task.against)}
        row |= {"own_question": record.question} if n else {}
        build: dict[str, Any] = {"round": pair.round}
        if pair.quality:
            build["quality"] = dict(zip(SIDES, reversed(pair.quality) if n else pair.quality, strict=True))
        if not n and pair.chosen.grades and pair.rejected.grades:  # they are against the first user's rubric
            build["grades"] = {"chosen": pair.chosen.grades.aspects, "rejected": pair.rejected.grades.aspects}
        yield row | {"build": build}
