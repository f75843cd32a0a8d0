from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.llm import LLM, Completion, Request, Sampling, llamacpp, make_llm
from prb.llm.llamacpp import BLOCK
from prb.types import Turn
from prb.weights import file_sha256, here
from tests.llm import tiny
from tests.llm.clients import ask_once as ask
from tests.llm.clients import said

pytest.importorskip("xllamacpp", reason="needs the llamacpp extra")
pytest.importorskip("gguf", reason="needs the torch extra, to build a tiny GGUF")

needs_smollm2 = pytest.mark.skipif(here("smollm2") == "no", reason="needs SmolLM2: prb models pull smollm2")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", template=tiny.TURNS)


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return make_llm(f"llamacpp/{path}?threads=1&context=256")


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    return make_llm("llamacpp/smollm2?threads=1&context=512")


def test_the_chat_template_of_the_file_is_used_once_with_one_first_token(llm: LLM) -> None:
    assert said(llm, ask("hi")).prompt_tokens == len("[user]hi\n[go]") + 1  # tokens are letters here


def test_a_file_without_a_chat_template_gets_the_plain_one(tmp_path: Path) -> None:
    base = make_llm(f"llamacpp/{tiny.gguf(tmp_path / 'base.gguf')}?threads=1&context=256")
    chat = (Turn("system", "brief"), Turn("user", "hi"))
    prompt = "System: brief\n\nUser: hi\n\nAssistant:"
    assert said(base, Request(chat, Sampling(max_tokens=1))).prompt_tokens == len(prompt) + 1


def test_a_reply_depends_on_its_own_request_alone(llm: LLM) -> None:
    shared = "abcdefgh" * 12
    requests = [
        ask(shared, top_logprobs=5),
        ask(f"{shared} and more", top_logprobs=5),
        ask(shared[:50], temperature=1.0, seed=4, top_logprobs=5),
        ask("other", temperature=0.7, top_p=0.9, seed=4),
    ]
    alone = [said(llm, request) for request in requests]
    assert llm.complete([*requests, *requests[::-1]]) == [*alone, *alone[::-1]]


def test_what_prompts_share_is_read_once_in_whole_blocks(llm: Any) -> None:
    def count(*requests: Request) -> tuple[int, int]:
        read, kept = llm.tokens_read, llm.tokens_kept
        llm.complete(requests)
        return llm.tokens_read - read, llm.tokens_kept - kept

    def size(text: str) -> int:
        return len(f"[user]{text}\n[go]") + 1

    shared, other = "abcdefgh" * 20, "other"
    llm.complete([ask("something else")])
    assert count(*(ask(shared, temperature=1.0, seed=seed) for seed in range(4))) == (size(shared), 0)
    ends = [f"{shared}{end}" for end in ("A or B?", "B or A?", "neither")]
    whole = len(f"[user]{shared}") // BLOCK * BLOCK
    assert count(ask(ends[0]), ask(other), ask(ends[1]), ask(ends[2])) == (
        sum(map(size, [*ends, other])) - 3 * whole,
        3 * whole,
    )


@needs_smollm2
def test_smollm2_answers(smollm2: LLM) -> None:
    chat = (Turn("user", "What is the capital of France?"), Turn("assistant", "The capital of France is"))
    reply = said(smollm2, Request(chat, Sampling(max_tokens=3, top_logprobs=3)))
    assert reply.text.startswith(" Paris")
    assert next(iter(reply.first)) == " Paris"


@pytest.mark.parametrize(("draws", "top_p", "fewest"), [(150, 1.0, 45), (60, 0.5, 20)])
def test_unlikely_tokens_are_drawn_too_and_temperature_comes_before_top_p(
    draws: int, top_p: float, fewest: int, llm: LLM
) -> None:
    """At this temperature all are about equally likely, so half the probability is half the tokens. Filters that
    llama.cpp applies unasked, such as top-k 40, would leave fewer."""
    requests = [ask("hi", temperature=50.0, top_p=top_p, seed=seed, max_tokens=1) for seed in range(draws)]
    assert len({reply.text for reply in llm.complete(requests) if isinstance(reply, Completion)}) > fewest


def test_log_probabilities_are_of_the_first_token_and_before_temperature(llm: LLM) -> None:
    cold, hot = (said(llm, ask("hi", temperature=t, top_logprobs=4, seed=1)).first for t in (0.0, 0.2))
    assert cold == hot
    assert len(cold) == 4
    assert list(cold.values()) == sorted(cold.values(), reverse=True)
    assert said(llm, ask("hi")).first == {}


def test_it_prints_nothing(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    llm = llamacpp.LlamaCpp(path, threads=1, context=128)
    llm.complete([ask("hi"), ask("hi" * 300)])
    del llm
    assert capfd.readouterr() == ("", "")


def test_nobody_else_can_use_its_port(llm: Any) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{llm._server.listening_address}/props")


def test_the_fingerprint_is_the_hash_of_the_file_wherever_it_is(path: Path, llm: LLM, tmp_path: Path) -> None:
    assert llm.fingerprint == f"llamacpp-{file_sha256(path)[:16]}-256"
    assert llm.remote is False
    copy = shutil.copy(path, tmp_path / "another-name.gguf")
    assert make_llm(f"llamacpp/{copy}?threads=1&context=256").fingerprint == llm.fingerprint
    assert make_llm(f"llamacpp/{path}?threads=1&context=256") is llm, "the same weights are loaded once"


def test_a_file_that_is_no_gguf_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(BadInput, match="is it a GGUF file"):
        make_llm(f"llamacpp/{tmp_path / 'text.gguf'}")
