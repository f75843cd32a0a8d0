from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.data.check import check
from prb.data.load import Users, load, load_pairs, sample_rows
from prb.data.source import MemorySource, open_source
from prb.errors import BadData, BadInput
from prb.types import Aspect, Choice, Pair, Post, Rating, Turn
from tests.conftest import Row, make_row, make_twins
from tests.data.broken import BROKEN, line, sound

# bad input


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_bad_row_is_refused_and_listed_by_its_line_or_left_out(broken, tmp_path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(broken.raw)
    with pytest.raises(BadData) as caught:
        load(str(path))
    listed = [problem for problem in check(open_source(str(path))) if problem.level == "error"]
    assert listed == caught.value.problems
    assert [problem.line for problem in listed] == [number for number, _ in broken.problems]
    for problem, (number, what) in zip(listed, broken.problems, strict=True):
        assert str(problem).startswith(f"set.jsonl:{number}: {what}")
    dataset = load(str(path), skip_bad=True)
    assert dataset.index.ids == broken.good
    assert [item.id for item in dataset] == broken.good
    assert list(dataset.problems) == listed


def test_a_broken_pair_of_twins_does_not_link_their_users(write_jsonl) -> None:
    first, second = make_twins(1)
    rows = [first, {**second, "chosen": "Never."}, sound(2, user="a1"), sound(3, user="b1")]
    assert load(str(write_jsonl(rows)), skip_bad=True).index.clusters == ["a1", "b1"]


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([{"id": "r1"}], ""),
        ([sound(1, mirror="gone")], ""),
        ([sound(1, split="train"), sound(2, split="test", mirror="gone")], " in split 'test'"),
    ],
)
def test_without_sound_rows_even_skip_bad_refuses(rows, where, write_jsonl) -> None:
    with pytest.raises(BadInput, match=rf"no rows without errors{where}$"):
        load(str(write_jsonl(rows)), skip_bad=True)


# what is read


def test_a_row_becomes_a_pair(write_jsonl) -> None:
    row = make_row(
        1, tier="stated", split="test", topic="plants", drift=True, groups={"age": "60+"}, anything={"else": [1, None]}
    )
    [pair] = load_pairs(str(write_jsonl([row])))
    assert pair == Pair(
        id="r1",
        user="u1",
        question=row["question"],
        profile=tuple(Post(p["id"], p["category"], p["text"]) for p in row["profile"]),
        answers=(row["chosen"], row["rejected"]),
        category=row["category"],
        rubric=(Aspect("brevity", "keep it short", "Long texts tire them."),),
        narrative=row["narrative"],
        tier="stated",
        split="test",
        topic="plants",
        drift=True,
        groups={"age": "60+"},
    )


def test_a_dataset_can_be_read_again_and_rows_in_memory_load_like_a_file(write_jsonl) -> None:
    rows = [make_row(1), *make_twins(2)]
    dataset = load(str(write_jsonl(rows)))
    assert list(dataset) == list(dataset) == list(load(MemorySource("mine", rows)))
    assert len(dataset) == 3


def test_the_fingerprint_follows_the_content_and_nothing_else(write_jsonl) -> None:
    rows = [make_row(1), make_row(2)]
    first = load(str(write_jsonl(rows, "a.jsonl"))).fingerprint
    assert load(str(write_jsonl(rows, "b.jsonl"))).fingerprint == first
    assert load(str(write_jsonl(rows, "a.jsonl")), limit=1).fingerprint == first
    assert load(str(write_jsonl([rows[0], make_row(2, topic="x")], "c.jsonl"))).fingerprint != first


# splits and limits


@pytest.mark.parametrize(
    ("splits", "asked", "used", "ids"),
    [
        (("train", "test", "test"), None, "test", ["r2", "r3"]),
        (("train",), None, "train", ["r1"]),
        (("train", "test", None), "all", None, ["r1", "r2", "r3"]),
        ((None,), "all", None, ["r1"]),
        ((None,), None, None, ["r1"]),
    ],
)
def test_the_default_split_is_test_or_the_only_one(write_jsonl, splits, asked, used, ids) -> None:
    dataset = load(str(write_jsonl([make_row(n, split=split) for n, split in enumerate(splits, 1)])), split=asked)
    assert (dataset.split, [pair.id for pair in dataset]) == (used, ids)


@pytest.mark.parametrize(
    ("splits", "asked", "says"),
    [
        (("train", "train", "test"), "dev", r"'dev'; its splits are train \(2 rows\), test \(1 rows\)"),
        (("train", "dev"), None, r"no rows in split 'test'; its splits are train \(1 rows\), dev \(1 rows\)"),
        ((None,), "test", r"has no `split` field, so there is no split 'test'"),
    ],
)
def test_a_split_that_is_not_there_is_refused(write_jsonl, splits, asked, says) -> None:
    rows = [make_row(n, split=split) for n, split in enumerate(splits)]
    with pytest.raises(BadInput, match=says):
        load(str(write_jsonl(rows)), split=asked)


def test_a_limit_takes_rows_of_the_split_and_keeps_their_order(write_jsonl) -> None:
    rows = [make_row(n, split="test" if n % 2 else "train") for n in range(20)]
    dataset = load(str(write_jsonl(rows)), limit=3)
    assert [pair.id for pair in dataset] == dataset.index.ids == ["r3", "r11", "r13"]


@pytest.mark.parametrize("small", [0, 100])
def test_a_sample_is_the_same_whether_it_is_kept_or_streamed(write_jsonl, monkeypatch, small) -> None:
    monkeypatch.setattr("prb.data.load.SMALL", small)
    path = write_jsonl([row for n in range(9) for row in make_twins(n)])
    dataset = load(str(path), limit=6)
    first = list(dataset)
    assert [pair.id for pair in first] == dataset.index.ids
    assert [pair.id for pair in dataset] == dataset.index.ids
    assert (next(iter(dataset)) is first[0]) == bool(small)  # a small sample is read once, a large one never held


# users


def test_clusters_follow_chains_of_twins_and_of_shared_questions(write_jsonl) -> None:
    first, second, third = make_twins(1), make_twins(2), make_twins(3)
    second[0]["user"] = "b1"
    third[0]["user"] = "b2"
    alone = [make_row(n) for n in range(5, 10)]
    alone[0]["question"] = third[0]["question"]
    rows = [*first, *second, *third, *make_twins(4), *alone]
    others = ["a4", "a4", "a1", "u6", "u7", "u8", "u9"]
    assert load(str(write_jsonl(rows))).index.clusters == ["a1"] * 6 + others


def test_a_limit_never_separates_twins(write_jsonl) -> None:
    rows = [row for n in range(9) for row in make_twins(n)]
    for limit in (1, 2, 3, 7, 12):
        index = load(str(write_jsonl(rows)), limit=limit).index
        assert len(index) == max(2, limit - limit % 2)
        assert all(index.twins[twin] == n for n, twin in enumerate(index.twins))


def test_clusters_are_those_of_the_whole_split_whatever_the_limit(write_jsonl) -> None:
    rows = [*make_twins(1), *(make_row(n) for n in range(2, 9)), make_row(9, user="b1")]
    whole, few = (load(str(write_jsonl(rows)), limit=limit).index for limit in (None, 8))
    cluster_of = dict(zip(whole.ids, whole.clusters, strict=True))
    assert few.clusters == [cluster_of[id_] for id_ in few.ids]


def test_the_donors_are_the_whole_split_before_the_limit(write_jsonl) -> None:
    rows = [make_row(n, split="test") for n in (1, 2, 3)] + [make_row(4, split="train")]
    dataset = load(str(write_jsonl(rows)), limit=1, donors=True)
    assert len(dataset) == 1
    assert dataset.users.names == ["u1", "u2", "u3"]
    assert [post.text for post in dataset.users.history("u3").posts] == [post["text"] for post in rows[2]["profile"]]


def clusters_of(rows: list[Row], **options: Any) -> tuple[list[str], str]:
    index = load(MemorySource("rows", rows), **options).index
    return index.clusters, index.clustered_by


def test_users_who_share_a_question_or_an_answer_are_one_cluster() -> None:
    rows = [make_row(n) for n in range(1, 9)]
    rows[3]["question"] = f"  {rows[0]['question'].replace(' ', chr(10) + ' ')}"  # white space makes no other question
    rows[5]["rejected"] = rows[2]["chosen"]  # whichever side it is on
    assert clusters_of(rows) == (["u1", "u2", "u3", "u1", "u5", "u3", "u7", "u8"], "linked users")


def test_where_everybody_answers_the_same_questions_users_stay_clusters() -> None:
    votes = [make_row(n, question="Tea or coffee?", chosen="Tea.", rejected="Coffee.") for n in range(1, 6)]
    assert clusters_of([*votes, make_row(6)]) == (["u1", "u2", "u3", "u4", "u5", "u6"], "users")
    # the same answers, but questions of few: those still count
    rows = [make_row(n, question=f"Tea or coffee, {n % 3}?", chosen="Tea.", rejected="Coffee.") for n in range(1, 7)]
    assert clusters_of(rows) == (["u1", "u2", "u3", "u1", "u2", "u3"], "linked users")


def test_a_question_shared_with_another_split_links_nobody() -> None:
    rows = [make_row(n, split="test" if n < 5 else "train") for n in range(1, 9)]
    rows[6]["question"] = rows[0]["question"]
    assert clusters_of(rows) == (["u1", "u2", "u3", "u4"], "linked users")


def test_a_user_of_two_splits_is_a_donor_in_both(write_jsonl) -> None:
    late = [{"id": "late", "category": "", "text": "Later I took up chess."}]
    rows = [make_row(1, split="train"), make_row(2, user="u1", split="test", profile=late), make_row(3, split="test")]
    users = load(str(write_jsonl(rows)), donors=True).users
    assert users.names == ["u1", "u3"]
    assert [post.id for post in users.history("u1").posts] == ["late"]


def test_histories_come_back_as_they_went_in_the_first_of_a_user_stays_and_names_are_sorted() -> None:
    tea = [{"id": "p1", "category": "Food", "text": "Tea at four, naïvely."}]
    rain: list[Row] = [{"text": "Rain again."}, {"id": 7, "text": "Still rain."}]
    users = Users()
    for user, profile in (("zoe", tea), ("al", rain), ("zoe", rain)):
        users.add(user, {"profile": profile})
    assert users.of_split(None, {}).names == ["al", "zoe"]
    for _ in range(2):
        assert tuple(users.history("zoe").posts) == (Post("p1", "Food", "Tea at four, naïvely."),)
        assert tuple(users.history("al").posts) == (Post("1", "", "Rain again."), Post("7", "", "Still rain."))


# ratings


def rating(n: int, **changes: Any) -> Row:
    row = {"user": f"u{n}", "question": "Tea?", "profile": [{"text": "I like tea."}], "answer": f"Yes {n}."}
    return {**row, "rating": 0.5, **changes}


def test_a_row_becomes_a_rating_named_by_its_line(write_jsonl) -> None:
    dataset = load(str(write_jsonl([rating(1), rating(2, id="mine", rating=1)])), task="ratings")
    assert list(dataset.index.ratings) == [0.5, 1.0]
    first, second = dataset
    assert isinstance(first, Rating)
    assert (first.id, first.user, first.answers) == ("set.jsonl:1", "u1", ("Yes 1.",))
    assert (second.id, type(second.rating)) == ("mine", float)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rating": 1.5}, "`rating`: Input should be less than or equal to 1"),
        ({"rating": -0.1}, "`rating`: Input should be greater than or equal to 0"),
        ({"rating": "high"}, "`rating` must be a number, not text"),
        ({"rating": True}, "`rating` must be a number, not true/false"),
        ({"answer": ""}, "`answer` is empty"),
        ({"user": None}, "`user` is missing; the columns are question, profile, answer, rating"),
    ],
)
def test_bad_ratings_are_named_with_their_line(changes, what, write_jsonl) -> None:
    with pytest.raises(BadData) as caught:
        load(str(write_jsonl([rating(1), rating(2, **changes)])), task="ratings")
    assert [str(problem) for problem in caught.value.problems] == [f"set.jsonl:2: {what}"]


# third-party data


def test_a_row_may_have_several_answers_past_choices_and_earlier_turns(write_jsonl) -> None:
    choices = [{"question": "Tea?", "chosen": "Yes.", "rejected": "No."}]
    context = [{"role": "system", "text": "Be brief."}, {"role": "user", "text": "Hi."}]
    row = make_row(1, chosen=["a", "bb"], rejected=["ccc", "d"], choices=choices, context=context)
    dataset = load(str(write_jsonl([row, make_row(2)])), donors=True)
    pair, plain = dataset
    assert isinstance(pair, Pair)
    assert (pair.answers, pair.n_best, pair.contrast) == (("a", "bb", "ccc", "d"), 2, ("a", "ccc"))
    assert pair.choices == (Choice("Tea?", "Yes.", "No."),)
    assert pair.context == (Turn("system", "Be brief."), Turn("user", "Hi."))
    assert (plain.choices, plain.context) == ((), ())
    assert [list(column) for column in dataset.index.answers] == [[2, 1], [4, 2]]
    assert dataset.index.chance == pytest.approx(0.5)
    assert dataset.index.lengths[0][0] == 1.5
    assert dataset.users.history("u1").choices == pair.choices


def test_twins_with_four_answers_are_one_cluster_but_have_no_person_effect(write_jsonl) -> None:
    one = make_row(1, mirror="r2", chosen="a", rejected=["b", "c", "d"])
    two = make_row(2, mirror="r1", question=one["question"], chosen="b", rejected=["d", "c", "a"])
    index = load(str(write_jsonl([one, two]))).index
    assert (index.clusters, list(index.twins)) == (["u1", "u1"], [-1, -1])
    same = {**two, "chosen": "a", "rejected": ["b", "c", "d"]}
    with pytest.raises(BadData, match="answers swapped"):
        load(str(write_jsonl([one, same])))


def test_a_file_that_changes_after_it_was_checked_is_one_clear_error(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(line(sound(n)) for n in range(3)))
    dataset = load(str(path))
    path.write_bytes(line(sound(0)) + b"{cut off")
    with pytest.raises(BadInput, match=r"rows\.jsonl has changed since it was checked: rows\.jsonl:2"):
        list(dataset)


# which rows a limit takes

LAYOUTS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30)
"""Per group of rows: its cluster, and whether it is a pair of twins."""


def rows_of(layout: list[tuple[int, bool]]) -> tuple[list[str], list[str]]:
    rows = [(f"g{n}", f"c{cluster}") for n, (cluster, twins) in enumerate(layout) for _ in range(1 + twins)]
    return [name for name, _ in rows], [cluster for _, cluster in rows]


@given(LAYOUTS, st.integers(1, 40))
def test_groups_are_whole_and_no_cluster_is_far_ahead(layout, limit) -> None:
    together, clusters = rows_of(layout)
    sample = sample_rows(together, clusters, limit)
    names = {together[n] for n in sample}
    assert sample == [n for n, name in enumerate(together) if name in names]
    assert len(sample) <= limit or len(names) == 1
    if not any(twins for _, twins in layout):
        assert len(sample) == min(limit, len(together))
        taken, there = Counter(clusters[n] for n in sample), Counter(clusters)
        behind = [taken[c] for c in there if taken[c] < there[c]]
        assert max(taken.values()) - min(behind, default=max(taken.values())) <= 1


@given(LAYOUTS, st.integers(1, 40), st.randoms())
def test_the_order_of_the_rows_does_not_matter(layout, limit, random) -> None:
    together, clusters = rows_of(layout)
    sample = {together[n] for n in sample_rows(together, clusters, limit)}
    order = list(range(len(together)))
    random.shuffle(order)
    again = sample_rows([together[n] for n in order], [clusters[n] for n in order], limit)
    assert {together[order[n]] for n in again} == sample


@given(LAYOUTS)
def test_a_smaller_sample_is_part_of_a_larger_one(layout) -> None:
    layout = [(cluster, False) for cluster, _ in layout]
    together, clusters = rows_of(layout)
    samples = [set(sample_rows(together, clusters, limit)) for limit in range(1, len(together) + 1)]
    assert all(small < large for small, large in itertools.pairwise(samples))
