"""What a head that ships says of `mirror`: its scores are recorded for the first table, the figures documented.

python benchmarks/embedded.py qwen2.5-1.5b            (`make embedded-model` runs it on a new head)
python benchmarks/embedded.py qwen2.5-1.5b test hard  (these splits only)

Each call is a look at `test`, `hard` and `restraint`, or at the splits named. Nothing may be chosen by what it prints.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
from record import ROOT, write_between

import prb
from prb.models.personal import EMBEDDED
from prb.reporting.format import MISSING, Table, interval, markdown, number, p_value, percent, show

CONDITIONS = ("none", "profile", "shuffled")
POSTS = {"test": 40, "hard": 160, "restraint": 40}
"""By split: all posts of a user."""


def main() -> None:
    lm, *splits = sys.argv[1:]
    head = f"personal?lm={lm}"
    lines: list[bytes] = []
    rows = []
    for split in splits or POSTS:
        k = POSTS[split]
        out = ROOT / "runs" / f"embedded-{lm}-{split}"
        result = prb.evaluate(model=head, dataset="mirror", split=split, k=k, condition=CONDITIONS, out=out)
        lines += recorded(out)
        rows.append(row(split, result.summary))
    (EMBEDDED / lm / "recorded.jsonl").write_bytes(b"".join(lines))
    columns = ("split", "accuracy", "person effect", "gain", "control", "by tier")
    table = Table("", columns, tuple(rows), ())
    write_between(f"embedded {lm}", markdown(table), ROOT / "docs" / "training.md")
    show(table)


def recorded(run: Path) -> list[bytes]:
    """The scores of a run with as many digits as float32 has."""
    outcomes = [orjson.loads(line) for line in (run / "outcomes.jsonl").read_bytes().splitlines()]
    return [
        orjson.dumps(
            {
                "pair": outcome["pair"],
                "condition": outcome["condition"],
                "scores": [float(f"{score:.7g}") for score in outcome["scores"]],
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        for condition in CONDITIONS
        for outcome in outcomes
        if outcome["condition"] == condition
    ]


def row(split: str, summary: dict[str, Any]) -> tuple[str, ...]:
    result = next(each for each in summary["results"] if each["condition"] == "profile")
    effect = result["person_effect"]
    contrasts = {
        each["kind"]: f"{number(each['value'], scale=100, sign=True)}, p {p_value(each['p'])}"
        for each in summary["contrasts"]
    }
    tiers = ", ".join(f"{tier} {percent(each['value'])}" for tier, each in result["by_tier"].items())
    return (
        f"`{split}`, {result['accuracy']['n']} rows",
        interval(result["accuracy"]),
        f"{interval(effect)}, p {p_value(effect['p'])}" if effect else MISSING,
        contrasts["gain"],
        contrasts["control"],
        tiers,
    )


if __name__ == "__main__":
    main()
