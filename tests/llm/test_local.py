"""What both back ends in this process promise, llama.cpp and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from prb.llm import LLM, Request, Sampling, make_llm
from prb.types import Failure, Turn
from tests.llm import tiny
from tests.llm.clients import ask_once as ask
from tests.llm.clients import said

NEEDS = {"llamacpp": ("xllamacpp", "gguf"), "transformers": ("torch", "transformers")}


@pytest.fixture(scope="module", params=NEEDS)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("tiny")
    for library in NEEDS[request.param]:
        pytest.importorskip(library, reason="needs an extra")
    if request.param == "llamacpp":
        return make_llm(f"llamacpp/{tiny.gguf(folder / 'tiny.gguf', template=tiny.TURNS)}?threads=1&context=256")
    return make_llm(f"transformers/{tiny.llama(folder)}?device=cpu")


def test_a_seed_repeats_its_draw_and_another_draws_anew(llm: LLM) -> None:
    texts = [said(llm, ask("hi", temperature=1.0, seed=seed)).text for seed in (-1, -1, 2, 3, 4, 2**70)]
    assert texts[0] == texts[1], "to llama.cpp -1 would mean a new one each time"
    assert len(set(texts)) > 2


def test_a_stop_string_is_cut_with_all_behind_it(llm: LLM) -> None:
    whole = said(llm, ask("Name a color."))
    stop = whole.text[3:5]
    cut = said(llm, ask("Name a color.", stop=("never said", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (whole.truncated, cut.truncated) == (True, False)
    assert cut.completion_tokens < whole.completion_tokens == 12


def test_a_prompt_over_the_context_is_a_failure_and_its_neighbor_is_not(llm: LLM) -> None:
    good, bad = llm.complete([ask("hi"), ask("hi " * 300)])
    assert good == said(llm, ask("hi"))
    assert bad.reason == "prompt longer than the context"
    assert "context 256" in bad.detail


def test_an_empty_chat_and_a_lone_surrogate_are_failures(llm: LLM) -> None:
    for request in (Request(()), ask("\ud800")):
        (failure,) = llm.complete([request])
        assert isinstance(failure, Failure)


def test_an_answer_that_was_begun_is_continued(llm: LLM) -> None:
    begun = Request((Turn("user", "hi"), Turn("assistant", "the")), Sampling(max_tokens=3))
    reply, neighbor = llm.complete([begun, ask("hi")])
    assert reply.prompt_tokens > said(llm, ask("hi")).prompt_tokens == neighbor.prompt_tokens
    assert not reply.text.startswith("the")
