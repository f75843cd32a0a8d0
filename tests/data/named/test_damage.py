"""Damaged files of every named dataset: a wrong row is named with file, line and field; nothing is a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load
from prb.data.source import DATASETS, open_source
from prb.errors import BadData, PrbError
from tests.chaos.damage import change_byte, cut_off, edit_json, edit_line, empty, remove_bytes, repeat_bytes
from tests.chaos.jobs import times
from tests.data.named import test_alignx as alignx
from tests.data.named import test_judgments as judgments
from tests.data.named import test_lampqa as lampqa
from tests.data.named import test_personalllm as personalllm
from tests.data.named import test_personamem as personamem
from tests.data.named import test_polls as polls
from tests.data.named import test_prefeval as prefeval
from tests.data.named import test_rewardbench as rewardbench
from tests.data.named import test_votes as votes
from tests.data.named.reading import problems

Change = Any
"""Fields of the second row to change, or another row in its place."""


def changed(row: dict[str, Any], change: Change) -> Any:
    return {**row, **change} if isinstance(change, dict) else change


def lines(folder: Path, *rows: Any, name: str = "set.jsonl") -> Path:
    (folder / name).write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    return folder / name


def lampqa_sample(folder: Path, change: Change) -> str:
    return f"lampqa?path={lampqa.publish(folder, {**lampqa.ROW, 'id': '0_2_1'}, changed(lampqa.ROW, change))}"


def alignx_sample(folder: Path, change: Change) -> str:
    (folder / "set.json").write_bytes(orjson.dumps([alignx.ROW, changed(alignx.ROW, change)]))
    return f"alignx?path={folder / 'set.json'}"


def bespoke_sample(folder: Path, change: Change) -> str:
    return judgments.write_bespoke(folder, judgments.BESPOKE, changed(judgments.BESPOKE, change))


def prism_sample(folder: Path, change: Change) -> str:
    lines(folder, *judgments.SURVEY, name="survey.jsonl")
    lines(folder, judgments.PRISM[1], changed(judgments.PRISM[2], change), name="conversations.jsonl")
    return f"prism?path={folder}"


def items_sample(folder: Path, change: Change) -> str:
    other = {**polls.VOTE, "item": "Milk.", "vote": "disagree"}
    return f"votes?path={lines(folder, other, changed(polls.VOTE, change))}&item=item&least=2"


def one_file(name: str, first: Any, second: Any) -> Callable[[Path, Change], str]:
    return lambda folder, change: f"{name}?path={lines(folder, first, changed(second, change))}"


def preferences_sample(folder: Path, change: Change) -> str:
    row = {"Participant ID": "p1", "Thought A ID": "t00", "Thought B ID": "t01", "Vote": "Thought A"}
    votes = [",".join(row.keys()), ",".join(row.values()), ",".join(changed(row, change).values())]
    (polls.dialogue(folder) / "GD9_preference.csv").write_text("\n".join(votes))
    return f"global-dialogues-preferences?path={folder}"


SAMPLES: dict[str, Callable[[Path, Change], str]] = {
    "alignx": alignx_sample,
    "bespoke": bespoke_sample,
    "community-alignment": one_file("community-alignment", judgments.BOB, judgments.ANN),
    "coval": one_file("coval", judgments.COVAL[1], judgments.COVAL[0]),
    "global-dialogues": lambda folder, change: f"global-dialogues?path={polls.dialogue(folder)}&mirror=true",
    "global-dialogues-preferences": preferences_sample,
    "lampqa": lampqa_sample,
    "personalllm": one_file("personalllm", personalllm.table_row(1), personalllm.table_row(2)),
    "personalrewardbench": one_file("personalrewardbench", judgments.PRB[1], judgments.PRB[4]),
    "personamem": lambda folder, change: f"personamem?path={personamem.first(folder, **change)}",
    "personamem 2": lambda folder, change: f"personamem?path={personamem.second(folder, **change)}",
    "pluriharms": lambda folder, change: f"pluriharms?path={polls.harms(folder)}",
    "polis": lambda folder, change: f"polis?path={polls.conversation(folder / 'tea', polls.two_camps(8))}&mirror=true",
    "prefeval": lambda folder, change: f"prefeval?path={prefeval.publish(folder, **change)}",
    "prism": prism_sample,
    "rewardbench": one_file("rewardbench", rewardbench.SECOND, rewardbench.FIRST),
    "votes": one_file("votes", votes.VOTES[0], votes.VOTES[1]),
    "votes on items": items_sample,
}
"""Writes two sound rows, the second one changed, and returns the spec."""

FOLDER, TABLE, SET = "Art_and_Entertainment/test.json:2", "meta_test_set.parquet:2", "set.jsonl:2"
OWL = [{"role": "owl", "content": "Hu!"}]
LATE = judgments.prism_talk("c", "u", "Well?", judgments.prism_reply(0, "a", 1, True, turn="first"))  # type: ignore[arg-type]


def assessed(assessment: Any) -> Change:
    return {"metadata": {"assessments": [assessment]}}


QUESTIONS, BENCHMARK = "questions_32k.csv:3", "benchmark.csv:3"
DAMAGED: list[tuple[str, str, Change, str]] = [
    ("alignx", "set.json:2", {"chosen": None}, "`chosen` is missing"),
    ("alignx", "set.json:2", {"User-Generated Content": "none"}, "`User-Generated Content` must be a list, not text"),
    ("bespoke", TABLE, "{broken", "`meta_test_set_value` must be an object, not text"),
    ("bespoke", TABLE, {"response_list": [{"contents": "a"}]}, "`meta_test_set_value.response_list.0.need_al"),
    ("community-alignment", SET, {"annotator_id": None}, "`annotator_id` is missing"),
    ("community-alignment", SET, {"first_turn_preferred_response": "response_e"}, "`first_turn_preferred_response` is"),
    ("coval", SET, {"prompt": "text"}, "`prompt.messages` is missing"),
    ("coval", SET, assessed(judgments.assessment("ann", "A>E")), "`ranking` 'A>E' names 'E', which"),
    ("coval", SET, assessed(judgments.assessment("", "A>B")), "`metadata.assessments.0.annotator_id` is"),
    ("global-dialogues-preferences", "GD9_preference.csv:3", {"Vote": "C"}, "`Vote` is 'C'; known are"),
    ("lampqa", FOLDER, {"id": None}, "`id` is missing"),
    ("lampqa", FOLDER, {"profile": "I like tea."}, "`profile` must be a list of objects with `text`"),
    ("personalllm", SET, {"response_3_gemma_2b": "high"}, "`response_3_gemma_2b` must be a number"),
    ("personalllm", SET, {f"response_{r}": "" for r in range(1, 8)}, "`response_1` … `response_8` must hold at least"),
    ("personalrewardbench", SET, {"context": []}, "`context` is empty"),
    ("personalrewardbench", SET, {"chosen": "text"}, "`chosen.content` is missing"),
    ("personalrewardbench", SET, {"split": "holdout"}, "`split` must be 'train', 'val', 'validation' or 'test', not"),
    ("personamem", QUESTIONS, {"correct_answer": "(e)"}, "`correct_answer` is '(e)', which is none of"),
    ("personamem", QUESTIONS, {"all_options": "['Steak', 'Ham']"}, "`all_options` must hold texts that"),
    ("personamem", QUESTIONS, {"shared_context_id": "xyz"}, "`shared_context_id` 'xyz' is not in the file of shared"),
    ("personamem", QUESTIONS, {"end_index_in_shared_context": "x"}, "`end_index_in_shared_context` must"),
    ("personamem 2", BENCHMARK, {"chat_history_32k_link": "lost.json"}, "`chat_history_32k_link` 'lost.json' d"),
    ("personamem 2", BENCHMARK, {"user_query": "{}"}, "`user_query.0.content` is missing"),
    ("prefeval", "food.json:2", {"options": {"classification_task_options": ["One."]}}, "`classification_task_option"),
    ("prefeval", "food.json:2", {"options": {"preference": ""}}, "`preference` is empty"),
    ("prefeval", "food.json:2", {"persona": {"question": "Else?"}}, "`question` is not that of the same row of impl"),
    ("prism", "conversations.jsonl:2", {"conversation_history": None}, "`conversation_history` is missing"),
    ("prism", "conversations.jsonl:2", {"conversation_history": OWL}, "`conversation_history.0.role` must be 'user'"),
    ("prism", "conversations.jsonl:2", LATE, "`conversation_history.1.turn` must be an integer, not text"),
    ("votes on items", SET, {"vote": "maybe"}, "`vote` is 'maybe'; known are agree"),
    ("votes on items", SET, {"vote": 4}, "`vote` is 4; known are agree"),
    ("votes on items", SET, {"item": " "}, "`item` is empty"),
    ("votes", SET, {"choice": "C"}, "`choice` is 'C'; an answer is called a, b, 0, 1"),
    ("votes", SET, {"answers": ["x"]}, "`answers` must hold at least two answers"),
    ("votes", SET, {"prompt": [{"role": "assistant", "content": "x"}]}, "the last message of `prompt` must be the us"),
]


@pytest.mark.parametrize(("name", "place", "change", "says"), DAMAGED)
def test_a_damaged_row_is_named_with_file_line_and_field(name, place, change, says, tmp_path) -> None:
    spec = SAMPLES[name](tmp_path, change)
    [problem] = problems(spec)
    assert problem.startswith(f"{place}: {says}")
    with pytest.raises(BadData):
        load(spec, split="all")
    whole = len(list(open_source(SAMPLES[name](_folder(tmp_path / "whole"), {})).rows()))
    assert len(list(open_source(spec).rows())) <= whole


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_happens_to_its_files_a_dataset_loads_or_says_why_not(name, tmp_path) -> None:
    changes = [change_byte, remove_bytes, repeat_bytes, cut_off, empty, edit_json, edit_json, edit_line, edit_line]
    for seed in range(times(25, 2_000)):
        draws, folder = random.Random(f"{name}{seed}"), _folder(tmp_path / str(seed))
        spec = SAMPLES[name](folder, {})
        path = draws.choice(sorted(file for file in folder.rglob("*") if file.is_file()))
        path.write_bytes(draws.choice(changes)(path.read_bytes(), draws))
        with suppress(PrbError):
            load(spec, split="all", skip_bad=True)
            load(spec, split="all")


def test_every_dataset_that_reads_files_has_a_sample() -> None:
    made = {"mirror", "simulate"}
    assert {name for name in DATASETS if name in SAMPLES} == {name for name in SAMPLES if name in DATASETS}
    assert set(DATASETS) - made <= {name.partition(" ")[0] for name in SAMPLES} | {"tiny"}
