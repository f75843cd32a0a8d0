"""Who may not be treated as independent: people linked by mirror rows form one cluster."""

from __future__ import annotations

from collections.abc import Iterable


def components(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each linked name to the smallest name of its connected component (union-find with path halving)."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for a, b in links:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return {name: root(name) for name in parent}
