"""A correlation result as sentences and as tables: for the terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prb.reporting.table import Table, p_value, stars

LEVEL = 0.05
SAID = {
    "spearman": "Spearman's ρ",
    "kendall": "Kendall's τ-b",
    "weighted_kendall": "weighted τ",
    "pearson": "Pearson's r",
    "ndcg": "NDCG",
    "rbo": "RBO",
    "regret": "top-1 regret",
}
NOTES = (
    "p: permutation test (≈: sampled), two-sided for correlations, one-sided for NDCG, RBO and regret. Holm over all "
    "columns of a measure; stars: p < .05, .01, .001 after it. Ties share ranks.",
    "over models: 95 % of resamples of the models (10 or more). measured again: the same models, their scores redrawn "
    "within their own uncertainty.",
)


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What may be said of it, set by set."""
    return [sentence for part in result["sets"] for sentence in _of_set(part, len(result["sets"]) > 1)]


def _of_set(part: Mapping[str, Any], several: bool) -> Iterator[str]:
    before = f"{part['set'].capitalize()}: " if several else ""
    if part["problem"]:
        yield before + part["problem"] + "."
        return
    spoken = part["correlations"][0]["measure"]
    cells = [cell for cell in part["correlations"] if cell["measure"] == spoken]
    for cell in cells:
        yield before + _claim(cell, part["n"], len(cells))
    for row in part["comparisons"]:
        if row["measure"] == spoken:
            yield before + _contrast(row, part["n"])
    yield before + _power(part["power"], part["n"])


def _claim(cell: Mapping[str, Any], n: int, columns: int) -> str:
    p = cell["p_holm"]
    told = f"{SAID[cell['measure']]} {cell['value']:.2f}, {_p(p)}" + (
        f" corrected for {columns} tests" if columns > 1 else ""
    )
    what = f"{cell['bench']} as a predictor of {cell['downstream']}"
    if p >= LEVEL:
        return f"With {n} models {what} cannot be told from chance ({told})."
    if cell["measure"] != "regret" and cell["value"] < 0:
        return f"With {n} models {what} is worse than chance: it ranks them the other way round ({told})."
    return f"With {n} models {what} is better than chance ({told})."


def _contrast(row: Mapping[str, Any], n: int) -> str:
    told = f"{SAID[row['measure']]} differs by {abs(row['difference']):.2f}, {_p(row['p_holm'])}"
    lower_wins = row["measure"] == "regret"
    better, worse = (
        (row["first"], row["second"]) if (row["difference"] > 0) != lower_wins else (row["second"], row["first"])
    )
    if row["p_holm"] >= LEVEL:
        said = f"That {better} predicts {row['downstream']} better than {worse}"
        return f"{said} cannot be told from chance with {n} models ({told})."
    return f"{better} predicts {row['downstream']} better than {worse} ({told})."


def _power(power: Mapping[str, Any], n: int) -> str:
    needed = "more than 512" if power["needed"] is None else str(power["needed"])
    return (
        f"A true ρ of {power['rho']:g} would be seen in {100 * power['power']:.0f} % of studies with {n} models; "
        f"{needed} models would be needed for {100 * power['wanted']:.0f} %."
    )


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def tables(result: Mapping[str, Any]) -> Iterator[Table]:
    for part in result["sets"]:
        if part["problem"]:
            continue
        title = f"{part['set'].capitalize()}: {part['n']}" + _left_out(result)
        columns = ("benchmark", "downstream", "measure", "value", "over models", "measured again", "p", "p (Holm)")
        yield Table(title, columns, tuple(map(_row, part["correlations"])), NOTES)
        if part["comparisons"]:
            note = "Swap test: each model's two ranks change places. Pearson: Williams' test, with 20 or more models."
            heads = ("benchmarks", "downstream", "measure", "difference", "test", "p", "p (Holm)")
            yield Table(
                "Two benchmarks against the same downstream", heads, tuple(map(_compared, part["comparisons"])), (note,)
            )


def _left_out(result: Mapping[str, Any]) -> str:
    return f" ({len(result['left_out'])} with missing scores left out)" if result["left_out"] else ""


def _row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    ends = [_ends(cell[name]) for name in ("interval", "noise")]
    p = p_value(cell["p"]) if cell["exact"] else f"≈ {p_value(cell['p'])}"
    value = f"{cell['value']:.3f}{stars(cell['p_holm'])}"
    return cell["bench"], cell["downstream"], SAID[cell["measure"]], value, *ends, p, p_value(cell["p_holm"])


def _ends(found: tuple[float, float] | None) -> str:
    return "–" if found is None else f"[{found[0]:.2f}, {found[1]:.2f}]"


def _compared(row: Mapping[str, Any]) -> tuple[str, ...]:
    difference = f"{row['difference']:+.3f}{stars(row['p_holm'])}"
    names = f"{row['first']} − {row['second']}"
    return (
        names,
        row["downstream"],
        SAID[row["measure"]],
        difference,
        row["test"],
        p_value(row["p"]),
        p_value(row["p_holm"]),
    )


_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "≈": r"$\approx$",
    "−": r"$-$",
    "–": "--",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
}


def latex(table: Table) -> str:
    """A booktabs table; stars and Greek letters as LaTeX has them."""
    cells = [table.columns, *table.rows]
    head, *body = [" & ".join(map(_tex, row)) + r" \\" for row in cells]
    lines = [r"\begin{tabular}{lll" + "r" * (len(table.columns) - 3) + "}", r"\toprule", head, r"\midrule", *body]
    notes = [f"% {line}" for line in (table.title, *table.notes)]
    return "\n".join([*notes, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    return "".join(_ESCAPES.get(c, c) for c in text)
