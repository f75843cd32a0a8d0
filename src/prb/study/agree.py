"""Judgements → a verdict: agreement, preference, parity of quality, reliability, what to drop, how many more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prb.errors import BadInput, GateFailed, unknown
from prb.runs import read_lines
from prb.stats.agreement import (
    cohen_kappa,
    dawid_skene,
    equivalence,
    fleiss_kappa,
    gwet_ac1,
    items_for_equivalence,
    items_for_share,
    krippendorff_alpha,
    mean_cohen,
    mean_size,
    vote_correlation,
    with_interval,
)
from prb.stats.estimate import Floats, Ints, codes, share
from prb.study.config import AgreeConfig
from prb.study.design import draw
from prb.study.forms import CRITERIA
from prb.study.opinions import ratings_given, said_of_items

Row = dict[str, Any]
DIFFERENCES = ("preference", "quality", "unclear")
VERDICTS = ("parity", "preference", "personal", "agreement")
CREDIT = {"chosen": 1.0, "neither": 0.5, "rejected": 0.0}
GOOD_ALPHA = 0.667
"""Below it Krippendorff (2004, Content Analysis) draws no conclusions at all."""
POOR = 2.5
HALF_WIDTH = 0.05
MANY_RATERS = 12


def agree(config: AgreeConfig) -> dict[str, Any]:
    rows = _rows(config.study)
    return report(rows, margin=config.margin, min_checks=config.min_checks, draws=config.draws, seed=config.seed)


def _rows(where: str) -> list[Row]:
    if where.endswith(".jsonl"):
        if not Path(where).is_file():
            raise BadInput(f"{where} does not exist")
        rows = list(read_lines(Path(where)))
        if any("annotator" not in row or "before" not in row for row in rows):
            raise BadInput(f"{where} holds no judgements; `prb study export` writes them as judgements.jsonl")
        return rows
    from prb.study.database import open_study, study_row
    from prb.study.export import judgements

    database = open_study(where)
    try:
        with database.read() as connection:
            if study_row(connection)["kind"] != "validate":
                raise BadInput(
                    "agreement needs a study of kind validate; `prb study export` writes what this one holds"
                )
            return judgements(connection)
    finally:
        database.close()


def report(
    rows: Sequence[Row], *, margin: float = 0.5, min_checks: float = 0.5, draws: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Everything `prb study agree` says, as data."""
    checks = attention(rows)
    out = sorted(a for a, (passed, asked) in checks.items() if passed < min_checks * asked)
    kept = [r for r in rows if not r["check"] and not r["skipped"] and r["annotator"] not in out]
    unspoilt = [r for r in kept if not r["revised"]]
    result: dict[str, Any] = {
        "counts": {
            "items": len({r["item"] for r in kept}),
            "annotators": len({r["annotator"] for r in kept}),
            "judgements": len(kept),
            "finished": sum(r["after"] is not None for r in kept),
            "skipped": sum(bool(r["skipped"]) for r in rows if not r["check"]),
            "revised": len(kept) - len(unspoilt),
            "left_out": out,
        },
        "agreement": _agreement(kept, unspoilt, draws, seed),
        "preference": {"before": _accuracy(unspoilt, "before"), "after": _accuracy(kept, "after")},
        "quality": _quality(unspoilt, margin, seed),
        "personal": _personal(kept),
        "annotators": _reliability(kept, checks),
        "drop": items_to_drop(kept),
        "ratings": ratings_given(unspoilt),
        "items": said_of_items(kept),
    }
    result["planning"] = _planning(result, kept, margin)
    result["verdicts"] = verdicts(result)
    return result


def attention(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Of each annotator: checks passed, checks answered. Passed: not preferred, and its relevance rated 1 or 2."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        if row["check"] and row["before"] and not row["skipped"]:
            passed, asked = found.get(row["annotator"], (0, 0))
            good = row["before"] != "rejected" and row["ratings"]["rejected"]["relevance"] <= 2
            found[row["annotator"]] = passed + good, asked + 1
    return found


class Votes:
    """Units × raters of one question that was asked."""

    def __init__(self, rows: Sequence[Row], value: Callable[[Row], int | None], unit: Callable[[Row], str]) -> None:
        said = [(unit(r), r["annotator"], r["group"], v) for r in rows if (v := value(r)) is not None]
        self.units = list(dict.fromkeys(u for u, *_ in said))
        self.raters = sorted({a for _, a, *_ in said})
        group = {u: g for u, _, g, _ in said}
        self.groups: Ints = codes([group[u] for u in self.units])
        self.matrix: Ints = np.full((len(self.units), len(self.raters)), -1, dtype=np.int64)
        at, who = {u: n for n, u in enumerate(self.units)}, {a: n for n, a in enumerate(self.raters)}
        for u, a, _, v in said:
            self.matrix[at[u], who[a]] = v


def _label(item: str) -> int:
    """Which of an item's answers is called 0: a coin, so that agreeing on the label is not agreeing by name."""
    return draw(0, "label", item) % 2


def _choice(row: Row, field: str) -> int | None:
    if row[field] is None:
        return None
    return 2 if row[field] == "neither" else (_label(row["item"]) + (row[field] == "rejected")) % 2


def _agreement(kept: Sequence[Row], unspoilt: Sequence[Row], draws: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    asked: dict[str, tuple[Sequence[Row], Callable[[Row], int | None]]] = {
        "before": (unspoilt, lambda r: _choice(r, "before")),
        "after": (kept, lambda r: _choice(r, "after")),
        "difference": (kept, lambda r: DIFFERENCES.index(r["difference"]) if r["difference"] else None),
    }
    for name, (rows, value) in asked.items():
        votes = Votes(rows, value, lambda r: r["item"])
        found[name] = _coefficients(votes, draws, seed)
    for criterion in CRITERIA:
        doubled = [
            {**r, "item": f"{r['item']} {a}", "score": r["ratings"][a][criterion]}
            for r in unspoilt
            for a in r["ratings"]
        ]
        votes = Votes(doubled, lambda r: r["score"] - 1, lambda r: r["item"])
        statistic = partial(krippendorff_alpha, values=5, ordinal=True)
        found[criterion] = {"alpha": _interval(statistic, votes, draws, seed)}
    return found


def _coefficients(votes: Votes, draws: int, seed: int) -> dict[str, Any]:
    many = len(votes.raters) > MANY_RATERS  # couples grow with the square; their mean is then given without interval
    return {
        "alpha": _interval(partial(krippendorff_alpha, values=3), votes, draws, seed),
        "fleiss": _interval(partial(fleiss_kappa, values=3), votes, draws, seed),
        "ac1": _interval(partial(gwet_ac1, values=3), votes, draws, seed),
        "cohen": _interval(partial(mean_cohen, values=3), votes, 0 if many else draws, seed),
        "cohen_pairs": [] if many else _couples(votes),
    }


def _interval(statistic: Callable[[Ints], float | None], votes: Votes, draws: int, seed: int) -> dict[str, Any]:
    return with_interval(statistic, votes.matrix, votes.groups, draws=draws, seed=seed).as_dict()


def _couples(votes: Votes) -> list[dict[str, Any]]:
    found = []
    for i, a in enumerate(votes.raters):
        for j, b in enumerate(votes.raters[:i]):
            kappa = cohen_kappa(votes.matrix[:, i], votes.matrix[:, j], 3)
            shared = int(((votes.matrix[:, i] >= 0) & (votes.matrix[:, j] >= 0)).sum())
            found.append({"annotators": [b, a], "kappa": kappa, "n": shared})
    return found


def _accuracy(rows: Sequence[Row], field: str) -> dict[str, Any]:
    """How often people prefer the labelled answer; neither counts half."""
    said = [r for r in rows if r[field] is not None]
    credit: Floats = np.array([CREDIT[r[field]] for r in said], dtype=np.float64)
    return share(credit, codes([r["cluster"] for r in said])).as_dict()


def _quality(rows: Sequence[Row], margin: float, seed: int) -> dict[str, Any]:
    rated = [r for r in rows if r["ratings"]]
    plain, mirrored = [r for r in rated if not r["mirror"]], [r for r in rated if r["mirror"]]
    found: dict[str, Any] = {"margin": margin}
    for criterion in CRITERIA:
        signed = _differences(plain, criterion)
        sizes = mean_size(_differences(mirrored, criterion, by="group"), seed=seed)
        parity = equivalence(signed, margin).as_dict() if len(signed) else None
        means = {a: _mean([r["ratings"][a][criterion] for r in rated]) for a in ("chosen", "rejected")}
        found[criterion] = {"parity": parity, "mirror_size": sizes.as_dict() if sizes.n else None, "means": means}
    return found


def _differences(rows: Sequence[Row], criterion: str, by: str = "item") -> Floats:
    """Mean difference of the two answers for each item; for twins of one answer text against the other."""
    found: dict[str, list[float]] = {}
    for r in rows:
        sign = 1 if r["item"] == r[by] else -1  # a group is named after one of its twins
        delta = r["ratings"]["chosen"][criterion] - r["ratings"]["rejected"][criterion]
        found.setdefault(r[by], []).append(sign * delta)
    return np.array([np.mean(d) for d in found.values()], dtype=np.float64)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def majority(values: Sequence[str]) -> str | None:
    """What more than half of them say."""
    top = Counter(values).most_common(1)
    return top[0][0] if top and 2 * top[0][1] > len(values) else None


def _by_item(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for r in rows:
        found.setdefault(r["item"], []).append(r)
    return found


def _personal(rows: Sequence[Row]) -> dict[str, Any]:
    """Share of items that a majority says differ mainly in personal preference."""
    said = _by_item([r for r in rows if r["difference"]])
    values = np.array(
        [majority([r["difference"] for r in rs]) == "preference" for rs in said.values()], dtype=np.float64
    )
    clusters = codes([rs[0]["cluster"] for rs in said.values()])
    judged = Counter(r["difference"] for rs in said.values() for r in rs)
    return {"items": share(values, clusters).as_dict(), "judgements": {d: judged[d] for d in DIFFERENCES}}


def _reliability(rows: Sequence[Row], checks: dict[str, tuple[int, int]]) -> list[dict[str, Any]]:
    votes = Votes(rows, lambda r: _choice(r, "after"), lambda r: r["item"])
    accuracy = dawid_skene(votes.matrix, 3).accuracy if len(votes.units) else np.zeros(0)
    people = []
    for name, reliable in zip(votes.raters, accuracy, strict=True):
        own = [r for r in rows if r["annotator"] == name and r["after"]]
        people.append(
            {
                "annotator": name,
                "judgements": len(own),
                "reliability": float(reliable),
                "with_label": _mean([CREDIT[r["after"]] for r in own]),
                "checks": checks.get(name, (0, 0)),
            }
        )
    return people


def items_to_drop(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Items that people do not confirm, with every reason."""
    found = []
    for item, said in _by_item(rows).items():
        after = [r["after"] for r in said if r["after"]]
        if len(after) < 2:
            continue
        reasons = []
        first = majority(after)
        if first in ("rejected", "neither"):
            reasons.append(f"most prefer {'the other answer' if first == 'rejected' else 'neither'}")
        if first is None:
            reasons.append("no majority for either answer")
        if majority([r["difference"] for r in said if r["difference"]]) == "quality":
            reasons.append("most say the answers differ in quality")
        for answer in ("chosen", "rejected"):
            low = [
                c
                for c in CRITERIA
                if (m := _mean([r["ratings"][answer][c] for r in said if r["ratings"]])) and m < POOR
            ]
            reasons += [f"{c} of the {answer} answer is poor" for c in low]
        if reasons:
            found.append({"item": item, "reasons": reasons, "n": len(after)})
    return found


def _planning(result: dict[str, Any], rows: Sequence[Row], margin: float) -> dict[str, Any]:
    """How many items the two main claims would need, from the spread seen here."""
    spreads = [q["parity"]["deviation"] for c in CRITERIA if (q := result["quality"][c])["parity"]]
    known = [s for s in spreads if s]
    said = [r for r in rows if r["after"]]
    value = result["preference"]["after"]["value"]
    overlap = len(said) / max(1, len({r["item"] for r in said}))
    credit = np.array([CREDIT[r["after"]] for r in said], dtype=np.float64)
    correlation = vote_correlation(credit, codes([r["item"] for r in said])) if said else None
    needed = None
    if value is not None and correlation is not None:
        bounded = min(max(value, 0.05), 0.95)
        needed = items_for_share(bounded, HALF_WIDTH, raters=max(1, round(overlap)), correlation=correlation)
    return {
        "items_for_parity": max(items_for_equivalence(s, margin) for s in known) if known else None,
        "items_for_preference": needed,
        "half_width": HALF_WIDTH,
        "vote_correlation": correlation,
    }


def verdicts(result: dict[str, Any]) -> dict[str, bool]:
    quality = [result["quality"][c] for c in CRITERIA]
    shown = [q for q in quality if q["parity"] or q["mirror_size"]]
    signed = all(q["parity"]["equivalent"] for q in shown if q["parity"])
    sizes = [q["mirror_size"]["high"] for q in shown if q["mirror_size"]]
    small = all(high is not None and high < result["quality"]["margin"] for high in sizes)
    alpha = result["agreement"]["after"]["alpha"]["value"]
    return {
        "parity": bool(shown) and signed and small,
        "preference": _above_half(result["preference"]["after"]),
        "personal": _above_half(result["personal"]["items"]),
        "agreement": alpha is not None and alpha >= GOOD_ALPHA,
    }


def _above_half(estimate: dict[str, Any]) -> bool:
    return estimate["low"] is not None and estimate["low"] > 0.5


def check_names(names: str) -> list[str]:
    """The requirements asked for; a wrong name is found before any work."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in VERDICTS:
            raise unknown("requirement", name, VERDICTS)
    return wanted


def require(names: str, result: dict[str, Any]) -> None:
    """A dataset may go on only if people confirm what is asked for."""
    failed = [name for name in check_names(names) if not result["verdicts"][name]]
    if failed:
        from prb.study.sentences import SENTENCES

        raise GateFailed("; ".join(f"{name} does not hold: {SENTENCES[name](result)}" for name in failed))
