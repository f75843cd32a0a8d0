"""Study page: what human annotators found."""

from __future__ import annotations

from typing import Any

from prb.reporting.gather import Inputs, prepared


def build(inputs: Inputs) -> list[tuple[str, Any]] | None:
    studies = prepared(inputs, "agreement", study)
    return [("study", studies)] if studies else None


def study(result: dict[str, Any]) -> dict[str, Any]:
    """The whole result, with its verdicts in words."""
    from prb.study.verdict import SENTENCES, verdict

    lines = verdict(result)
    gates = [{"name": name, "holds": result["verdicts"][name], "says": say(result)} for name, say in SENTENCES.items()]
    return {**result, "gates": gates, "basis": lines[0], "next": lines[-1]}
