"""`prb cache stats | clear`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import choose, parse, print_json
from prb.config import Settings, config


@config
class CacheStatsConfig(Settings):
    """Show what the cache of model outputs holds, by model."""


@config
class CacheClearConfig(Settings):
    """Delete cached model outputs."""

    model: str | None = None
    """Only of this model, as `prb cache stats` names it."""


def command(args: Sequence[str]) -> None:
    choose("cache", args, {"stats": show_stats, "clear": clear})


def show_stats(args: Sequence[str]) -> None:
    config = parse(CacheStatsConfig, args, "cache stats")
    from prb.cache import Cache
    from prb.reporting.format import show
    from prb.reporting.results import cache_table

    cache = Cache()
    entries, size = cache.stats(), cache.path.stat().st_size
    if config.json:
        print_json({"path": str(cache.path), "bytes": size, "entries": entries})
    else:
        show(cache_table(cache.path, size, entries))


def clear(args: Sequence[str]) -> None:
    config = parse(CacheClearConfig, args, "cache clear")
    from prb.cache import Cache

    print(f"{Cache().clear(config.model):,} entries removed")
