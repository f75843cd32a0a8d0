"""The paper's procedure, against its steps written out plainly."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prb.errors import BadInput, Unreachable
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.paper import paper_orders, paper_verdict
from prb.evaluation.run import evaluate
from prb.llm import ScriptedLLM
from prb.reporting.evaluation_results import evaluation_table
from prb.runs import OUTCOMES, read_lines
from prb.summary import Summary
from prb.types import Failure
from tests.conftest import make_row


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("I think. Result: B", "B"),
        ("Result: A", "A"),
        ("**Result:** **B**", "B"),
        ('result: "b" because', "B"),
        ("<think>Result: B</think> Result: A", "A"),
        ("Result: A. Later: Result: B", "A"),
        ("I cannot say.", None),
        ("", None),
        ("Result: Result: B", None),
        ("Result: both", "B"),
    ],
)
def test_a_verdict_is_read_as_the_scripts_read_it(text, verdict):
    assert paper_verdict(text) == verdict


def test_orders_are_drawn_in_file_order_from_a_seed_set_anew_for_each_subset():
    subsets = [("x", 0), ("x", 1), ("x", 2), ("y", 0), ("y", 1), ("z", 5)]
    expected = []
    for rows_of_subset in (3, 2):
        random.seed(42)
        expected += [random.random() < 0.5 for _ in range(rows_of_subset)]
    random.seed(42)
    expected.append([random.random() < 0.5 for _ in range(6)][5])  # a row that a limit took keeps its place
    assert paper_orders(subsets) == expected


def rows(n: int) -> list[dict[str, object]]:
    return [make_row(k, category="Society_and_Culture" if k % 2 else "Art_and_Entertainment") for k in range(n)]


def test_an_unparsed_judgment_counts_as_a_and_the_run_says_so(write_jsonl, tmp_path):
    path = write_jsonl(rows(12))
    model = "judge?llm=scripted/I cannot say."
    config = EvaluateConfig(model=(model,), dataset=str(path), protocol="paper", out=tmp_path / "run")
    summary = evaluate(config).summary
    orders = paper_orders([("rows", k) for k in range(12)])  # one file is one subset, whatever its categories
    (result,) = summary["results"]
    assert summary["protocol"] == "paper"
    assert result["accuracy"]["value"] == sum(orders) / 12
    assert result["paper"] == {"ties": 0, "unparsed": 12}
    assert all(
        line["text"] == ["I cannot say."] and not line["post_ids"] for line in read_lines(tmp_path / "run" / OUTCOMES)
    )


def answering(monkeypatch: pytest.MonkeyPatch, replies: object, **attributes: object) -> ScriptedLLM:
    """A judge that replies with these."""
    llm = ScriptedLLM(replies)
    for name, value in attributes.items():
        setattr(llm, name, value)
    monkeypatch.setattr("prb.evaluation.paper.make_llm", lambda _: llm)
    return llm


def judged(path: Path, out: Path, **changes: object) -> dict[str, Any]:
    settings = {"model": "judge?llm=scripted/x", "dataset": path, "protocol": "paper", "out": out, **changes}
    (result,) = evaluate(EvaluateConfig(**settings)).summary["results"]
    return dict(result)


def test_an_empty_reply_counts_as_a_and_any_other_failure_stops_the_run(write_jsonl, tmp_path, monkeypatch):
    path = write_jsonl(rows(4))
    answering(monkeypatch, Failure("empty reply", "finish_reason stop", prompt_tokens=7))
    result = judged(path, tmp_path / "run")
    assert result["accuracy"]["value"] == sum(paper_orders([("", k) for k in range(4)])) / 4
    assert (result["accuracy"]["failed"], result["paper"]["unparsed"]) == (0, 4)
    assert [line["tokens"] for line in read_lines(tmp_path / "run" / OUTCOMES)] == [7] * 4
    answering(monkeypatch, Failure("refused"))
    with pytest.raises(Unreachable, match="has no place for failures"):
        judged(path, tmp_path / "other")


@pytest.mark.parametrize("slots", ["{question}|{answer_a}|{answer_b}", "{question}|{Response_A}|{Response_B}"])
def test_a_prompt_of_ones_own_is_filled_in_one_pass_whichever_names_its_slots_have(
    slots, write_jsonl, tmp_path, monkeypatch
):
    (tmp_path / "p.txt").write_text(slots + "\n", "utf-8")
    llm = answering(monkeypatch, "Result: A")
    path = write_jsonl([make_row(1, question="Which?", chosen="say {answer_b}", rejected="other")])
    judged(path, tmp_path / "run", protocol=f"paper?prompt={tmp_path / 'p.txt'}")
    assert [request.chat for request in llm.requests] == [(("user", "Which?|other|say {answer_b}"),)]


def test_the_prompts_folder_of_the_paper_gives_both_messages(write_jsonl, tmp_path, monkeypatch):
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "pairwise_system.txt").write_text("Be fair.\n", "utf-8")
    (folder / "pairwise_user.txt").write_text("{question}: {Response_A} or {Response_B}\n", "utf-8")
    llm = answering(monkeypatch, "Result: A")
    path = write_jsonl([make_row(1, question="Which?", chosen="this", rejected="that")])
    judged(path, tmp_path / "run", protocol=f"paper?prompt={folder}")
    assert [request.chat for request in llm.requests] == [(("system", "Be fair."), ("user", "Which?: that or this"))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("Which is better?", "lacks {answer_a}, {answer_b}, {question}"),
        ("{question} {answer_a} {answer_b} {profile}", "unknown slots {profile}"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused_before_anything_is_read(content, message, tmp_path):
    path = tmp_path / "p.txt"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(BadInput, match=re.escape(message)):
        judged(tmp_path / "no such dataset.jsonl", tmp_path / "run", protocol=f"paper?prompt={path}")
    assert not (tmp_path / "run").exists()


def test_a_remote_judge_gets_the_question_masked_unless_told_otherwise(write_jsonl, tmp_path, monkeypatch):
    path = write_jsonl([make_row(1, question="Should ann@example.org reply?")])
    for masking, shown in (("auto", False), ("off", True)):
        llm = answering(monkeypatch, "Result: A", remote=True)
        judged(path, tmp_path / masking, mask_pii=masking)
        assert ("ann@example.org" in llm.requests[0].chat[1].text) is shown


def test_what_the_procedure_cannot_honor_is_refused(write_jsonl, tmp_path):
    path = str(write_jsonl(rows(2)))
    for changes, message in (
        ({"model": ("length",)}, "knows --model classifier"),
        ({"model": ()}, "knows --model classifier"),
        ({"condition": ("profile",)}, "shows no profile"),
        ({"batch": 5}, "must be a multiple of 4"),
        ({"k": 3}, "no choice of k: omit --k"),
        ({"orders": "one"}, "no choice of orders"),
        ({"seed": 1}, "no choice of seed"),
        ({"model": "judge?llm=scripted/x&max_tokens=9"}, "no choice of max_tokens"),
        ({"model": "classifier?path=x&dtype=fp32"}, "no choice of dtype"),
        ({"model": "classifier?path=x", "protocol": f"paper?prompt={tmp_path}"}, "no --model is one"),
    ):
        settings = {"model": ("judge?llm=scripted/x",), "dataset": path, "protocol": "paper", "out": tmp_path / "r"}
        with pytest.raises(BadInput, match=message):
            evaluate(EvaluateConfig(**{**settings, **changes}))


@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier_is_scored_in_padded_batches_of_eight_in_bf16_with_special_tokens_twice(
    labels, write_jsonl, tmp_path
):
    from tests import tiny
    from tests.tiny import torch, transformers

    folder = tiny.save(tmp_path / "m", "llama", labels=labels)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    net = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).eval()
    net.score.weight.data *= 100 if labels > 1 else 1  # probabilities near 0 and 1, as trained heads have them
    net.save_pretrained(folder)
    path = write_jsonl(rows(24))
    config = EvaluateConfig(model=f"classifier?path={folder}", dataset=path, protocol="paper", out=tmp_path / "run")
    summary = evaluate(config).summary
    turns = [
        [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row[side]}]
        for row in rows(24)
        for side in ("chosen", "rejected")
    ]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in turns]
    expected: list[float] = []
    for start in range(0, len(texts), 8):
        batch = tokenizer(texts[start : start + 8], padding=True, truncation=True, max_length=8192, return_tensors="pt")
        assert (batch["input_ids"][:, :2] == tokenizer.bos_token_id).all()  # one of the template, one of the tokenizer
        with torch.no_grad():
            logits = net(**batch).logits
        expected += [float(row[0] if labels == 1 else torch.softmax(row, dim=-1)[-1]) for row in logits]
    lines = list(read_lines(tmp_path / "run" / OUTCOMES))
    assert [score for line in lines for score in line["scores"]] == expected
    assert [line["credit"] for line in lines] == [
        float(chosen > rejected) for chosen, rejected in zip(expected[::2], expected[1::2], strict=True)
    ]
    tied = sum(chosen == rejected for chosen, rejected in zip(expected[::2], expected[1::2], strict=True))
    assert tied or labels == 1  # a softmax in bf16 ties, and ties are lost and counted
    assert summary["results"][0]["paper"] == {"ties": tied, "unparsed": 0}
    table = evaluation_table(Summary.read(summary))
    assert (table.columns[-3:], table.rows[0][-3:]) == (("ties", "unparsed", "failed"), (str(tied), "0", "0"))
    assert "ties count as lost" in table.notes[0]


def test_batches_and_orders_start_anew_with_each_subset(tmp_path, monkeypatch):
    """Two subsets of six and five rows, one of them in two files: as if each had been evaluated on its own."""
    data = tmp_path / "data"
    numbers = {"Art/test-0": range(4), "Art/test-1": range(4, 6), "Society/test": range(6, 11), "Art/train": (11,)}
    for name, ks in numbers.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(make_row(k, category="any")) + "\n" for k in ks]
        (data / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    batches: list[list[str]] = []

    class Inputs(dict[str, list[str]]):
        def to(self, _: object) -> Inputs:
            return self

    class Tokenizer:
        chat_template = "the answer"

        def apply_chat_template(self, chat: list[dict[str, str]], **_: object) -> str:
            return chat[1]["content"]

        def __call__(self, texts: list[str], **_: object) -> Inputs:
            batches.append(texts)
            return Inputs(texts=texts)

    class Model:
        def get_input_embeddings(self) -> SimpleNamespace:
            return SimpleNamespace(weight=SimpleNamespace(device="cpu"))

        def __call__(self, texts: list[str]) -> SimpleNamespace:
            return SimpleNamespace(logits=[[float(len(text))] for text in texts])

    head = SimpleNamespace(fingerprint="head", tokenizer=Tokenizer(), model=Model(), came_with_padding=True)
    monkeypatch.setattr("prb.engine.load.load", lambda *_: head)
    settings: dict[str, Any] = {"dataset": data, "protocol": "paper", "batch": 4}
    out = tmp_path / "scored"
    evaluate(EvaluateConfig(model="classifier?path=x", out=out, **settings))
    assert [len(batch) for batch in batches] == [8, 4, 8, 2]
    finished = (out / "summary.json").read_bytes()
    kept = (out / "replies.jsonl").read_bytes().splitlines(keepends=True)[:12]  # all of the first subset
    (out / "replies.jsonl").write_bytes(b"".join(kept))
    (out / "summary.json").unlink()
    batches.clear()
    evaluate(EvaluateConfig(model="classifier?path=x", out=out, **settings))
    assert ([len(batch) for batch in batches], (out / "summary.json").read_bytes()) == ([8, 2], finished)
    answering(monkeypatch, "Result: A")
    evaluate(EvaluateConfig(model="judge?llm=scripted/x", out=tmp_path / "judged", **settings))
    won = [line["credit"] == 1.0 for line in read_lines(tmp_path / "judged" / OUTCOMES)]
    assert won == [*paper_orders([("", k) for k in range(6)]), *paper_orders([("", k) for k in range(5)])]
