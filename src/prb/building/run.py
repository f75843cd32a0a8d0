"""The pipeline: records → rubrics → couples → what breaks a rubric → answers → gates → a set that needs the person.

It is written as if nothing could go wrong on the way: every call goes through the ledger, so a build that is stopped
anywhere runs again from the top and meets its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prb.building.blind import Finding, find_out
from prb.building.choose import Desk, Until, one_round
from prb.building.config import ROLES, BuildConfig, Role, Stage, checked
from prb.building.couple import confirm, propose
from prb.building.estimate import Estimated, estimate
from prb.building.gates import duplicates, leaking_posts, record_gate
from prb.building.job import Check, Job, Made, Partner
from prb.building.ledger import Ledger, Voice, is_down, make_roles, prices_of
from prb.building.output import write_all
from prb.building.records import Record, Reject, masked, read_records
from prb.building.rubric import Rubric, make_opposites, make_rubrics
from prb.llm import LLM, check_llm
from prb.progress import SILENT, Progress
from prb.runs import Folder, Journal, read_json, write_json
from prb.text.encoders import ENCODERS, Encoder
from prb.types import Failure

LOG, STATE = "log.jsonl", "state.json"


@dataclass(frozen=True, kw_only=True)
class Build:
    """What came out; `card` is what stands in `card.json`."""

    folder: Path
    card: dict[str, Any]
    stopped_after: Stage | None = None


@dataclass(kw_only=True)
class State:
    """What the pipeline knows so far."""

    records: list[Record]
    rejects: list[Reject] = field(default_factory=list)
    rubrics: dict[str, Rubric] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    dropped_posts: int = 0


def plan_build(config: BuildConfig) -> Estimated:
    """What it would take, without asking anybody."""
    config = checked(config)
    for role in ROLES.values():
        check_llm(config.spec_of(role))
    records, _ = read_records(config.input, skip_bad=config.skip_bad)
    return estimate(config, [record for record in records[: config.limit] if not record_gate(record, config)])


def build(config: BuildConfig, *, llms: Mapping[Role, LLM] | None = None, progress: Progress = SILENT) -> Build:
    """Run or resume; `llms` holds language models of your own by role."""
    config = checked(config)
    records, rejects = read_records(config.input, skip_bad=config.skip_bad)
    roles = llms or make_roles(config)
    if config.mask_pii == "on" or (config.mask_pii == "auto" and any(llm.remote for llm in roles.values())):
        records = [masked(record) for record in records]
    records = records[: config.limit]
    folder = Folder(config.out, identity(config))
    folder.open()
    try:
        with Journal(config.out / LOG) as journal:
            ledger = Ledger(
                journal,
                max_usd=config.max_usd,
                max_tokens=config.max_total_tokens,
                batch=config.batch,
                progress=progress,
            )
            desk = Desk(config=config, voice=_voices(config, roles, ledger), again=_again(config))
            result = _run(desk, State(records=records, rejects=rejects), ledger, roles)
            _close_redo(config)
            return result
    except BaseException:
        if not (config.out / LOG).stat().st_size:
            folder.leave_no_trace(LOG, STATE)
        raise
    finally:
        folder.close()


def identity(config: BuildConfig) -> dict[str, Any]:
    """A folder belongs to one input. All else may change: the log is looked up by content, it cannot answer wrongly."""
    return {"build": {"input": config.input}}


def _voices(config: BuildConfig, roles: Mapping[Role, LLM], ledger: Ledger) -> Callable[[Stage], LLM]:
    def voice(stage: Stage) -> Voice:
        role = ROLES[stage]
        return Voice(roles[role], stage, prices_of(config.spec_of(role)), ledger)

    return voice


def _again(config: BuildConfig) -> dict[Stage, int]:
    """How often each stage was asked for anew; one that was begun and not finished is gone on with."""
    path = config.out / STATE
    state: dict[str, Any] = read_json(path) if path.exists() else {"again": {}, "open": None}
    if config.redo and state["open"] != config.redo:
        state["again"][config.redo] = state["again"].get(config.redo, 0) + 1
        state["open"] = config.redo
    write_json(path, state)
    again: dict[Stage, int] = state["again"]
    return again


def _close_redo(config: BuildConfig) -> None:
    write_json(config.out / STATE, {**read_json(config.out / STATE), "open": None})


def _run(desk: Desk, state: State, ledger: Ledger, roles: Mapping[Role, LLM]) -> Build:
    stopped: Stage | None = None
    asked_for = len(state.records) + len(state.rejects)
    try:
        _admit(desk, state)
        _make_rubrics(desk, state)
        _rounds(desk, state, _jobs(desk, state))
    except Until:
        stopped = desk.config.until
    card = write_all(
        desk.config,
        made=list(state.made.values()),
        rejects=state.rejects,
        checks=desk.checks,
        spent=ledger.spent,
        findings=state.findings,
        records=asked_for,
        dropped_posts=state.dropped_posts,
        llms={role: llm.fingerprint for role, llm in roles.items()},
        stopped_after=stopped,
    )
    return Build(folder=desk.config.out, card=card, stopped_after=stopped)


def _admit(desk: Desk, state: State) -> None:
    records = [r for r in state.records if _settled(desk, state, r.id, "input", record_gate(r, desk.config))]
    twice = dict(duplicates(records, _encoder(), desk.config.duplicate))
    state.records = [
        record
        for n, record in enumerate(records)
        if _settled(desk, state, record.id, "duplicate", f"as {records[twice[n]].id!r}" if n in twice else None)
    ]


def _settled(desk: Desk, state: State, record: str, gate: str, reason: str | None) -> bool:
    passed = desk.passes(record, 0, "record", gate, reason)
    if not passed:
        state.rejects.append(Reject(record, gate, str(reason)))
    return passed


def _encoder() -> Encoder:
    return ENCODERS.make("static")


def _make_rubrics(desk: Desk, state: State) -> None:
    """Given ones are kept. Posts that give the hidden part away word for word are left out of the profile."""
    todo = [record for record in state.records if not record.rubric]
    made = make_rubrics(desk.voice("rubric"), todo, desk.config.aspects, desk.sampling("rubric"))
    found = {record.id: rubric for record, rubric in zip(todo, made, strict=True)}
    kept = []
    for record in state.records:
        rubric = record.rubric or found[record.id]
        if isinstance(rubric, Failure):
            _give_up(desk, state, record.id, "rubric", rubric)
            continue
        desk.passes(record.id, 0, "record", "rubric", None)
        state.rubrics[record.id] = rubric
        leaks = leaking_posts(record, rubric, desk.config.shared_words)
        state.dropped_posts += len(leaks)
        sound = replace(record, posts=tuple(post for post in record.posts if post not in leaks))
        if not leaks or _settled(desk, state, record.id, "input", record_gate(sound, desk.config)):
            kept.append(sound)
    state.records = kept
    desk.done("rubric")


def _give_up(desk: Desk, state: State, record: str, gate: str, failure: Failure) -> None:
    desk.fails(record, 0, "record", gate, failure)
    state.rejects.append(Reject(record, "endpoint" if is_down(failure) else gate, str(failure)))


def _jobs(desk: Desk, state: State) -> list[Job]:
    """Confirmed couples first; everybody else by themselves."""
    couples = _couples(desk, state) if desk.config.mirror else []
    desk.done("couple")
    taken = {person for job in couples if job.partner for person in (job.id, job.partner.record.id)}
    singles = _singles(desk, state, [record for record in state.records if record.id not in taken])
    desk.done("negative")
    return [*couples, *singles]


def _couples(desk: Desk, state: State) -> list[Job]:
    proposed = propose(state.records, _encoder(), desk.config.similar)
    both = [(state.records[couple.first], state.records[couple.second]) for couple in proposed]
    asked = [(a, state.rubrics[a.id], b, state.rubrics[b.id]) for a, b in both]
    findings = confirm(desk.voice("couple"), asked, desk.sampling("couple"))
    jobs = []
    for (a, wants_a, b, wants_b), finding in zip(asked, findings, strict=True):
        if isinstance(finding, Failure) and is_down(finding):  # as two people they would be paid for, then thrown away
            for record in (a, b):
                _give_up(desk, state, record.id, "couple", finding)
                state.records.remove(record)
        elif desk.passes(a.id, 0, f"with {b.id}", "couple", None if finding == "conflict" else str(finding)):
            against = tuple(aspect.aspect for aspect in wants_b)
            jobs.append(Job(record=a, rubric=wants_a, against=against, partner=Partner(record=b, rubric=wants_b)))
    return jobs


def _singles(desk: Desk, state: State, records: Sequence[Record]) -> list[Job]:
    if desk.config.mode == "avoid":
        return [Job(record=record, rubric=state.rubrics[record.id], against=()) for record in records]
    questions, wants = [record.question for record in records], [state.rubrics[record.id] for record in records]
    opposites = make_opposites(desk.voice("negative"), questions, wants, desk.sampling("negative"))
    jobs = []
    for record, rubric, against in zip(records, wants, opposites, strict=True):
        if isinstance(against, Failure):
            _give_up(desk, state, record.id, "negative", against)
        else:
            desk.passes(record.id, 0, "record", "negative", None)
            jobs.append(Job(record=record, rubric=rubric, against=against))
    return jobs


def _rounds(desk: Desk, state: State, jobs: list[Job]) -> None:
    """Write, check, and write anew what failed or what can be told without the person, as often as allowed."""
    last = desk.config.rounds
    for round in range(1, last + 1):
        results = one_round(desk, jobs, round)
        state.made |= {own: result for own, result in results.items() if isinstance(result, Made)}
        failed = [job for job in jobs if job.id not in state.made]
        told = _told_blind(desk, state, round)
        if round == last:
            state.rejects += [
                reject for own in results.values() if isinstance(own, Reject) for reject in _both(own, jobs)
            ]
            _drop_told(desk, state, told)
            break
        jobs = [*_apart(desk, state, failed), *(state.made.pop(own).job for own in told)]
        if not jobs:
            break


def _both(reject: Reject, jobs: Sequence[Job]) -> list[Reject]:
    """A couple without a pair is two people without one."""
    job = next(job for job in jobs if job.id == reject.record)
    return [reject] + ([reject._replace(record=job.partner.record.id)] if job.partner else [])


def _apart(desk: Desk, state: State, failed: Sequence[Job]) -> list[Job]:
    """Couples for whom no pair of answers was found go on as two people."""
    alone = [job for job in failed if job.partner is None]
    split = [record for job in failed if job.partner for record in (job.record, job.partner.record)]
    return alone + _singles(desk, state, split)


def _told_blind(desk: Desk, state: State, round: int) -> dict[str, Reject]:
    """The pairs that must go for the set to be within the limit, and those that could not be judged."""
    made = list(state.made.values())
    state.findings = find_out(desk, made) if made else []
    told: dict[str, Reject] = {}
    for finding in state.findings:
        worst = finding.worst(made, desk.config.blind_limit)
        reason = f"told without the person; right on {finding.accuracy(made) or 0:.1%} of the set"
        for pair, credit in zip(made, finding.credits, strict=True):
            own = pair.job.id
            if credit is None:
                told.setdefault(own, _unjudged(desk.checks, own, finding.name))
            elif not desk.passes(own, round, "pair", finding.name, reason if own in worst else None):
                told.setdefault(own, Reject(own, finding.name, reason))
    return told


def _drop_told(desk: Desk, state: State, told: Mapping[str, Reject]) -> None:
    """After the last round what still can be told goes; the set is then another one, and is looked at again."""
    while told:
        state.rejects += told.values()
        for own in told:
            del state.made[own]
        told = _told_blind(desk, state, desk.config.rounds)


def _unjudged(checks: Sequence[Check], record: str, gate: str) -> Reject:
    last = next(check for check in reversed(checks) if check.record == record and check.reason)
    return Reject(record, last.gate if last.gate == "endpoint" else gate, str(last.reason))
