"""`prb leaderboard SUBMISSIONS --out SITE`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import finished, parse, print_json
from prb.types import visible


def command(args: Sequence[str]) -> None:
    from prb.reporting.submissions import LeaderboardConfig

    config = parse(LeaderboardConfig, args, "leaderboard")
    from prb.api import leaderboard

    result, failed = finished(lambda: leaderboard(config))
    if config.json:
        site = str(result.index) if result.index else None
        print_json({"site": site, "accepted": list(result.accepted), "refused": dict(result.refused)})
    else:
        for name in result.accepted:
            print(visible(f"accepted: {name}"))
        for name, reason in result.refused.items():
            print(visible(f"refused:  {name}: {reason}"))
        if result.index:
            print(f"report: {result.index}")
    if failed:
        raise failed
