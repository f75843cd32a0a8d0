"""From judgments to a verdict, its sentences and its gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from prb.errors import BadInput, GateFailed, UnknownName
from prb.stats.agreement import attention
from prb.study.agreement import AgreementSummary, agree, attention_checks, summarize, verdict
from prb.study.config import AgreeConfig, ExportConfig, Judgment
from prb.study.judgments import export
from tests.study.conftest import Make

Row = dict[str, Any]


def row(item: int, annotator: int, **changes: Any) -> Row:
    names: Row = {"item": f"i{item}", "user": f"u{item}", "cluster": f"u{item}", "group": f"i{item}", "mirror": None}
    names |= {"annotator": f"p-{annotator}", "check": False, "first": "chosen"}
    reply = {"before": "chosen", "after": "chosen", "difference": "preference", "ratings": rated(4, 4)}
    skip = {"skipped": None, "revised": False}
    times = {"seconds": [10.0, 10.0], "at": 0.0}
    return {**names, **reply, **skip, **times, **changes}


def judged(rows: list[Row]) -> list[Judgment]:
    return msgspec.convert(rows, list[Judgment])


def rated(chosen: int, rejected: int) -> dict[str, dict[str, int]]:
    names = ("correctness", "relevance", "helpfulness")
    return {"chosen": dict.fromkeys(names, chosen), "rejected": dict.fromkeys(names, rejected)}


def study(items: int = 30, annotators: int = 3, **changes: Any) -> list[Row]:
    return [row(i, a, **changes) for i in range(items) for a in range(annotators)]


def test_a_good_study_passes_every_gate() -> None:
    rows = study(ratings=rated(4, 4))
    for n, r in enumerate(rows):  # a little honest noise, the same for both answers
        r["ratings"] = rated(4 + n % 2, 4 + (n // 2) % 2)
    result = summarize(judged(rows), draws=100)
    assert result.verdicts == {"parity": True, "preference": True, "personal": True, "agreement": True}
    text = "\n".join(verdict(result))
    assert "90 judgments of 30 items by 3 annotators." in text
    assert "✓ With the rubric shown, annotators prefer the labeled answer 100.0 %" in text
    assert "✓ The answers are equally good within ±0.5 points" in text
    assert "α 1.00" in text  # agreement on which answer, though the label is always the same
    assert "No item has to be dropped." in text


def test_answers_of_different_quality_fail_parity_with_the_figures() -> None:
    result = summarize(judged(study(ratings=rated(5, 4))), draws=0)
    assert result.quality.correctness.parity.mean == 1.0
    assert result.verdicts["parity"] is False
    assert "✗ The answers are not shown to be equally good" in "\n".join(verdict(result))


def test_of_mirror_rows_the_size_of_the_difference_counts_not_its_sign() -> None:
    rows = []
    for i in range(20):
        twins = {"group": f"i{i}", "cluster": f"c{i}"}
        rows += [row(i, a, ratings=rated(5, 3), mirror=f"t{i}", **twins) for a in range(2)]
        rows += [row(i, a, ratings=rated(3, 5), mirror=f"i{i}", **twins) | {"item": f"t{i}"} for a in range(2, 4)]
    result = summarize(judged(rows), draws=0)
    quality = result.quality.correctness
    assert quality.parity is None
    assert quality.mirror_size.value == 2.0
    assert quality.mirror_size.n == 20
    assert result.verdicts["parity"] is False
    assert "Answers to mirrored questions are not shown to differ by less than 0.5" in "\n".join(verdict(result))


def test_preference_counts_neither_as_half_and_knows_before_from_after() -> None:
    rows = study(items=4, annotators=2)
    rows[0]["before"] = rows[1]["before"] = "neither"
    rows[2]["before"] = rows[2]["after"] = "rejected"
    result = summarize(judged(rows), draws=0)
    assert result.preference.before.value == pytest.approx((2 * 0.5 + 5) / 8)
    assert result.preference.after.value == pytest.approx(7 / 8)
    assert result.preference.before.ties == 2


def test_checks_skips_and_revised_ratings_stay_out_of_the_figures() -> None:
    rows = study(items=5, annotators=2)
    rows.append(row(90, 0, check=True, before="chosen", ratings=rated(5, 1)))
    rows.append(row(91, 0, skipped="unclear", before=None, after=None, ratings={}, difference=None))
    rows[0] |= {"revised": True, "before": "rejected", "ratings": rated(1, 5)}
    result = summarize(judged(rows), draws=0)
    counts = result.counts
    assert (counts.items, counts.judgements, counts.skipped, counts.revised) == (5, 10, 1, 1)
    assert (result.preference.before.value, result.preference.before.n) == (1.0, 9)
    assert result.quality.correctness.parity.mean == 0
    assert result.preference.after.n == 10


def test_whoever_misses_the_checks_is_left_out_and_named() -> None:
    rows = study(items=5, annotators=3)
    for a, good in ((0, True), (1, True), (2, False)):
        rows += [row(90 + n, a, check=True, ratings=rated(5, 1 if good else 5)) for n in range(2)]
    assert attention(attention_checks(judged(rows))) == {"p-0": (2, 2), "p-1": (2, 2), "p-2": (0, 2)}
    result = summarize(judged(rows), draws=0)
    assert result.counts.left_out == ["p-2"]
    assert result.counts.annotators == 2
    assert "left out for failed attention checks: p-2" in verdict(result)[0]


def test_items_are_dropped_for_reasons() -> None:
    rows = study(items=5, annotators=3)
    for n in (0, 1, 2):
        rows[n]["after"] = "rejected"
    rows[3]["after"], rows[4]["after"] = "rejected", "neither"
    for n in (6, 7):
        rows[n]["difference"] = "quality"
    for n in (9, 10, 11):
        rows[n]["ratings"] = rated(4, 2)
    found = {d.item: d.reasons for d in summarize(judged(rows), draws=0).drop}
    assert found == {
        "i0": ["most prefer the other answer"],
        "i1": ["no majority for either answer"],
        "i2": ["most say the answers differ in quality"],
        "i3": [f"{c} of the rejected answer is poor" for c in ("correctness", "relevance", "helpfulness")],
    }
    assert "4 items should be dropped or repaired: i0, i1, i2, i3." in verdict(summarize(judged(rows), draws=0))


def test_unreliable_annotators_stand_out() -> None:
    rows = study(items=40, annotators=4)
    for r in rows:
        if r["annotator"] == "p-3" and int(r["item"][1:]) % 2:
            r["after"] = "rejected"
    people = {p.annotator: p for p in summarize(judged(rows), draws=0).annotators}
    assert people["p-3"].reliability < 0.7
    assert people["p-0"].reliability > 0.95
    assert (people["p-3"].with_label, people["p-0"].with_label) == (0.5, 1.0)


def test_an_empty_study_says_so_and_fails_every_gate() -> None:
    result = summarize([], draws=10)
    assert set(result.verdicts.values()) == {False}
    assert "0 judgments" in verdict(result)[0]
    assert "Nothing has been rated yet" in "\n".join(verdict(result))


def test_unknown_gates_are_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'parity'"):
        agree(AgreeConfig(study="absent.db", require="preference, partiy"))


def test_a_study_and_its_export_give_the_same_verdict(make: Make, tmp_path: Path) -> None:
    made = make(checks=0)
    for n in range(3):
        person = made.person(n)
        for _ in range(3):
            person.judge()
    export(ExportConfig(study=made.where, out=tmp_path / "out"))
    exported = agree(AgreeConfig(study=str(tmp_path / "out" / "judgements.jsonl")))
    assert exported == agree(AgreeConfig(study=made.where))
    assert exported.counts.judgements == 9
    config = AgreeConfig(study=made.where, require="agreement, parity", out=tmp_path / "agree.json")
    with pytest.raises(GateFailed, match="agreement does not hold") as failed:
        agree(config)
    written = orjson.loads((tmp_path / "agree.json").read_bytes())
    assert msgspec.convert(written, AgreementSummary) == failed.value.result


def test_what_holds_no_judgments_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(orjson.dumps({"id": 1}) + b"\n")
    with pytest.raises(BadInput, match="does not hold judgments"):
        agree(AgreeConfig(study=str(tmp_path / "x.jsonl")))
    with pytest.raises(BadInput, match="does not exist"):
        agree(AgreeConfig(study=str(tmp_path / "absent.jsonl")))
    with pytest.raises(BadInput, match="needs a study of kind validate"):
        agree(AgreeConfig(study=make(kind="collect").where))


def test_an_export_goes_only_into_its_own_folder(make: Make, tmp_path: Path) -> None:
    study_ = make()
    study_.person().judge()
    config = ExportConfig(study=study_.where, out=tmp_path / "out")
    assert export(config) == {"judgements.jsonl": 1}
    assert export(config) == {"judgements.jsonl": 1}  # again, over the old one
    about = orjson.loads((tmp_path / "out" / "study.json").read_bytes())
    assert about["settings"]["overlap"] == 2
    assert not {"admin_hash", "secret", "out", "url"} & {*about, *about["settings"]}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(BadInput, match="is not an export of this study"):
        export(ExportConfig(study=study_.where, out=tmp_path / "full"))
    with pytest.raises(BadInput, match="is not an export of this study"):
        export(ExportConfig(study=make().where, out=tmp_path / "out"))


def test_without_a_rubric_no_sentence_speaks_of_one() -> None:
    lines = " ".join(verdict(summarize(judged(study(rubric=False)), draws=0)))
    assert "Annotators prefer the labeled answer 100.0 %" in lines
    assert "rubric" not in lines
    assert "before the rubric was shown" in " ".join(verdict(summarize(judged(study(rubric=True)), draws=0)))
