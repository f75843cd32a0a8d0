"""Nothing that users rely on changes unnoticed: every verb on small inputs, against `tests/golden/expected`.

Where a change is intended, `python -m tests.golden.write CASE` records it and the difference is reviewed in git.
"""

from __future__ import annotations

from itertools import islice

import pytest

pytest.importorskip("httpx2", reason="needs the api extra")
pytest.importorskip("sqlalchemy", reason="needs the study extra")
pytest.importorskip("prometheus_client", reason="needs the serve extra")
pytest.importorskip("matplotlib", reason="needs the figures extra")

from tests.golden.comparing import EXPECTED, differences, load, rounded
from tests.golden.surface import ALL, produce

SHOWN = 30


@pytest.fixture
def own_memory() -> None:
    """Each case has a cache of its own, beside its working folder."""


@pytest.mark.parametrize("name", ALL)
def test_results_are_as_expected(name):
    found = differences(load(name), rounded(produce(name)))
    shown = list(islice(found, SHOWN))
    more = sum(1 for _ in found)
    lines = [*shown, f"and {more} more"] if more else shown
    assert not shown, f"{name} differs from {(EXPECTED / name).with_suffix('.json')}:\n" + "\n".join(lines)


def test_every_expected_file_belongs_to_a_case():
    assert {path.stem for path in EXPECTED.iterdir()} == set(ALL)


def test_only_the_last_digits_of_a_number_may_differ():
    assert list(differences([1.0, 0.0, 5], [1.0 + 1e-9, 1e-9, 5.0])) == []
    assert list(differences([1.0, True], [1.0001, 1])) == ["$[0]: 1.0001, expected 1.0", "$[1]: 1, expected true"]
    assert list(differences({"old": None}, {"new": 1})) == ["$.old: missing, expected null", "$.new: unexpected 1"]
