"""What each condition shows of a person, and what it never shows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from prb.config import UserConfig
from prb.data.load import Dataset, load
from prb.data.source import MemorySource
from prb.errors import BadInput
from prb.evaluation.conditions import QueryBuilder, pick_donor, true_plan
from prb.summary import CONDITIONS, Condition
from prb.types import Item, Post, Query
from tests.conftest import Row, make_row, make_twins


class Counting:
    """A planner that says what it was shown."""

    fingerprint = "counting"

    def plan(self, query: Query) -> tuple[str, ...]:
        return f"{len(query.posts)} posts on {query.question}", f"{len(query.choices)} choices"


def dataset(rows: list[Row], **options: Any) -> Dataset:
    return load(MemorySource("rows", rows), donors=True, **options)


def asker(data: Dataset, *, history: str = "both?ranker=recency", k: int = 5, mask: bool = False) -> QueryBuilder:
    config = UserConfig(k=k, history=history, mask_pii="on" if mask else "off")
    return QueryBuilder.of(config, data, Counting(), reader=None, seed=0)


def only(*rows: Row) -> tuple[Dataset, Item]:
    """A dataset and its first row."""
    data = dataset(list(rows))
    return data, next(iter(data))


def query(data: Dataset, item: Item, condition: Any, **options: Any) -> Query:
    return asker(data, **options).build(item, condition).query


def past(*questions: str) -> list[dict[str, str]]:
    return [{"question": q, "chosen": f"Yes to {q}", "rejected": f"No to {q}"} for q in questions]


def donors(data: Dataset, seed: int = 0) -> dict[str, str | None]:
    return {item.id: pick_donor(item, data.users, seed) for item in data}


def test_a_query_has_no_field_for_rubric_or_narrative():
    assert {field.name for field in fields(Query)} == {"question", "user", "context", "posts", "choices", "plan"}
    with pytest.raises(TypeError):
        Query(question="why?", rubric=())


def test_only_oracle_shows_the_rubric_and_nothing_shows_the_narrative():
    hidden = {"aspect": "XASPECT", "evidence": "XEVIDENCE", "reason": "XREASON"}
    data, item = only(*(make_row(n, rubric_aspects=[hidden], narrative="XNARRATIVE") for n in (1, 2)))
    shown = {condition: repr(query(data, item, condition)) for condition in CONDITIONS}
    assert not [condition for condition in ("none", "profile", "plan", "shuffled") if "X" in shown[condition]]
    assert "XASPECT: XREASON" in shown["oracle"]
    assert "XNARRATIVE" not in shown["oracle"]


def test_none_tells_nothing_of_the_person_and_plan_what_was_inferred_from_the_posts_but_not_the_posts():
    data, item = only(make_row(1))
    assert query(data, item, "none") == Query(question=item.question, user=None, posts=(), plan=())
    shown = query(data, item, "plan")
    assert shown == Query(question=item.question, user="u1", plan=(f"2 posts on {item.question}", "0 choices"))


def test_profile_shows_the_posts_of_the_right_person_oldest_first():
    data = dataset([make_row(1), make_row(2)])
    _, second = data
    shown = query(data, second, "profile")
    assert shown.user == "u2"
    assert [post.id for post in shown.posts] == ["u2-1", "u2-2"]
    assert shown.posts[0] == Post("u2-1", "Lifestyle_and_Personal_Development", "I love short lists about topic 2.")


def test_shuffled_shows_as_many_posts_of_a_fixed_other_person():
    data = dataset([make_row(n) for n in range(1, 9)])
    for item in data:
        shown = query(data, item, "shuffled", k=1)
        assert shown == query(data, item, "shuffled", k=1)
        assert shown.question == item.question
        assert shown.user != item.user
        assert [post.id for post in shown.posts] == [f"{shown.user}-2"]


def test_shuffled_never_borrows_from_the_own_cluster_if_there_is_another():
    data = dataset([row for n in range(1, 9) for row in make_twins(n)])
    found = donors(data)
    assert all(item.user.lstrip("ab") != str(found[item.id]).lstrip("ab") for item in data)
    assert len(set(found.values())) > 4  # spread over people, not one donor for all


def test_in_a_single_cluster_shuffled_borrows_from_the_twin_unless_their_histories_are_the_same():
    first, second = make_twins(1)
    assert donors(dataset([first, second])) == {"t1a": "b1", "t1b": "a1"}
    assert donors(dataset([first, {**second, "profile": first["profile"]}])) == {"t1a": None, "t1b": None}


def test_a_person_under_several_names_never_lends_to_herself():
    """As when the column of the user is missing, and every row is its own user."""
    rows = [make_row(n, user=None, profile=[f"Post of {n % 4}.", "Tea."]) for n in range(40)]
    data = dataset(rows)
    posts = {item.id: item.profile for item in data}
    assert all(posts[item] != posts[str(donor)] for item, donor in donors(data).items())
    (note,) = data.notes
    assert note.startswith("40 users have the same history as another one, such as 'r0' and 'r12': they never lend")


@pytest.mark.parametrize(("history", "lent"), [("both", True), ("posts", False), ("choices", True)])
def test_only_the_part_of_a_history_that_is_shown_makes_it_the_same(history, lent):
    choices = [[{"question": f"Q{n}?", "chosen": "Yes.", "rejected": "No."}] for n in (1, 2)]
    data, item = only(*(make_row(n, profile=["woman, 30"], choices=choices[n]) for n in (0, 1)))
    assert (pick_donor(item, data.users, 0, history=history) is not None) == lent


def test_a_limit_does_not_shrink_the_circle_of_donors():
    rows = [make_row(n) for n in range(1, 30)]
    everybody, few = donors(dataset(rows)), donors(dataset(rows, limit=5))
    assert len(few) == 5
    assert few == {key: everybody[key] for key in few}
    assert not set(few.values()) <= {key.replace("r", "u") for key in few}


def test_donors_do_not_depend_on_the_order_of_the_file():
    rows = [row for n in range(1, 15) for row in make_twins(n)]
    assert donors(dataset(rows)) == donors(dataset(rows[::-1]))


@pytest.mark.parametrize("backwards", [False, True])
def test_somebody_with_rows_in_two_splits_can_lend_in_both(backwards):
    rows = [make_row(1, split="test"), make_row(2, split="train"), make_row(3, user="u2", split="test")]
    data = dataset(rows[::-1] if backwards else rows)
    assert donors(data)["r1"] == "u2"
    assert [post.id for post in data.users.history("u2").posts] == ["u3-1", "u3-2"]  # those of the row in this split


def test_oracle_shows_the_true_aspects_with_their_reasons():
    rubric = [{"aspect": "brevity", "evidence": "short", "reason": "Long texts tire them."}, {"aspect": "warmth"}]
    data, item = only(make_row(1, rubric_aspects=rubric))
    assert query(data, item, "oracle").plan == true_plan(item) == ("brevity: Long texts tire them.", "warmth")


def test_every_condition_shows_the_conversation_and_masks_it_with_question_posts_choices_and_plan():
    secret = "write to ann@example.org"
    turns = [{"role": "user", "text": secret}, {"role": "assistant", "text": "Hello."}]
    about = {"rubric_aspects": [{"aspect": secret}], "context": turns, "choices": past(f"{secret}?")}
    posts = [{"id": "p", "category": "", "text": secret}]
    data, item = only(*(make_row(n, question=f"Shall I {secret}?", profile=posts * n, **about) for n in (1, 2)))
    for condition in CONDITIONS:
        shown, masked = (query(data, item, condition, mask=mask) for mask in (False, True))
        assert "ann@example.org" in repr(shown)
        assert "ann@example.org" not in repr(masked)
        assert shown.context == item.context
        assert masked.context[0].text == "write to [e-mail]"
    assert query(data, item, "profile", mask=True).posts[0].text == "write to [e-mail]"


def test_a_donor_asks_about_the_same_topic_or_else_within_the_category():
    categories = ("Art_and_Entertainment", "Society_and_Culture", "Lifestyle_and_Personal_Development")
    topics = {0: "jazz", 3: "jazz", 6: "film", 9: "jazz", 1: "law", 4: "law"}
    about = {n: {"category": categories[n % 3], "topic": topics.get(n)} for n in range(12)}
    found = donors(dataset([make_row(n, **about[n]) for n in range(12)]))
    numbers = {int(item[1:]): int(str(donor)[1:]) for item, donor in found.items()}
    assert {numbers[n] for n in (0, 3, 9)} <= {0, 3, 9}
    assert (numbers[1], numbers[4]) == (4, 1)
    # nobody else asks about film, and rows without a topic have only their category
    assert {n % 3 for n in numbers} == {0, 1, 2}
    assert all(numbers[n] % 3 == n % 3 and numbers[n] != n for n in range(12))


def test_a_topic_of_the_own_cluster_only_is_left_for_the_category():
    rows = [*make_twins(1, topic="jazz"), *(make_row(n) for n in range(2, 9))]
    found = donors(dataset(rows))
    assert {found["t1a"], found["t1b"]} <= {f"u{n}" for n in range(2, 9)}


def test_any_donor_will_do_if_asked_for():
    rows = [make_row(n, category=("Art_and_Entertainment", "Society_and_Culture")[n % 2]) for n in range(30)]
    data = dataset(rows)
    across = [(item.category, pick_donor(item, data.users, 0, "any")) for item in data]
    assert any(int(str(donor)[1:]) % 2 != (category == "Society_and_Culture") for category, donor in across)
    builder = asker(data, history="both?ranker=recency&donors=any")
    assert all(builder.build(item, "shuffled").query.user == pick_donor(item, data.users, 0, "any") for item in data)


def test_nobody_borrows_from_a_user_with_the_same_question_or_without_posts():
    rows = [make_row(n, question=f"Why is case {n // 2} so?") for n in range(20)]
    assert all(int(item[1:]) // 2 != int(str(donor)[1:]) // 2 for item, donor in donors(dataset(rows)).items())
    rows = [make_row(1), make_row(2), *(make_row(n, profile=[]) for n in range(3, 20))]
    assert donors(dataset(rows))["r1"] == "u2"


CHOICES = past("Which tea is best?", "Is jazz worth it?", "Where do geese sleep?")


def test_a_history_is_posts_past_choices_or_both():
    data, first = only(make_row(1, choices=CHOICES), make_row(2, choices=past("Why do cats purr?")))
    shown = query(data, first, "profile")
    assert [choice.question for choice in shown.choices] == [choice["question"] for choice in CHOICES]
    assert [choice.question for choice in query(data, first, "shuffled").choices] == ["Why do cats purr?"]
    assert query(data, first, "none").choices == ()
    for history, posts, choices in (("posts", 2, 0), ("choices", 0, 3), ("both", 2, 3)):
        shown = query(data, first, "profile", history=f"{history}?ranker=recency")
        assert (len(shown.posts), len(shown.choices)) == (posts, choices)


def test_the_k_choices_whose_questions_are_nearest_are_shown_oldest_first_and_budgeted():
    near = past("How do I water an old cactus?", "Who won the race?", "How do I water a young fern?")
    data, item = only(make_row(1, question="How do I water a plant in winter?", choices=near))
    built = asker(data, history="both?ranker=bm25&choices=2").build(item, "profile")
    assert built.choices == (0, 2)
    assert [choice.question for choice in built.query.choices] == [near[0]["question"], near[2]["question"]]
    size = sum(map(len, near[0].values())) / 4
    tight = asker(data, history=f"both?ranker=bm25&choices=2&budget={int(size) + 1}").build(item, "profile")
    assert (len(tight.choices), tight.cut) == (1, 1)


def test_a_choice_that_would_give_the_label_away_is_never_shown_whoever_made_it():
    row = make_row(1)
    leaks = [
        {**CHOICES[0], "question": "how do I water  plant number 1?"},  # the question itself
        {**CHOICES[0], "chosen": row["rejected"]},  # one of the answers
    ]
    data, item = only({**row, "choices": [CHOICES[1], *leaks]}, make_row(2, choices=[*leaks, CHOICES[2]]))
    for condition, kept in (("profile", "Is jazz worth it?"), ("shuffled", "Where do geese sleep?")):
        built = asker(data).build(item, condition)
        assert [choice.question for choice in built.query.choices] == [kept]
        assert built.leaks == 2
    assert query(data, item, "plan").plan[1] == "1 choices"  # a planner does not see them either


def raises(*_: object) -> None:
    raise ValueError("no posts")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (raises, "condition 'mine' failed: ValueError: no posts"),
        (lambda *_: Query(question="?"), "condition 'mine' must give a Built or a Failure, not Query"),
    ],
)
def test_what_is_wrong_with_a_condition_of_another_package_is_one_line_that_names_it(build, says, monkeypatch):
    monkeypatch.setattr(CONDITIONS, "_known", {**CONDITIONS, "mine": Condition(name="mine", shows="", build=build)})
    data, item = only(make_row(1))
    with pytest.raises(BadInput) as caught:
        asker(data).build(item, "mine")
    assert str(caught.value) == says
