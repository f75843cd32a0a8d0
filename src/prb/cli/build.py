"""`prb build`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from prb.building.config import BuildConfig
from prb.cli.parse import parse
from prb.cli.verbs import print_json


def command(args: Sequence[str]) -> None:
    config = parse(BuildConfig, args, "build")
    from prb.building.run import build
    from prb.progress import watch
    from prb.reporting.format import show
    from prb.reporting.tables import build_estimate, build_lines

    with watch(config.quiet) as progress:
        result = build(config, progress=progress)
    if result.estimate:
        estimate = {**asdict(result.estimate), "usd": result.estimate.usd}
        print_json(estimate) if config.json else show(build_estimate(estimate))
        return
    if config.json:
        print_json(result.card)
        return
    print("\n".join(build_lines(result.card)))  # noqa: T201
    rows = result.card["counts"]["rows"] and not result.stopped_after
    print(f"build: {result.folder}" + (f"   try: prb evaluate --dataset {result.folder}/pairs.jsonl" if rows else ""))  # noqa: T201
