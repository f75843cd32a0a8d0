"""The data of all pages but those that rank models (`leaderboard.py`): one model, users, pairs, and the results of
other verbs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from math import isfinite
from typing import Any

import numpy as np
from msgspec import to_builtins

from prb.config import ShownHistory
from prb.downstream.columns import PLURAL
from prb.evaluation.conditions import pick_donor
from prb.evaluation.outcomes import Column
from prb.reporting.figures import families
from prb.reporting.format import without_folders
from prb.reporting.gather import DataFile, Entry, Group, Inputs, explain_damage
from prb.reporting.results import Audit, BestOfN, Correlation, Ppo, Run, Study, set_sentences
from prb.stats.bias import by_margin, histogram
from prb.stats.estimate import Ints, by_label, chance_spread, codes, spread, user_means, wilson
from prb.summary import CONDITIONS
from prb.types import Pair, Post
from prb.work import chunks

PPO_PANELS = {
    "reward": "reward",
    "kl": "KL to the reference, nats per answer",
    "length": "length",
    "entropy": "entropy",
}
"""The columns of a PPO run's curves that are drawn, with their labels."""
EXAMPLES = 5
"""Pairs shown for each reason of failure."""
MIN_USERS = 10
"""Smaller groups of users are not shown: they say more about single users than about the group."""
CHUNK = 100
"""Pairs per file of texts: a file is loaded to show one pair."""
HEAD = 140
"""Characters of the question in the list."""


# --- one model: where it is right, its biases and calibration, failures and cost ---
def model_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        users = codes(list(group.users))
        yield f"{group.id}/people", {"names": list(dict.fromkeys(group.users)), "pairs": np.bincount(users).tolist()}
        for n, entry in enumerate(group.entries):
            columns = group.columns_of(entry)
            conditions = {c: _condition(group, entry, c, column, users) for c, column in columns.items()}
            contrasts = to_builtins(list(group.summary.contrasts_of(entry.name).values()))
            yield f"{group.id}/model-{n}", {"conditions": conditions, "contrasts": contrasts}


def _condition(group: Group, entry: Entry, condition: str, column: Column, users: Ints) -> dict[str, Any]:
    result = entry.result(condition)
    assert result is not None
    means, _, present = user_means(column.credit, users)
    accuracy_of = dict(zip(present.tolist(), means.tolist(), strict=True))
    failures: dict[str, list[int]] = {}
    for n, detail in enumerate(column.details):
        if detail.failure is not None:
            failures.setdefault(detail.failure.partition(": ")[0], []).append(n)
    by_history = None
    if group.history is not None:
        labels, order = bins(group.history)
        estimates = by_label(column.credit, group.clusters, labels)
        by_history = [{"label": label, **estimates[label].as_dict()} for label in order]
    return {
        **{key: value for key, value in result.as_json().items() if key not in ("model", "condition")},
        "by_history": by_history,
        "people": [round(accuracy_of[n], 4) if n in accuracy_of else None for n in range(int(users.max()) + 1)],
        "margins": histogram(column.margin),
        "by_margin": by_margin(column.margin, column.credit, group.clusters),
        "cost": {"seconds": column.seconds, "tokens": column.tokens, "money": column.cost, "outcomes": len(column)},
        "reasons": [
            {"reason": reason, "n": len(rows), "pairs": rows[:EXAMPLES]}
            for reason, rows in sorted(failures.items(), key=lambda item: -len(item[1]))
        ],
    }


def bins(values: Sequence[int]) -> tuple[list[str], list[str]]:
    """Four bins, about equally full, or one per number if there are few: the label of each value, and all in order."""
    numbers = np.array(values)
    distinct = np.unique(numbers)
    quantiles = np.quantile(numbers, np.arange(4) / 4, method="higher")
    starts = distinct if len(distinct) <= 4 else np.unique(quantiles)
    place = np.searchsorted(starts, numbers, side="right") - 1
    spans = [(int(numbers[place == n].min()), int(numbers[place == n].max())) for n in range(len(starts))]
    names = [str(low) if low == high else f"{low}–{high}" for low, high in spans]
    return [names[n] for n in place], names


# --- users: accuracy for every one with an interval, who is served worst, groups with enough users ---
def users_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        users = codes(list(group.users))
        rows = group.dataset.index.groups if group.dataset else []
        labels: dict[str, list[str | None]] = {}  # by attribute, of every row
        small: dict[str, int] = {}  # how many labels of few users are left out
        for attribute in sorted({name for row in rows for name in row}):
            users_of: dict[str, set[str]] = {}
            for row, user in zip(rows, group.users, strict=True):
                if attribute in row:
                    users_of.setdefault(row[attribute], set()).add(user)
            large = {label for label, some in users_of.items() if len(some) >= MIN_USERS}
            labels[attribute] = [row.get(attribute) if row.get(attribute) in large else None for row in rows]
            small[attribute] = len(users_of) - len(large)
        for condition in group.conditions:
            models = {}
            for n, column in group.under(condition):
                groups = {}
                for attribute, row_labels in labels.items():
                    estimates = by_label(column.credit, group.clusters, row_labels)
                    worst_first = sorted((1.0 if e.value is None else e.value, name) for name, e in estimates.items())
                    groups[attribute] = {name: estimates[name].as_dict() for _, name in worst_first}
                means, counts, present = user_means(column.credit, users)
                low, high = wilson(means, counts)  # of further questions of the same users, not of other users
                worst = np.lexsort((present, -counts, means))  # of equals those with more rows first
                models[str(n)] = {
                    "user": present[worst].tolist(),
                    "value": means[worst].round(4).tolist(),
                    "low": low[worst].round(4).tolist(),
                    "high": high[worst].round(4).tolist(),
                    "rows": counts[worst].tolist(),
                    **spread(means),
                    "by_chance": chance_spread(means, counts),
                    "groups": groups,
                }
            page = {"models": models, "min_users": MIN_USERS, "small_groups": small}
            yield f"{group.id}/users-{condition}", page


# --- pairs: small columns for the list, everything about a pair in chunks that load on demand ---
def pairs_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        margins = {cell: [_rounded(m) for m in column.margin.tolist()] for cell, column in group.columns.items()}
        for condition in group.conditions:
            # by model number: one letter per pair (1 right, 0 wrong, h tied, - failed), and margins
            credit, listed = {}, {}
            for n, column in group.under(condition):
                letters = ["1" if c > 0.5 else "0" if c < 0.5 else "h" if c == 0.5 else "-" for c in column.credit]
                credit[str(n)] = "".join(letters)
                listed[str(n)] = margins[group.entries[n].name, condition]
            yield f"{group.id}/list-{condition}", {"credit": credit, "margin": listed}
        items = iter(group.dataset) if inputs.texts and group.dataset else None
        heads: list[str] = []
        for n, rows in enumerate(chunks(range(len(group.pairs)), CHUNK)):
            pairs = [item for item in islice(items, len(rows)) if isinstance(item, Pair)] if items else []
            heads += [pair.question[:HEAD] for pair in pairs]
            yield f"{group.id}/pairs-{n}", _chunk(group, rows, pairs, texts=inputs.texts)
        yield f"{group.id}/pairs", _index(group, heads if items else None)


def _index(group: Group, heads: list[str] | None) -> dict[str, Any]:
    users = {user: n for n, user in enumerate(dict.fromkeys(group.users))}
    index = group.dataset and group.dataset.index
    labeled: dict[str, list[Any]] = {}
    for field, of_rows, labels in (
        ("categories", "category", index.categories if index else ()),
        ("tiers", "tier", index.tiers if index else ()),
    ):
        labeled[field] = sorted({label for label in labels if label})
        place = {name: n for n, name in enumerate(labeled[field])}
        labeled[of_rows] = [place.get(label or "", -1) for label in labels]
    texts = heads is not None
    return {
        "ids": group.pairs,
        "users": [users[user] for user in group.users],
        **labeled,
        "twin": index.twins.tolist() if index else [],
        "heads": heads,
        "chunk": CHUNK,
        "texts": texts,
        "note": group.missing or ("" if texts else "The texts of the dataset were left out (--no-texts)."),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


View = tuple[tuple[str, ...], tuple[str, ...], int, ShownHistory]
"""What a model was shown of the user: ids of posts, plan; and by which seed and history its run picks donors."""


def _chunk(group: Group, rows: Sequence[int], items: Sequence[Pair], *, texts: bool) -> dict[str, Any]:
    """Pairs with everything the models were shown and returned; posts that several pairs share are written once."""
    posts: dict[Post, int] = {}
    pairs: list[dict[str, Any]] = []
    for row, item in zip_longest(rows, items):
        pairs.append({"said": {c: _said(group, row, c, item, posts, texts=texts) for c in group.conditions}})
        if item is None:
            continue
        others = [(n < item.n_best, text) for n, text in enumerate(item.answers) if n not in (0, item.n_best)]
        parts: dict[str, Sequence[Any]] = {"context": item.context, "choices": item.choices, "others": others}
        pairs[-1] |= {
            "question": item.question,
            "chosen": item.chosen,
            "rejected": item.rejected,
            "rubric": [(aspect.label, aspect.evidence, aspect.reason) for aspect in item.rubric],
            "narrative": item.narrative,
            "profile": [posts.setdefault(post, len(posts)) for post in item.profile],
            "topic": item.topic,
            "groups": dict(item.groups),
            **{name: [tuple(part) for part in some] for name, some in parts.items() if some},
        }
    return {"posts": [tuple(post) for post in posts], "pairs": pairs}


def _said(
    group: Group, row: int, condition: str, item: Pair | None, posts: dict[Post, int], *, texts: bool
) -> dict[str, Any]:
    """By model number; posts and plan that several models were shown are written once, as a view. New posts are added
    to `posts`, which has their numbers."""
    numbers: dict[View, int] = {}
    models = {}
    for n, column in group.under(condition):
        detail, settings = column.details[row], group.entries[n].run.settings
        shown = (detail.post_ids, detail.plan, settings.seed, settings.shown)
        outcome = {
            "m": _rounded(float(column.margin[row])),
            "s": [_rounded(score) for score in detail.scores or ()],
            "v": detail.verdicts,
            "f": detail.failure,
            "t": detail.text if texts else (),
            "w": numbers.setdefault(shown, len(numbers)),
        }
        models[str(n)] = {key: value for key, value in outcome.items() if value}
    views: list[dict[str, Any]] = []
    for ids, plan, seed, history in numbers:
        views.append({"ids": ids, "plan": plan if texts else ()})
        if CONDITIONS[condition].donors and item and group.dataset:
            users = group.dataset.users
            donor = pick_donor(item, users, seed, history.donors, history.kind)
            by_id = {post.id: post for post in users.history(donor).posts} if donor else {}
            known = by_id.keys() >= set(ids)  # a condition of another package may have picked somebody else
            lent = [posts.setdefault(by_id[i], len(posts)) for i in ids] if known else []
            views[-1] |= {"donor": donor if known else None, "lent": lent}
    return {"models": models, "views": views}


# --- results of other verbs ---
EVIDENCE = {
    "downstream": ("bon", "ppo", "correlation"),
    "study": ("agreement",),
    "audit": ("audit",),
    "other": ("grade", "license", "train", "build"),
}
"""The kinds of results by page."""


def evidence_data(page: str, inputs: Inputs) -> Iterator[DataFile]:
    """By kind of result, without places on this machine; nothing if there is none."""

    def public(value: Any) -> Any:
        if isinstance(value, str):
            return without_folders(value)
        if isinstance(value, Mapping):
            return {key: public(item) for key, item in value.items()}
        return [public(item) for item in value] if isinstance(value, (list, tuple)) else value

    data: dict[str, list[dict[str, Any]]] = {kind: [] for kind in EVIDENCE[page]}
    for kind, results in data.items():
        for run in inputs.others.get(kind, ()):
            with explain_damage(run.folder):
                results.append({"name": run.folder.name, **public(page_of(run))})
    if any(data.values()):
        yield page, data


def page_of(run: Run) -> dict[str, Any]:
    """What the page of a result shows: its file, texts made of it, and of most verbs the tables that they print."""
    if isinstance(run, BestOfN):
        bon = run.typed
        about = {"policy": bon.policy.spec, "dataset": bon.dataset.label, "trust": bon.grader.trust}
        return {**run.summary, **about}
    if isinstance(run, Ppo):
        ppo = run.typed
        return {
            **run.summary,
            "policy": ppo.policy.spec,
            "model": ppo.model.spec,
            "dataset": ppo.dataset.label,
            "trust": ppo.grader.trust if ppo.grader else None,
            "panels": list(PPO_PANELS.items()),
            "curves": {name: [row[name] for row in run.curves] for name in ("step", *PPO_PANELS)},
        }
    if isinstance(run, Study):
        from prb.study.agreement import claims

        said, lines = claims(run.typed).items(), run.lines()
        gates = [{"name": name, "holds": run.typed.verdicts[name], "says": says} for name, says in said]
        return {**run.summary, "gates": gates, "basis": lines[0]}
    tables = {"tables": [table._asdict() for table in run.numbers()]}
    if isinstance(run, Correlation):
        units = PLURAL[run.typed.unit]
        sentences = [{"set": s.set, "n": s.n, "sentences": list(set_sentences(s, units))} for s in run.typed.sets]
        return {**run.summary, **tables, "families": families(run.typed), "said": sentences, "units": units}
    if isinstance(run, Audit):
        estimates = [{"name": name, **e.as_dict()} for name, e in run.typed.estimates.items()]
        return {"verdict": run.typed.verdict, "dataset": run.typed.dataset.label, "rows": estimates, **tables}
    return tables
