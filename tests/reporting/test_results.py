"""What verbs other than evaluations print."""

from __future__ import annotations

from prb.reporting.results import build_lines


def test_a_build_tells_why_requests_failed() -> None:
    card = {
        "counts": {"rows": 0, "people": 0, "mirror_rows": 0, "rejected": 0, "rejected_by_gate": {}},
        "cost": {},
        "usd": 0.0,
        "stopped_after": None,
        "user_blind_accuracy": {},
        "failures": {"HTTP 400": 6},
    }
    assert build_lines(card)[-1] == "failed requests: 6 × HTTP 400"
