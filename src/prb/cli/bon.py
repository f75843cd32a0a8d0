"""`prb bon`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prb.cli.parse import parse_or_repeat, refuse_repeated
from prb.cli.verbs import print_json

if TYPE_CHECKING:
    from prb.downstream.bon import BonConfig


def command(args: Sequence[str]) -> None:
    config = _config(args)
    from prb.downstream.bon import best_of_n
    from prb.progress import watch
    from prb.reporting.downstream_figures import write_bon
    from prb.reporting.downstream_tables import bon_tables
    from prb.reporting.format import show

    with watch(config.quiet) as progress:
        result = best_of_n(config, progress=progress)
        write_bon(result.summary, result.folder, progress)
    if config.json:
        print_json(result.summary)
        return
    show(*bon_tables(result.summary))
    print(f"run: {result.folder}")  # noqa: T201


def _config(args: Sequence[str]) -> BonConfig:
    """A run that is repeated keeps its models; `--model` adds to them."""
    from prb.downstream.bon import BonConfig, reward_models

    refuse_repeated(args, "--condition")

    def held(content: dict[str, Any]) -> dict[str, Any]:
        return {**content["bon"], "model": reward_models(content.get("models", {}))}

    return parse_or_repeat(BonConfig, args, "bon", held)
