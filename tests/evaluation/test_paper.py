"""The paper's procedure, against its steps written out plainly."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from prb.errors import BadInput, RunConflict
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.paper import paper_orders, paper_score, paper_verdict
from prb.evaluation.run import evaluate
from prb.runs import OUTCOMES, read_lines
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
        ("I cannot say.", "A"),
        ("", "A"),
        ("Result: both", "B"),
    ],
)
def test_a_verdict_is_read_as_the_scripts_read_it(text: str, verdict: str) -> None:
    assert paper_verdict(text) == verdict


def test_orders_are_drawn_in_file_order_from_a_seed_set_anew_for_each_subset() -> None:
    ids, subsets = [f"r{n}" for n in range(8)], ["x", "x", "y", "x", "y", "y", "x", "y"]
    wanted = {}
    for subset in ("x", "y"):
        random.seed(42)
        wanted |= {i: random.random() < 0.5 for i, s in zip(ids, subsets, strict=True) if s == subset}
    assert paper_orders(ids, subsets) == wanted


def test_several_logits_give_the_last_softmax_probability() -> None:
    assert paper_score([0.3]) == 0.3
    assert paper_score([0.0, 0.0]) == 0.5


def rows(n: int) -> list[dict[str, object]]:
    return [make_row(k, category="Society_and_Culture" if k % 2 else "Art_and_Entertainment") for k in range(n)]


def test_an_unparsed_judgement_counts_as_a_and_the_run_says_so(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_jsonl(rows(12))
    model = "judge?llm=scripted/I cannot say."
    config = EvaluateConfig(model=(model,), dataset=str(path), protocol="paper", out=tmp_path / "run")
    summary = evaluate(config).summary
    orders = paper_orders([f"r{k}" for k in range(12)], [str(r["category"]) for r in rows(12)])
    assert summary["protocol"] == "paper"
    assert summary["results"][0]["accuracy"]["value"] == sum(orders.values()) / 12
    assert all(
        line["text"] == ["I cannot say."] and not line["post_ids"] for line in read_lines(tmp_path / "run" / OUTCOMES)
    )


def test_a_users_own_judge_prompt_is_filled_in_one_pass(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    prompt = tmp_path / "p.txt"
    prompt.write_text("{question}|{answer_a}|{answer_b}", "utf-8")
    path = write_jsonl([make_row(1, chosen="say {answer_b}", rejected="other")])
    config = EvaluateConfig(
        model=("judge?llm=scripted/Result: A",),
        dataset=str(path),
        protocol="paper",
        judge_prompt=prompt,
        out=tmp_path / "r",
    )
    assert evaluate(config).summary["results"][0]["accuracy"]["n"] == 1


def test_other_models_conditions_and_odd_batches_are_refused(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    path = str(write_jsonl(rows(2)))
    for changes, message in (
        ({"model": ("length",)}, "knows `classifier"),
        ({"condition": ("profile",)}, "shows no profile"),
        ({"batch": 5}, "must be a multiple of 4"),
    ):
        settings = {"model": ("judge?llm=scripted/x",), "dataset": path, "protocol": "paper", "out": tmp_path / "r"}
        with pytest.raises(BadInput, match=message):
            evaluate(EvaluateConfig(**{**settings, **changes}))  # type: ignore[arg-type]


def test_a_classifier_is_scored_in_padded_batches_of_eight_with_special_tokens_twice(
    write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    from tests import tiny
    from tests.tiny import torch, transformers

    folder = tiny.save(tmp_path / "m", "llama", labels=1)
    path = write_jsonl(rows(6))
    model = f"classifier?path={folder}"
    evaluate(EvaluateConfig(model=(model,), dataset=str(path), protocol="paper", out=tmp_path / "run"))
    lines = list(read_lines(tmp_path / "run" / OUTCOMES))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    net = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).eval()
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": r["question"]}, {"role": "assistant", "content": r[side]}], tokenize=False
        )
        for r in rows(6)
        for side in ("chosen", "rejected")
    ]
    wanted = []
    for start in range(0, len(texts), 8):
        batch = tokenizer(texts[start : start + 8], padding=True, truncation=True, max_length=8192, return_tensors="pt")
        assert (batch["input_ids"][:, :2] == tokenizer.bos_token_id).all()  # one of the template, one of the tokenizer
        with torch.no_grad():
            wanted += net(**batch).logits[:, 0].float().tolist()
    got = [score for line in lines for score in line["scores"]]
    assert got == wanted
    assert [line["credit"] for line in lines] == [float(a > b) for a, b in zip(wanted[::2], wanted[1::2], strict=True)]


def test_a_short_name_is_the_name_of_the_outcomes(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    path = write_jsonl(rows(8))
    model = "j:=judge?llm=scripted/Result: A"
    config = EvaluateConfig(model=model, dataset=path, protocol="paper", out=tmp_path / "run")
    (result,) = evaluate(config).summary["results"]
    assert (result["model"], result["accuracy"]["n"]) == ("j", 8)


def test_other_weights_at_the_same_path_are_another_model(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    tiny = pytest.importorskip("tests.tiny", reason="needs the torch extra")
    path = write_jsonl(rows(12))

    def run(seed: int) -> None:
        folder = tiny.save(tmp_path / "weights", "llama", labels=1, seed=seed)
        model = f"classifier?path={folder}"
        evaluate(EvaluateConfig(model=model, dataset=path, protocol="paper", batch=4, limit=8, out=tmp_path / "run"))

    run(1)
    lines = (tmp_path / "run" / OUTCOMES).read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / OUTCOMES).write_bytes(b"".join(lines[:4]))
    with pytest.raises(RunConflict, match="when the run began"):
        run(2)
    run(1)
