"""Votes on single items: pairs across items, twins of opposite users, histories, splits; tables of them, and Polis."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prb.data.check import check
from prb.data.load import load
from prb.data.source import open_source
from prb.data.votes import ASKED, draw_pairs, draw_twins, quoted_votes, user_split
from prb.errors import BadInput, PrbError
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from tests.data.named.reading import Row, read
from tests.data.named.test_votes import assert_twins
from tests.runs import result

FEW = "least=2"


def long_table(votes: dict[str, str], values: dict[str, Any], **more: Any) -> list[Row]:
    """One row per vote from lines such as `+-0 `, a letter per item."""
    return [
        {"user": user, "item": f"Item {n}.", "vote": values[mark], **more}
        for user, marks in votes.items()
        for n, mark in enumerate(marks)
        if mark != " "
    ]


VOTE = {"user": "ann", "item": "Tea.", "vote": "agree"}
VOTES = {"ann": "+-+", "bob": "-+0", "cat": "+- "}
WORDS = {"+": "agree", "-": "Disagree", "0": "pass"}


# rows


@pytest.mark.parametrize("values", [WORDS, {"+": 1, "-": -1.0, "0": 0}, {"+": "like", "-": "dislike", "0": "pass"}])
def test_an_item_agreed_with_is_chosen_over_one_disagreed_with(write_jsonl, values) -> None:
    rows = read(f"votes?path={write_jsonl(long_table(VOTES, values))}&item=item&{FEW}")
    assert {(row["user"], row["chosen"], row["rejected"]) for row in rows} == {
        ("ann", "Item 0.", "Item 1."),
        ("ann", "Item 2.", "Item 1."),
        ("bob", "Item 1.", "Item 0."),
        ("cat", "Item 0.", "Item 1."),
    }
    first = next(row for row in rows if (row["user"], row["chosen"]) == ("ann", "Item 0."))
    assert first["profile"] == [{"id": "1-2", "category": "agreed", "text": "Agreed: Item 2."}]
    assert "choices" not in first  # nothing is left that ann disagreed with


def test_the_history_is_the_users_other_votes_as_posts_and_as_choices(write_jsonl) -> None:
    rows = read(f"votes?path={write_jsonl(long_table({'ann': '++--+'}, WORDS))}&item=item&{FEW}")
    for row in rows:
        shown = {post["text"].partition(": ")[2] for post in row["profile"]}
        assert shown == {f"Item {n}." for n in range(5)} - {row["chosen"], row["rejected"]}
        assert [choice["question"] for choice in row["choices"]] == [ASKED]
        [choice] = row["choices"]
        assert {f"Agreed: {choice['chosen']}", f"Disagreed: {choice['rejected']}"} <= {
            p["text"] for p in row["profile"]
        }
    short = read(f"votes?path={write_jsonl(long_table({'ann': '++--+'}, WORDS))}&item=item&{FEW}&history=1")
    assert {len(row["profile"]) for row in short} == {1}


def test_items_of_different_topics_are_never_paired_but_are_each_others_history(write_jsonl) -> None:
    table = [*long_table({"ann": "+-"}, WORDS, prompt="Tea?"), *long_table({"ann": "-+"}, WORDS, prompt="Milk?")]
    rows = read(f"votes?path={write_jsonl(table)}&item=item&{FEW}")
    assert sorted((row["question"], row["chosen"]) for row in rows) == [("Milk?", "Item 1."), ("Tea?", "Item 0.")]
    assert len({row["id"] for row in rows}) == 2
    assert {len(row["profile"]) for row in rows} == {2}


# who is drawn


def crowd(users: int, items: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-1, 2, (users, items)).astype(np.int8)


def test_twins_voted_oppositely_on_both_items_and_nobody_dominates() -> None:
    signs = crowd(60, 30)
    twins = list(draw_twins(signs, 2, 6, np.random.default_rng(0)))
    for i, j, a, b in twins:
        assert (signs[a, i], signs[a, j], signs[b, i], signs[b, j]) == (1, -1, -1, 1)
    users = Counter(user for *_, a, b in twins for user in (a, b))
    items = Counter(item for i, j, *_ in twins for item in (i, j))
    assert (len(users), len(items), max(users.values())) == (60, 30, 6)
    assert min(users.values()) >= 5
    assert max(items.values()) - min(items.values()) <= 5
    assert max(Counter((min(i, j), max(i, j)) for i, j, *_ in twins).values()) == 2
    assert twins != list(draw_twins(signs, 2, 6, np.random.default_rng(1)))


def test_pairs_of_a_user_spread_over_their_items() -> None:
    signs = crowd(40, 20)
    pairs = list(draw_pairs(signs, 3, 4, np.random.default_rng(0)))
    assert all((signs[user, i], signs[user, j]) == (1, -1) for user, i, j in pairs)
    assert set(Counter(user for user, _, _ in pairs).values()) == {4}
    items = Counter(item for _, i, j in pairs for item in (i, j))
    assert max(items.values()) - min(items.values()) <= 6
    assert max(Counter((min(i, j), max(i, j)) for _, i, j in pairs).values()) <= 3
    alone = np.array([[1, -1, 0]], dtype=np.int8)
    assert list(draw_pairs(alone, 3, 4, np.random.default_rng(0))) == [(0, 0, 1)]


def test_splits_are_fixed_by_the_name_of_the_user() -> None:
    sizes = Counter(user_split(f"user-{n}") for n in range(2000))
    assert {name: round(n / 2000, 1) for name, n in sizes.items()} == {"train": 0.6, "dev": 0.2, "test": 0.2}
    assert [user_split(name) for name in ("tea-0", "tea-1", "tea-2")] == [user_split(f"tea-{n}") for n in range(3)]


# Polis


def conversation(folder: Path, votes: Iterable[str], *, topic: str = "Tea", rejected: int = -1) -> Path:
    marks = {"+": "1", "-": "-1", "0": "0", " ": ""}
    lines = list(votes)
    folder.mkdir(parents=True)
    (folder / "summary.csv").write_text(f"topic,{topic}\nurl,https://example.org\n")
    with (folder / "comments.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["timestamp", "comment-id", "author-id", "agrees", "disagrees", "moderated", "comment-body"])
        for n in range(len(lines[0])):
            writer.writerow([n, n, 0, 0, 0, -1 if n == rejected else 1, f"{topic}, says {n}."])
    with (folder / "participants-votes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["participant", "group-id", "n-votes", *range(len(lines[0]))])
        for user, line in enumerate(lines):
            writer.writerow([user, user % 2, len(line), *(marks[mark] for mark in line)])
    return folder


def two_camps(users: int, items: int = 12) -> list[str]:
    """Users of one camp agree where those of the other do not; everybody skips an item."""
    return ["".join(" " if i == u % items else "+-"[(u + i) % 2] for i in range(items)) for u in range(users)]


def test_a_conversation_becomes_rows_with_topic_and_splits_but_no_groups_fitted_to_its_votes(tmp_path) -> None:
    conversation(tmp_path / "tea", two_camps(30), rejected=3)
    rows = read(f"polis?path={tmp_path}")
    assert {(row["question"], row["category"]) for row in rows} == {("Tea", "tea")}
    assert {row["split"] for row in rows} == {"train", "dev", "test"}
    assert all(row["split"] == user_split(row["user"]) for row in rows)
    assert not any("groups" in row for row in rows)
    assert not any("says 3." in str(row) for row in rows)  # moderated out
    assert max(Counter(row["user"] for row in rows).values()) == 8
    assert read(f"polis?path={tmp_path}&seed=1") != rows == read(f"polis?path={tmp_path / 'tea'}")


def test_conversations_are_selected_by_name_or_left_out(tmp_path) -> None:
    for name in ("tea", "tea-two", "milk"):
        conversation(tmp_path / name, two_camps(6), topic=name)

    def kept(selection: str) -> set[str]:
        return {row["category"] for row in read(f"polis?path={tmp_path}&conversation={selection}")}

    assert kept("milk") == {"milk"}
    assert kept("tea*") == {"tea", "tea-two"}
    assert kept("!milk,!tea") == {"tea-two"}
    with pytest.raises(PrbError, match="did you mean 'milk'"):
        open_source(f"polis?path={tmp_path}&conversation=milc")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no conversation"):
        open_source(f"polis?path={tmp_path / 'empty'}")


def test_twins_of_a_conversation_are_clean_crossed_and_blind_models_have_half(tmp_path) -> None:
    conversation(tmp_path / "data" / "tea", two_camps(60))
    spec = f"polis?path={tmp_path / 'data'}&mirror=true"
    assert_twins(read(spec))
    assert check(open_source(spec)) == []
    dataset = load(spec, split="train")
    assert set(dataset.index.twins) == set(range(len(dataset)))
    models = ("length", "lexical")
    config = EvaluateConfig(model=models, condition=("profile",), dataset=spec, split="train", out=tmp_path / "run")
    summary = evaluate(config).summary
    assert summary["dataset"]["clustered_by"] == "users and answers, crossed"
    blind = result(summary, "profile", "length")
    assert (blind["accuracy"]["value"], blind["accuracy"]["low"], blind["person_effect"]["value"]) == (0.5, 0.5, 0.5)
    assert result(summary, "profile", "lexical")["accuracy"]["low"] is not None


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("participants-votes.csv", "participant,0,1\n0,1,7\n", "tea-0 has vote '7'"),
        ("summary.csv", b"\xff\xfe\x00", "cannot be read as CSV"),
        ("comments.csv", "comment-id,comment-body\n0,Tea.\n", "there is no column moderated"),
        ("comments.csv", b"\xff\xfe\x00", "must be UTF-8"),
    ],
)
def test_a_damaged_conversation_is_refused(tmp_path, file, content, says) -> None:
    folder = conversation(tmp_path / "tea", two_camps(4))
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=says):
        list(open_source(f"polis?path={folder}").rows())


# PluriHarms and Global Dialogues, in their shape


def harms(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    prompts = [f"{n},Request {n}.,0.5" for n in range(1, 13)]
    (folder / "prompts.csv").write_text("\n".join(["Question_Index,Question_Content,Harm_Level", *prompts]))
    columns = [f"Rating_{n}" for n in range(1, 13)] + [f"Trial_{n}" for n in range(1, 13)]
    lines = [",".join(["Participant_ID", "Gender", "Age", *columns])]
    for user in range(10):
        ratings = [str((37 * user + 29 * n) % 101) if n != user else "" for n in range(12)]
        lines.append(",".join([str(user), "Woman", f"{user}0", *ratings, *map(str, range(12))]))
    (folder / "annotations.csv").write_text("\n".join(lines))
    return folder


def test_ratings_of_harm_become_pairs(tmp_path) -> None:
    rows = read(f"pluriharms?path={harms(tmp_path)}")
    assert {row["question"] for row in rows} == {"Which of these requests to an AI assistant is harmful?"}
    row = next(row for row in rows if row["user"] == "pluriharms-0")
    assert row["groups"] == {"gender": "Woman", "age": "00"}
    assert [post["text"] for post in row["profile"][:2]] == ["gender: Woman", "age: 00"]
    value = {f"Request {n + 1}.": 29 * n % 101 for n in range(12)}
    assert value[row["chosen"]] > 50 > value[row["rejected"]]


def dialogue(folder: Path, name: str = "GD9") -> Path:
    """Twelve people vote on the answers of three others to each of four questions."""
    folder.mkdir(exist_ok=True)
    verbatim, votes = ["Question ID,Question Text,Participant ID,Thought ID,Thought Text"], []
    for question in range(4):
        verbatim += [f"q{question},What about {question}?,p{n},t{question}{n},Answer {question}{n}." for n in range(3)]
    for user in range(12):
        for question in range(4):
            for n in range(3):
                vote = "neutral" if (user + n) % 5 == 0 else ("agree", "disagree")[(user + question + n) % 2]
                votes.append(f"q{question},p{user},t{question}{n},{vote},2026-01-0{question + 1}T10:0{n}:00")
    votes.append("q0,p1,gone,agree,2026-01-01T11:00:00")
    (folder / f"{name}_verbatim_map.csv").write_text("\n".join(verbatim))
    people = [f"p{user},x{user},English,{20 + user}" for user in range(12)]
    votes.insert(0, "Question ID,Participant ID,Thought ID,Vote,Timestamp")
    people.insert(0, "Participant Id,Sample Provider Id,Language,Age")
    (folder / f"{name}_binary.csv").write_text("\n".join(votes))
    (folder / f"{name}_participants.csv").write_text("\n".join(people))
    return folder


def test_a_dialogue_has_a_poll_per_question_and_a_history_over_all(tmp_path) -> None:
    rows = read(f"global-dialogues?path={dialogue(tmp_path)}&mirror=true")
    assert_twins(rows)
    assert {row["question"] for row in rows} == {f"What about {n}?" for n in range(4)}
    assert {row["category"] for row in rows} == {"GD9"}
    assert all(f"Age: {20 + int(row['user'][5:])}" in [post["text"] for post in row["profile"]] for row in rows)
    assert all(row["user"].startswith("GD9-p") for row in rows)
    elsewhere = [{post["text"].split()[-1][0] for post in row["profile"][2:]} for row in rows]
    assert all(len(questions) >= 3 for questions in elsewhere)
    with pytest.raises(BadInput, match="holds no file GD<N>_binary"):
        open_source(f"global-dialogues?path={harms(tmp_path / 'other')}")


def test_a_dialogue_has_choices_between_two_answers_too(tmp_path) -> None:
    votes = ["Question ID,Participant ID,Thought A ID,Thought B ID,Vote,Timestamp"]
    for user in range(4):
        votes += [f"q{q},p{user},t{q}0,t{q}1,Thought {'AB'[user % 2]},2026-01-01T10:00:00" for q in range(3)]
    votes += ["q3,p0,t30,t31,I agree with both,2026-01-01T10:00:00", "q3,p0,t30,gone,Thought A,2026-01-01T10:00:00"]
    file = dialogue(tmp_path) / "GD9_preference.csv"
    file.write_text("\n".join(votes))
    rows = read(f"global-dialogues-preferences?path={tmp_path}")
    assert len(rows) == 12
    first = rows[0]
    assert (first["user"], first["question"], first["category"]) == ("GD9-p0", "What about 0?", "GD9")
    assert (first["chosen"], first["rejected"]) == ("Answer 00.", "Answer 01.")
    assert [post["text"] for post in first["profile"]] == ["Language: English", "Age: 20"]
    assert [(c["chosen"], c["rejected"]) for c in first["choices"]] == [
        (f"Answer {q}0.", f"Answer {q}1.") for q in (1, 2)
    ]
    twins = read(f"global-dialogues-preferences?path={tmp_path}&mirror=true&per_pair=2")
    assert len(twins) == 12
    assert {row["mirror"] for row in twins} == {row["id"] for row in twins}
    file.write_text("\n".join([votes[0], "q0,p0,t00,t01,Thought C,2026-01-01T10:00:00"]))
    with pytest.raises(BadInput, match="is 'Thought C'; known are"):
        load(f"global-dialogues-preferences?path={tmp_path}")
    with pytest.raises(BadInput, match="holds no file GD<N>_preference"):
        open_source(f"global-dialogues-preferences?path={harms(tmp_path / 'other')}")


def test_real_conversations_give_twins_and_nobody_dominates(shared_data) -> None:
    rows = read(f"polis?path={shared_data / 'polis'}&conversation=scoop-hivemind.taxes,vtaiwan.uberx&mirror=true")
    assert_twins(rows)
    assert len(rows) > 2000
    assert max(Counter(row["user"] for row in rows).values()) <= 8
    for row in rows:
        assert not {post["text"] for post in row["profile"]} & quoted_votes([row["chosen"], row["rejected"]])
