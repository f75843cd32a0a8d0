"""Files in RewardBench's two formats, written here by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load, load_pairs
from prb.data.source import open_source
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from prb.stats.credit import SECTIONS, rewardbench_score
from tests.data.named.reading import read
from tests.runs import result

Write = Callable[..., Path]
FIRST = {"id": 0, "prompt": "Name a fruit.", "chosen": "An apple.", "rejected": "A brick, of course.", "subset": "chat"}
SECOND = {
    "id": "math-7",
    "prompt": "What is 2 + 2?",
    "chosen": ["4"],
    "rejected": ["5", "22, as everybody knows", "3"],
    "num_correct": 1,
    "subset": "math",
}


def spec(path: Path) -> str:
    return f"rewardbench?path={path}"


def test_several_answers_stay_one_row(write_jsonl) -> None:
    several = {**SECOND, "chosen": ["4", "four"], "id": "tied:7", "subset": "Ties"}
    first, second, third = load_pairs(spec(write_jsonl([FIRST, SECOND, several])))
    assert first.answers == ("An apple.", "A brick, of course.")
    assert (second.id, second.user, second.n_best) == ("math-7", "math-7", 1)
    assert second.answers == ("4", "5", "22, as everybody knows", "3")
    assert (third.id, third.answers[:2], third.n_best) == ("Ties-tied:7", ("4", "four"), 2)


def test_user_and_profile_are_kept(write_jsonl) -> None:
    (pair,) = load_pairs(
        spec(write_jsonl([{**FIRST, "user_id": "ann", "profile": "I like apples.", "split": "filtered"}]))
    )
    assert (pair.user, pair.profile[0].text, pair.split) == ("ann", "I like apples.", None)


def test_parquet_and_rows_without_id_or_subset_are_read_too(tmp_path) -> None:
    path = tmp_path / "set.parquet"
    rows = [{key: FIRST[key] for key in ("prompt", "chosen", "rejected")}] * 2
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load(spec(path)).index.ids == ["all-1", "all-2"]


def test_of_the_two_parts_on_the_hub_the_filtered_one_is_used(write_jsonl) -> None:
    rows = [{**FIRST, "split": "raw"}, {**FIRST, "id": 1, "split": "raw"}, {**FIRST, "split": "filtered"}]
    assert load(spec(write_jsonl(rows))).index.ids == ["chat-0"]


# a file given by its path alone


def test_the_first_row_tells_the_format_and_the_name_says_it(write_jsonl) -> None:
    path = write_jsonl([FIRST])
    for place in (path, path.parent):
        assert open_source(str(place)).name == f"rewardbench?path={place}"
    assert read(str(path)) == read(f"rewardbench?path={path}")
    for row in ({"question": "q", "chosen": "a", "rejected": "b", "subset": "x"}, {"prompt": "p", "subset": "x"}):
        assert open_source(str(write_jsonl([row]))).name == str(path)


def scored(write_jsonl: Write, tmp_path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `length` gets: an answer is right if it is the longer one."""
    numbered = [{"id": n, "prompt": f"{n}?", **row} for n, row in enumerate(rows)]
    config = EvaluateConfig(
        model=("length",), condition=("none",), dataset=str(write_jsonl(numbered)), out=tmp_path / "run"
    )
    return result(evaluate(config).summary, "none", "length")


def test_rewardbench_1_has_sections_with_the_published_weights_and_ties_are_lost(write_jsonl, tmp_path) -> None:
    right, wrong = {"chosen": "Longer.", "rejected": "No."}, {"chosen": "No.", "rejected": "Longer."}
    subsets = [subset for section in SECTIONS.values() for subset in section if section is not SECTIONS["Prior Sets"]]
    rows = [{**(right if subset != "math-prm" else wrong), "subset": subset} for subset in subsets]
    rows += [{"chosen": "Yes", "rejected": "No!", "subset": "mt-bench-easy"}]
    chat, hard, safety = (358 - 28 / 2) / 358, 1.0, 1.0
    reasoning = 0.5  # 447 rows of math count like 984 of code
    official = scored(write_jsonl, tmp_path, rows)["official"]
    assert official == {"RewardBench": pytest.approx((chat + hard + safety + reasoning) / 4)}


def test_prior_sets_have_half_the_weight_and_other_subsets_no_score() -> None:
    by_subset = {subset: 1.0 for section in SECTIONS.values() for subset in section} | {"shp": 0.0}
    assert rewardbench_score(by_subset) == pytest.approx((4 + 0.5 * 0.75) / 4.5)
    assert rewardbench_score({**by_subset, "mine": 1.0}) is None
    assert rewardbench_score({"shp": 1.0}) is None
