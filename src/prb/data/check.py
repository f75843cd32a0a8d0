"""Every problem of a dataset with its line: errors that stop an evaluation, warnings a person should look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from prb.data.load import Scan, prepared
from prb.data.schema import BUILD, Problem, Task
from prb.data.source import Source
from prb.text.overlap import LEAK_WORDS, SharedWording, hidden_texts
from prb.types import Item, Pair

CATEGORIES = ("Art_and_Entertainment", "Lifestyle_and_Personal_Development", "Society_and_Culture")
LENGTH_RATIO = 2.0


def check(source: Source, *, task: Task = "pairs", rules: Literal["none", "mirror"] = "none") -> list[Problem]:
    """Errors first, then warnings, each in the order of the file."""
    scan = Scan(task)
    for ordinal, row in enumerate(source.rows()):
        scan.add(ordinal, row)
    scan.close()
    if not scan.ids and not scan.problems:
        return [Problem(source.name, 0, "holds no rows")]
    good = list(_good_items(source, scan, task)) if rules == "mirror" else _good_items(source, scan, task)
    warnings = [Problem(place, line, what, "warning") for place, line, item in good for what in row_warnings(item)]
    if rules == "mirror":
        from prb.data.rules import mirror_problems

        scan.problems += mirror_problems([(p, n, item) for p, n, item in good if isinstance(item, Pair)])
    return scan.problems + warnings


def _good_items(source: Source, scan: Scan, task: Task) -> Iterator[tuple[str, int, Item]]:
    for ordinal, row in enumerate(source.rows()):
        if ordinal not in scan.bad:
            yield row.place, row.line, BUILD[task](prepared(row, task))


def row_warnings(item: Item) -> Iterator[str]:
    if item.category not in CATEGORIES and item.category:
        yield f"category {item.category!r} is none of {', '.join(CATEGORIES)}"
    if isinstance(item, Pair):
        yield from _leaks(item)
        longer, shorter = sorted((len(item.chosen), len(item.rejected)), reverse=True)
        if longer > LENGTH_RATIO * shorter:
            yield f"answers of very different length: {len(item.chosen)} and {len(item.rejected)} characters"


def _leaks(pair: Pair) -> Iterator[str]:
    """Hidden wording that a reward model can read: the rubric must not stand in a post or an answer."""
    hidden = SharedWording(hidden_texts(pair.narrative, pair.rubric))
    seen = {"`chosen`": pair.chosen, "`rejected`": pair.rejected}
    seen |= {f"post {post.id!r}": post.text for post in pair.profile}
    for where, text in seen.items():
        if shared := hidden.first_in(text):
            yield f"{where} shares {LEAK_WORDS} words in a row with the rubric or narrative: {shared!r}"
