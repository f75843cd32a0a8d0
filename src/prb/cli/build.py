"""`prb build`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prb.building.config import BuildConfig
from prb.cli.parse import parse
from prb.cli.verbs import print_json

if TYPE_CHECKING:
    from prb.building.ledger import CostEstimate


def command(args: Sequence[str]) -> None:
    config = parse(BuildConfig, args, "build")
    from prb.building.run import build
    from prb.progress import watch

    with watch(config.quiet) as progress:
        result = build(config, progress=progress)
    if result.estimate:
        _show_estimate(result.estimate, config.json)
        return
    if config.json:
        print_json(result.card)
        return
    for line in _summary(result.card):
        print(line)  # noqa: T201
    rows = result.card["counts"]["rows"] and not result.stopped_after
    print(f"build: {result.folder}" + (f"   try: prb evaluate --dataset {result.folder}/pairs.jsonl" if rows else ""))  # noqa: T201


def _show_estimate(estimated: CostEstimate, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json({**asdict(estimated), "usd": estimated.usd})
        return
    print(f"{estimated.records} records; if every reply can be read and every pair passes in its first round:")  # noqa: T201
    for stage, cost in estimated.stages.items():
        figures = f"{cost.calls:>7,} calls{cost.tokens_in:>12,} in{cost.tokens_out:>11,} out{cost.usd:>11.4f} $"
        print(f"  {stage:<9}{figures}")  # noqa: T201
    print(f"  in all: about ${estimated.usd:.4f}; pairs that fail a gate are written anew and cost more")  # noqa: T201


def _summary(card: dict[str, Any]) -> list[str]:
    counts = card["counts"]
    calls = sum(cost["calls"] for cost in card["cost"].values())
    paid = f"{calls:,} calls, ${card['usd']:.4f}"
    if card["stopped_after"]:
        return [
            f"stopped after stage {card['stopped_after']!r}, as asked: {paid}; the same command without --until goes on"
        ]
    lines = [f"{counts['rows']} rows of {counts['people']} people ({counts['mirror_rows']} mirror rows)"]
    if counts["rejected"]:
        by_gate = ", ".join(f"{gate} {n}" for gate, n in counts["rejected_by_gate"].items())
        lines.append(f"{counts['rejected']} rejected: {by_gate} (rejects.jsonl says why)")
    for name, value in card["user_blind_accuracy"].items():
        right = "not measured, too few pairs" if value is None else f"right on {value:.1%} without the person"
        lines.append(f"{name}: {right}")
    lines.append(paid)
    if counts["rejected_by_gate"].get("endpoint"):
        lines.append("some calls failed at the endpoint; the same command tries them again")
    return lines
