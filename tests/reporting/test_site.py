"""A site on disk: complete, safe, the same every time, and never half-written."""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prb
from prb.data.load import History
from prb.errors import BadInput
from prb.evaluation.compare import CompareConfig, compare
from prb.evaluation.conditions import Built, QueryBuilder, pick_donor
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.gather import gather, kind_of
from prb.reporting.pages import bins
from prb.reporting.site import script_json
from prb.summary import CONDITIONS, Condition
from prb.types import Item, RewardModel
from tests.conftest import make_row
from tests.reporting.sites import EVIL, data_of, make_run, rows, site_of, write_site
from tests.runs import by_length, names, settings

Write = Callable[..., Path]


@pytest.fixture
def run(write_jsonl: Write, tmp_path: Path) -> Path:
    return make_run(write_jsonl(rows()), tmp_path / "run")


@pytest.fixture
def site(run: Path, tmp_path: Path) -> Path:
    return write_site([run], tmp_path / "site").parent


def test_a_site_holds_its_pages_tables_scripts_and_data(run: Path, tmp_path: Path) -> None:
    index = write_site([run], tmp_path / "deep" / "site")
    assert index == tmp_path / "deep" / "site" / "index.html"
    stems = ("compare", "cost", "index", "model", "pairs", "stability", "users")
    pages = [f"{stem}.html" for stem in stems]
    files = [*pages, ".nojekyll", "README.md", "table.csv", "table.md"]
    assert names(index.parent) == sorted(["assets", "data", *files])
    assert names(tmp_path / "deep") == ["site"]
    for page in pages:
        for used in re.findall(r'(?:src|href)="([^"#]+)"', (index.parent / page).read_text("utf-8")):
            assert (index.parent / used).exists(), used


def test_a_space_is_static_and_the_readme_says_so(site: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the hub extra")
    card = hub.SpaceCard.load(site / "README.md")
    assert (card.data.sdk, card.data.app_file, card.data.title) == ("static", "index.html", "run")
    assert len(card.data.short_description) <= 60
    assert all((site / link).is_file() for link in re.findall(r"\]\(([^)]+)\)", card.text))


def test_nothing_a_user_named_is_markup_and_nothing_comes_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix in (".html", ".js") and path.parent.name != "assets":
            text = path.read_text("utf-8")
            assert "<script>alert" not in text
            assert "<img" not in text
        if path.suffix == ".html":
            assert "default-src 'none'" in text
            assert "'unsafe" not in text
            assert not re.search(r"https?://| style=| on[a-z]+=", text)
    for path in (site / "assets").iterdir():
        foreign = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://|innerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch\(|@import|url\(", foreign
        )


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_data_in_a_script_reads_back_as_it_was_and_ends_no_script(value: Any) -> None:
    text = script_json([value, "</script>\u2028\u2029<!--"])
    assert orjson.loads(text)[0] == value
    assert b"<" not in text
    assert "\u2028".encode() not in text
    assert "\u2029".encode() not in text


def test_no_key_in_a_script_changes_a_prototype() -> None:
    text = script_json({"__proto__": 1, "a": '"__proto__":'})
    assert text == rb'{["__proto__"]:1,"a":"\"__proto__\":"}'


def test_a_site_is_the_same_every_time(run: Path, tmp_path: Path) -> None:
    one, two = (write_site([run], tmp_path / name).parent for name in ("one", "two"))
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in files)


def test_the_leaderboard_of_all_rows_is_that_of_the_summary(run: Path, site: Path) -> None:
    summary = orjson.loads((run / "summary.json").read_bytes())
    found = data_of(site, "d0/board")["slices"]["all"]
    for n, model in enumerate(data_of(site, "site")["datasets"][0]["models"]):
        for row in summary["results"]:
            if row["model"] == model["spec"]:
                assert found[n]["accuracy"][row["condition"]] == row["accuracy"]
        for row in summary["contrasts"]:
            if row["model"] == model["spec"] and row["kind"] != "flip_rate":
                assert found[n][row["kind"]] == row


def test_a_slice_is_what_an_evaluation_of_only_its_rows_would_find(
    site: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    """`knows` is right under profile whoever asks; without posts it is right for the `a` half of each twin."""
    hard = data_of(site, "d0/board")["slices"]["tier:hard"][0]
    assert [hard["accuracy"][c]["value"] for c in ("none", "profile")] == [0.5, 1.0]
    assert hard["gain"]["value"] == 0.5
    for metric, values in (("mirror_accuracy", (1.0, 0.0)), ("person_effect", (1.0, 0.5))):
        assert (hard[metric]["profile"]["value"], hard[metric]["none"]["value"]) == values
    # shuffled borrows from everybody, so only conditions without a donor can be repeated on fewer rows
    only = make_run(write_jsonl([r for r in rows() if r["tier"] == "hard"], name="hard.jsonl"), tmp_path / "hard")
    summary = orjson.loads((only / "summary.json").read_bytes())
    for row in summary["results"]:
        if row["model"] == "knows" and row["condition"] != "shuffled":
            assert hard["accuracy"][row["condition"]] == row["accuracy"]
            assert hard["mirror_accuracy"][row["condition"]] == row["mirror_accuracy"]
            assert hard["person_effect"][row["condition"]] == {**row["person_effect"], "p": None, "p_holm": None}
    gain = next(r for r in summary["contrasts"] if (r["model"], r["kind"]) == ("knows", "gain"))
    assert [hard["gain"][k] for k in ("value", "low", "high")] == [gain[k] for k in ("value", "low", "high")]


def test_the_tests_are_those_of_prb_compare(run: Path, site: Path) -> None:
    found = compare(CompareConfig(run_a=run, run_b=run))["comparisons"]
    for row in (row for row in found if (row["model_a"], row["model_b"]) == ("knows", EVIL)):
        ours = next(t for t in data_of(site, "d0/tests")[row["condition"]] if (t["a"], t["b"]) == (0, 1))
        for key in ("value", "low", "high", "p", "n", "dropped", "accuracy_a", "accuracy_b", "changed_sides"):
            assert ours[key] == row[key], key


def test_ranks_follow_the_corrected_tests(tmp_path: Path) -> None:
    own: dict[str, RewardModel] = {
        "right": ScriptedScorer(lambda ask: -float(len(ask.answer))),
        "right too": ScriptedScorer(lambda ask: -2.0 * len(ask.answer)),
        "wrong": ScriptedScorer(by_length),
    }
    site = site_of(tmp_path, [make_row(n) for n in range(12)], own, condition=("none",))
    assert data_of(site, "d0/board")["ranks"] == {"none": [[1, 2], [1, 2], [3, 3]]}
    # 12 discordant pairs: mid-p 2 · ½¹² − ½¹² = ½¹²; Holm over the two that differ
    ps = [t["p_holm"] for t in data_of(site, "d0/tests")["none"]]
    assert ps == pytest.approx([1.0, 2 / 4096, 2 / 4096])


def test_a_pair_holds_its_texts_and_what_each_model_saw_and_said(site: Path) -> None:
    chunk = data_of(site, "d0/pairs-0")
    pair, row = chunk["pairs"][0], rows()[0]
    assert [pair[k] for k in ("question", "chosen", "rejected")] == [row[k] for k in ("question", "chosen", "rejected")]
    assert [chunk["posts"][n][2] for n in pair["profile"]] == [post["text"] for post in row["profile"]]
    said = pair["said"]["profile"]
    assert said["models"]["0"] == {"m": 31.0, "s": [-30.0, -61.0]}
    assert said["models"]["1"]["v"] == ["first", "first"]
    assert said["models"]["1"]["t"][0].startswith("I like the first.")
    assert said["models"]["3"]["f"] == "busy"
    assert said["views"] == [{"ids": ["u1-1", "u1-2"], "plan": []}]


def test_under_shuffled_the_borrowed_posts_are_shown_with_their_owner(site: Path) -> None:
    chunk = data_of(site, "d0/pairs-0")
    by_id = {post["id"]: (r["user"], post["text"]) for r in rows() for post in r["profile"]}
    for pair in chunk["pairs"]:
        (view,) = pair["said"]["shuffled"]["views"]
        assert view["ids"]
        for post_id, n in zip(view["ids"], view["lent"], strict=True):
            assert (view["donor"], chunk["posts"][n][2]) == by_id[post_id]


@pytest.mark.parametrize("known", [True, False])
def test_a_condition_of_another_package_that_shows_another_user_says_so(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose posts they are is said if its donor is the one that `shuffled` would pick."""

    def foreign(builder: QueryBuilder, item: Item, _: object) -> Built:
        usual = pick_donor(item, builder.users, builder.seed)
        others = [name for name in builder.users.names if name not in (item.user, usual)]
        donor = usual if known and usual else others[0]
        return builder.with_history(item, donor, History(builder.users.history(donor).posts[:1]))

    condition = Condition(name="foreign-post", shows="another user's oldest post", build=foreign, donors=True)
    monkeypatch.setattr(CONDITIONS, "_known", {**CONDITIONS, "foreign-post": condition})
    mine = {"mine": ScriptedScorer(by_length)}
    pairs = data_of(site_of(tmp_path, rows(), mine, condition=("foreign-post",)), "d0/pairs-0")["pairs"]
    views = [view for pair in pairs for view in pair["said"]["foreign-post"]["views"]]
    owners = {post["id"]: row["user"] for row in rows() for post in row["profile"]}
    assert all(len(view["ids"]) == 1 for view in views)
    assert [view["donor"] for view in views] == [owners[view["ids"][0]] if known else None for view in views]
    assert [len(view["lent"]) for view in views] == [int(known)] * len(pairs)


def test_without_texts_no_word_of_the_dataset_or_a_judge_is_there(run: Path, tmp_path: Path) -> None:
    site = write_site([run], tmp_path / "site", texts=False).parent
    everything = b"".join(path.read_bytes() for path in (site / "data").rglob("*.js"))
    for word in (b"plant", b"short lists", b"I like the first", b"brevity", b"on the bus"):
        assert word not in everything
    assert b"t1a" in everything
    assert "--no-texts" in data_of(site, "d0/pairs")["note"]


@pytest.mark.parametrize("change", ["gone", "other"])
def test_a_dataset_that_is_gone_or_changed_costs_only_what_it_held(change: str, run: Path, tmp_path: Path) -> None:
    data = tmp_path / "set.jsonl"
    if change == "gone":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes().replace(b"Once a week", b"Twice a week"))
    site = write_site([run], tmp_path / "site").parent
    index = data_of(site, "d0/pairs")
    assert (index["heads"], index["texts"]) == (None, False)
    assert index["note"].startswith(
        "The dataset cannot be read anymore" if change == "gone" else f"{data.name} has changed"
    )
    pair = data_of(site, "d0/pairs-0")["pairs"][0]
    assert "question" not in pair
    assert pair["said"]["profile"]["models"]["1"]["t"]
    board = data_of(site, "d0/board")
    assert board["slices"]["tier:hard"][0]["accuracy"]["profile"]["value"] == 1.0
    assert board["slices"]["tier:hard"][0]["gain"] is None
    assert board["slices"]["all"][0]["gain"]["value"] == pytest.approx(3 / 7)


def test_runs_on_the_same_rows_stand_together_and_others_apart(run: Path, write_jsonl: Write, tmp_path: Path) -> None:
    again = make_run(tmp_path / "set.jsonl", tmp_path / "k1", k=1)
    fewer = make_run(tmp_path / "set.jsonl", tmp_path / "fewer", limit=2)
    site = write_site([run, again, fewer], tmp_path / "site").parent
    first, second = data_of(site, "site")["datasets"]
    assert [m["name"] for m in first["models"]][::4] == ["knows (run)", "knows (k1)"]
    assert second["models"][0]["name"] == "knows"
    assert len(data_of(site, "d0/tests")["none"]) == 8 * 7 // 2


def test_the_tables_have_every_run_also_two_whose_folders_have_one_name(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "other" / "run")
    site = write_site([run, tmp_path / "other" / "run"], tmp_path / "site").parent
    with (site / "table.csv").open(newline="") as file:
        assert Counter(row["run"] for row in csv.DictReader(file)) == {"run": 20, "run 2": 20}
    assert data_of(site, "site")["title"] == "run + run 2"


def test_stars_are_corrected_over_all_models_that_stand_together(write_jsonl: Write, tmp_path: Path) -> None:
    data = write_jsonl([make_row(n) for n in range(8)])
    for name in ("one", "two"):
        own = {f"{name}-model": ScriptedScorer(lambda ask: len(ask.query.posts) * -float(len(ask.answer)))}
        config = settings(data, tmp_path / name, model=tuple(own), condition=("none", "profile"))
        evaluate(config, models=own)
    site = write_site([tmp_path / "one", tmp_path / "two"], tmp_path / "site").parent
    rows_ = data_of(site, "d0/board")["slices"]["all"]
    assert [row["gain"]["p_holm"] for row in rows_] == [2 * row["gain"]["p"] for row in rows_]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60))
def test_bins_hold_every_value_once_in_order(values: list[int]) -> None:
    labels, order = bins(values)
    assert len(order) <= 4
    assert set(labels) == set(order)
    spans = {name: [int(x) for x in name.split("–")] for name in order}
    assert all(spans[name][0] <= value <= spans[name][-1] for name, value in zip(labels, values, strict=True))
    edges = [edge for name in order for edge in spans[name]]
    assert edges == sorted(edges)


def test_what_is_unfinished_or_unknown_is_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    (run / "summary.json").rename(run / "later.json")
    for places, says in [
        ([], "name at least one run folder"),
        ([tmp_path], "is not a run"),
        ([tmp_path / "nowhere"], "does not exist"),
        ([tmp_path / "odd.json"], "is not a result of prb"),
    ]:
        with pytest.raises(BadInput, match=says):
            write_site(places, tmp_path / "site")
    (run / "later.json").rename(run / "summary.json")
    lines = (run / "outcomes.jsonl").read_bytes().splitlines(keepends=True)
    for broken, says in [
        (lines[:-1], "does not have the rows, models and conditions"),
        ([b"{}\n", *lines[1:]], "an outcome without"),
    ]:
        (run / "outcomes.jsonl").write_bytes(b"".join(broken))
        with pytest.raises(BadInput, match=says):
            write_site([run], tmp_path / "site")
    assert not [name for name in names(tmp_path) if "site" in name]


def test_only_a_report_is_ever_overwritten(run: Path, tmp_path: Path) -> None:
    web = tmp_path / "web"
    (web / "data").mkdir(parents=True)
    (web / "index.html").write_text("my own page")
    for marker in ("", "var site = {};"):  # a page of one's own, even one with a data/site.js
        (web / "data" / "site.js").write_text(marker)
        with pytest.raises(BadInput, match="is not empty and not a report"):
            write_site([run], web)
    with pytest.raises(BadInput, match="is a file"):
        write_site([run], web / "index.html")
    assert (web / "index.html").read_text() == "my own page"
    site = write_site([run], tmp_path / "site").parent
    (site / "data" / "d0" / "old.js").write_text("")
    write_site([run], site)
    assert not (site / "data" / "d0" / "old.js").exists()
    (site / ".git").mkdir()  # a report that was published: what was added to it is not ours to delete
    with pytest.raises(BadInput, match=r"also holds .git, which a new report would delete"):
        write_site([run], site)
    (tmp_path / "empty").mkdir()
    assert write_site([run], tmp_path / "empty").exists()


def test_a_site_that_fails_leaves_the_old_one_as_it_was(
    run: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (site / "index.html").read_bytes()

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("prb.reporting.site.describe", stop)
    with pytest.raises(KeyboardInterrupt):
        write_site([run], site)
    assert (site / "index.html").read_bytes() == before
    assert ".site.part" not in names(tmp_path)


def test_kinds_are_recognized_by_what_is_inside(run: Path, tmp_path: Path) -> None:
    assert kind_of(run) == "evaluate"
    for kind in ("bon", "ppo"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"{kind}": {{}}}}')
        with pytest.raises(BadInput, match=f"run the same `prb {kind}` again"):
            kind_of(folder)
        (folder / "summary.json").write_text("{}")
        assert kind_of(folder) == kind
    shutil.copytree(run, tmp_path / "copy")
    assert len(gather([run, run, tmp_path / "copy"]).groups[0].entries) == 8


def test_a_link_in_a_run_folder_is_not_followed_when_writing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name, write in (("report", lambda: prb.report(runs=[run])), ("export", lambda: prb.export(run, to="csv"))):
        (run / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BadInput, match=f"{name} is a link to another folder"):
            write()
    assert list((tmp_path / "elsewhere").iterdir()) == []
