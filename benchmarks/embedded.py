"""What the head that ships says of `mirror`: its scores are recorded for the first table, the figures documented.

python benchmarks/embedded.py   (`make embedded-model` runs it on a new head)

Each call looks at the splits `test`, `hard` and `restraint`. Nothing may be chosen by what it prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from record import ROOT, write_between

import prb
from prb.reporting.format import MISSING, Table, interval, markdown, number, p_value, percent, show

HEAD = "personal?lm=smollm2"
CONDITIONS = ("none", "profile", "shuffled")
POSTS = {"test": 40, "hard": 160, "restraint": 40}
"""By split: all posts of a user."""
RECORDED = ROOT / "src" / "prb" / "data" / "mirror" / "personal.jsonl"


def main() -> None:
    lines: list[bytes] = []
    rows = []
    for split, k in POSTS.items():
        out = ROOT / "runs" / f"embedded-{split}"
        result = prb.evaluate(model=HEAD, dataset="mirror", split=split, k=k, condition=CONDITIONS, out=out)
        lines += recorded(out)
        rows.append(row(split, result.summary))
    RECORDED.write_bytes(b"".join(lines))
    columns = ("split", "accuracy", "person effect", "gain", "control", "by tier")
    table = Table("", columns, tuple(rows), ())
    write_between("embedded", markdown(table), ROOT / "docs" / "training.md")
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
