"""Audit page: how much of a benchmark can be solved without knowing the user."""

from __future__ import annotations

from typing import Any

from prb.reporting.gather import Inputs, dataset_label, prepared
from prb.reporting.tables import audit_estimates, audit_tables


def build(inputs: Inputs) -> list[tuple[str, Any]] | None:
    audits = prepared(inputs, "audit", audit)
    return [("audit", audits)] if audits else None


def audit(result: dict[str, Any]) -> dict[str, Any]:
    rows = [{"name": name, **estimate} for name, estimate in audit_estimates(result)]
    tables = [table._asdict() for table in audit_tables(result)]
    return {"verdict": result["verdict"], "dataset": dataset_label(result), "rows": rows, "tables": tables}
