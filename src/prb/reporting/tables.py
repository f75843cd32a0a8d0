"""What verbs print, made from their results: tables and sentences. `evaluate` has `board`, bon and ppo another file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prb.failures import count_reasons
from prb.reporting.format import MISSING, Table, bounds, dollars, interval, number, p_value, percent, points
from prb.types import Pair
from prb.weights import here

Result = Mapping[str, Any]


def dataset_name(data: Result) -> str:
    return f"{data['name']}, split {data['split']}" if data["split"] else str(data["name"])


# --- compare ---
def comparison(result: Result) -> Table:
    columns = ("condition", "A", "B", "acc. A", "acc. B", "A − B", "95 %", "p", "p (Holm)", "changed", "n", "dropped")
    rows = tuple(
        (
            row["condition"],
            row["model_a"],
            row["model_b"],
            percent(row["accuracy_a"]),
            percent(row["accuracy_b"]),
            points(row),
            bounds(row, sign=True),
            p_value(row["p"]),
            p_value(row["p_holm"]),
            percent(row["changed_sides"]),
            str(row["n"]),
            str(row["dropped"]),
        )
        for row in result["comparisons"]
    )
    tests = sorted({row["test"] for row in result["comparisons"]})
    how = f"the 95 % interval inverts the sign-flip test over clusters, p by {', '.join(tests)}"
    notes = [f"Paired on rows both answered; {how}."]
    smallest = [row["smallest_detectable"] for row in result["comparisons"] if row["smallest_detectable"]]
    if smallest:
        notes.append(f"Smallest detectable difference (80 % power): about {percent(max(smallest))} points.")
    if result["same_data"] is False:
        notes.append("The two runs did not use the same data file; only rows with the same id are compared.")
    only = max(row["only_in_one"] for row in result["comparisons"])
    if only:
        notes.append(f"Up to {only} rows are in one run only and were left out.")
    return Table(f"A = {result['a']}, B = {result['b']}", columns, rows, tuple(notes))


# --- audit ---
def audit_estimates(result: Result) -> Iterator[tuple[str, Result]]:
    """Accuracies from knowing nothing to knowing the rubric."""
    for floor in result["floors"]:
        yield f"floor: {floor['model']}", floor["accuracy"]
    if result["blind"]:
        yield "user-blind learner: answer alone", result["blind"]["answer"]
        yield "user-blind learner: question and answer", result["blind"]["question_and_answer"]
    if result["ceiling"]:
        yield f"reading the rubric: {result['ceiling']['model']}", result["ceiling"]["accuracy"]


def audit_tables(result: Result) -> Iterator[Table]:
    data, blind, giveaways = result["dataset"], result["blind"], result["giveaways"]
    size = f"{data['rows']} pairs, {data['clusters']} clusters, {data['mirror_rows']} mirror rows"
    rows = tuple((name, interval(estimate), str(estimate["failed"])) for name, estimate in audit_estimates(result))
    notes = ["Accuracy in % with a 95 % interval by cluster; a tie counts half, failures are left out."]
    if blind:
        notes.append(
            f"Learner: linear Bradley-Terry on {blind['features']}, out of fold; {blind['groups']} groups kept whole "
            f"(by {blind['grouped_by']}, near-duplicate questions together)."
        )
    yield Table(f"{dataset_name(data)}: {size}", ("scorer", "accuracy", "failed"), rows, tuple(notes))
    yield Table("What to look at", ("finding", "result"), tuple(_findings(result)))
    if giveaways["words"]:
        words = tuple((w["word"], str(w["chosen"]), str(w["rejected"]), p_value(w["p"])) for w in giveaways["words"])
        title = f"Giveaway words: {giveaways['more_than_chance']} of {giveaways['looked_at']} tested"
        note = "Pairs in which only one answer has the word; sign test by cluster, Holm over all words tested."
        yield Table(title, ("word", "only chosen", "only rejected", "p"), words, (note,))


def _findings(result: Result) -> Iterator[tuple[str, str]]:
    length, repeats, leaks, splits = result["length"], result["repeats"], result["leaks"], result["splits"]
    ratio = number(length["median_ratio"], 2)
    yield "chosen is the longer answer", f"{interval(length['chosen_longer'])} %; median ratio {ratio}"
    yield "answers within 10 % of each other's length", f"{percent(length['within_a_tenth'], 0)} %"
    several = f"{repeats['under_several_questions']} of {repeats['answers']}"
    one_sided = f"{repeats['of_these_always_on_one_side']} always on one side"
    yield "answers under several questions", f"{several}, {one_sided}; in {repeats['rows_with_such_an_answer']} rows"
    if "rows_with_a_question_of_several_users" in repeats:
        yield "rows whose question several users ask", str(repeats["rows_with_a_question_of_several_users"])
    yield "duplicate rows", str(repeats["rows_twice"])
    if result.get("topics"):
        for kind, label in (("matched", "a matched donor's"), ("any", "any donor's")):
            closer = interval(result["topics"][kind]["difference"], scale=1, digits=3, sign=True)
            yield f"cosine of question and own posts, minus {label}", closer
    places = ", ".join(f"{place} {leaks[place]}" for place in ("question", "posts", "chosen", "rejected"))
    yield f"rows that leak {leaks['words']} consecutive hidden words to the model", places
    if splits:
        repeated = f"{splits['questions_elsewhere_too']} the same, {splits['questions_nearly_elsewhere']} nearly"
        yield "questions also in other splits", f"{repeated}, of {splits['questions']}"
        yield (
            "answers and users also in other splits",
            f"{splits['answers_elsewhere_too']}, {splits['people_elsewhere_too']}",
        )


# --- grade ---
def grade_table(summary: Result) -> Table:
    """The mean score; of a validation, how often the grader prefers the chosen answer."""
    if summary.get("validation"):
        return _validation(summary)
    score, answers = summary["score"], summary["answers"]
    row = (summary["grader"]["spec"], interval(score), str(score["n"]), str(answers["distinct"]), str(score["failed"]))
    note = "Mean score in % of the rubric (Σ grades / 2n) with a 95 % interval clustered by user."
    notes = (note, *_failures(summary["failures"]), *_grader_trust(summary))
    return Table(dataset_name(summary["dataset"]), ("grader", "score", "graded", "distinct", "failed"), (row,), notes)


def _validation(summary: Result) -> Table:
    checked = summary["validation"]
    tiers = {f"tier {name}": estimate for name, estimate in checked["by_tier"].items()}
    parts = {"all": checked["accuracy"], **checked["by_category"], **tiers}
    rows = tuple((name, interval(e), str(e["n"]), str(e["ties"]), str(e["failed"])) for name, e in parts.items())
    chosen, rejected = (percent(checked[side]["value"]) for side in ("score_chosen", "score_rejected"))
    notes = [
        "How often the chosen answer is graded above the rejected one, in % with a 95 % interval clustered by user;",
        f"a tie counts half (as a loss: {percent(checked['strict_accuracy']['value'])}), failures are left out.",
        f"Mean score: chosen {chosen}, rejected {rejected}, gap {interval(checked['gap'], sign=True)}.",
    ]
    human, retest = summary["human"], summary["retest"]
    if human:
        notes.append(
            f"Against human grades, {human['answers']} answers: {_agreement(human)}, Spearman of scores "
            f"{interval(human['spearman'], 2, scale=1)}; {human['failed']} failed."
        )
    if retest and retest["deterministic"]:
        notes.append("Test-retest: this grader is deterministic.")
    elif retest:
        again = f"Graded again under another seed, {retest['answers']} answers"
        notes.append(f"{again}: {_agreement(retest)}; {retest['failed']} failed.")
    notes += [*_failures(checked["failures"]), *_grader_trust(summary)]
    title = f"{summary['grader']['spec']} on {dataset_name(summary['dataset'])}"
    return Table(title, ("rows", "chosen > rejected", "n", "ties", "failed"), rows, tuple(notes))


def _agreement(result: Result) -> str:
    kappa = interval(result["kappa"], 2, scale=1)
    return f"{interval(result['equal'])} % of aspect grades equal, quadratic kappa {kappa}"


def _failures(reasons: Mapping[str, int]) -> Iterator[str]:
    if reasons:
        yield "Failed: " + ", ".join(f"{count} {reason}" for reason, count in reasons.items()) + "."


def _grader_trust(summary: Result) -> Iterator[str]:
    grader = summary["grader"]
    if grader["validity"]:
        yield f"Graded by {grader['spec']}. {grader['validity']}"
    elif "score" in summary:
        yield f"Graded by {grader['spec']}. To validate it: prb grade --validate --grader '{grader['spec']}'"
    if summary["tokens"]:
        yield f"{summary['tokens']:,} tokens, {dollars(summary['cost'])}."


# --- build ---
def build_estimate(estimate: Result) -> Table:
    rows = [
        (stage, f"{cost['calls']:,}", f"{cost['tokens_in']:,}", f"{cost['tokens_out']:,}", dollars(cost["usd"]))
        for stage, cost in estimate["stages"].items()
    ]
    rows.append(("total", "", "", "", dollars(estimate["usd"])))
    title = f"{estimate['records']} records, if every reply can be parsed and every pair passes in its first round"
    note = "Pairs that fail a gate are rewritten and cost more."
    return Table(title, ("stage", "calls", "tokens in", "tokens out", "cost"), tuple(rows), (note,))


def build_lines(card: Result) -> list[str]:
    counts = card["counts"]
    paid = f"{sum(cost['calls'] for cost in card['cost'].values()):,} calls, {dollars(card['usd'])}"
    if card["stopped_after"]:
        return [
            f"stopped after stage {card['stopped_after']!r}: {paid}; run the same command without --until to resume"
        ]
    lines = [f"{counts['rows']} rows of {counts['people']} users ({counts['mirror_rows']} mirror rows)"]
    if counts["rejected"]:
        by_gate = ", ".join(f"{gate} {n}" for gate, n in counts["rejected_by_gate"].items())
        lines.append(f"{counts['rejected']} rejected: {by_gate} (reasons in rejects.jsonl)")
    for name, value in card["user_blind_accuracy"].items():
        right = "not measured, too few pairs" if value is None else f"{percent(value)} % right without the user"
        lines.append(f"{name}: {right}")
    lines.append(paid)
    if card["failures"]:
        lines.append(f"failed requests: {count_reasons(card['failures'])}")
    if counts["rejected_by_gate"].get("endpoint"):
        lines.append("some calls failed at the endpoint; run the same command again to retry them")
    return lines


# --- train ---
def train_lines(card: Result) -> list[str]:
    fitted, checked = card["fitted_on"], card["validation"]
    lines = [f"{card['method']}: fitted on {fitted['rows']} rows of {fitted['users']} users"]
    if checked:
        gain, control = (number(checked[kind]["value"], scale=100, sign=True) for kind in ("gain", "control"))
        accuracy = interval(checked["by_condition"]["profile"])
        lines.append(
            f"validation, {checked['users']} other users: {accuracy} % right; gain {gain}, control {control} points"
        )
    if card["sweep"]:
        lines.append(f"best in cross-validation: {interval(card['sweep'][0]['accuracy'])} % right on held-out users")
    return lines + [f"{name}: {value}" for name, value in card["report"].items()]


def curve_table(result: Result) -> Table:
    rows = tuple((str(p["m"]), interval(p["accuracy"]), interval(p["person_effect"])) for p in result["points"])
    title = f"{result['method']} on {result['dataset']}"
    return Table(title, ("labeled pairs per user", "accuracy", "person effect"), rows, ("In % with 95 % intervals.",))


# --- data, models, cache ---
def stats_table(stats: Result, name: str) -> Table:
    return Table(name, ("what", "value"), tuple((what.replace("_", " "), _figure(v)) for what, v in _flat(stats)))


def _flat(stats: Result) -> Iterator[tuple[str, Any]]:
    """Groups of groups become one line per group."""
    for name, value in stats.items():
        if isinstance(value, Mapping) and all(isinstance(v, Mapping) for v in value.values()):
            yield from ((f"{name}: {key}", item) for key, item in value.items())
        elif name == "review":
            yield from _flat(value)
        else:
            yield name, value


def _figure(value: Any) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"min", "median", "max"}:
            return f"{_figure(value['median'])} ({_figure(value['min'])} to {_figure(value['max'])})"
        return ", ".join(f"{key} {_figure(item)}" for key, item in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pair_text(pair: Pair) -> str:
    """A row to read."""
    about = [pair.category, pair.tier, pair.topic, pair.split, f"mirror of {pair.mirror}" if pair.mirror else None]
    sections = {
        "question": [pair.question],
        "chosen": [pair.chosen],
        "rejected": [pair.rejected],
        f"{pair.user}: {len(pair.profile)} posts, oldest first": [f"{post.id}  {post.text}" for post in pair.profile],
        "hidden from reward models": [
            pair.narrative,
            *(f"- {aspect.aspect}  “{aspect.evidence}”  {aspect.reason}" for aspect in pair.rubric),
        ],
    }
    parts = ["\n".join([f"== {name} ==", *texts]) for name, texts in sections.items()]
    return "\n\n".join(["  ·  ".join(filter(None, [pair.id, *about])), *parts])


def models_tables(models: Sequence[Result], weights: Sequence[Result], known: Sequence[Result]) -> Iterator[Table]:
    rows = tuple((m["name"], " ".join(m["options"]) or MISSING, m["what"]) for m in models)
    yield Table("Models: name?option=value&…", ("name", "options", "description"), rows)
    weight_rows = tuple((w["name"], f"{w['size_mb']} MB", w["licence"], here(w["name"]), w["what"]) for w in weights)
    yield Table("Weights: prb models pull NAME", ("name", "size", "license", "here", "description"), weight_rows)
    known_rows = tuple((c["name"] + "…", c["runs"], c["tested"] or MISSING) for c in known)
    yield Table("Checkpoints: classifier?path=NAME", ("name", "runs in", "tested on a tiny"), known_rows)


def cache_table(path: Path, size: int, entries: Mapping[str, int]) -> Table:
    title = f"{path}: {sum(entries.values()):,} entries, {number(size, scale=1e-6)} MB"
    return Table(title, ("model", "entries"), tuple((model, f"{n:,}") for model, n in entries.items()))
