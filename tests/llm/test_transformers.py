"""Replies of a tiny model against the library's own, and how tokens are drawn."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from prb.engine.chat import PLAIN_TEMPLATE, one_bos, write_prompt
from prb.engine.states import Sharing
from prb.errors import BadInput, BadSpec
from prb.llm import LLM, Completion, Request, Sampling, make_llm
from prb.llm.transformers import draw, gumbel
from prb.types import Turn
from prb.weights import convert, here
from tests.llm import tiny
from tests.llm.clients import ask_once as ask
from tests.llm.clients import said

torch = pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("transformers", reason="needs the torch extra")

QUESTIONS = ["Name a colour.", "the quick brown fox jumps over the lazy dog " * 3, "Why?", "say why you like it", "Hi"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tests run side by side
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return make_llm(f"transformers/{folder}?device=cpu")


@pytest.fixture(scope="module")
def plain(folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer, as the library loads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def next_logits(plain: tuple[Any, Any], request: Request) -> Any:
    model, words = plain
    ids = words(write_prompt(words, request.chat), add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return model(ids).logits[0, -1]


def mixed() -> list[Request]:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "seed": 1, "top_p": 0.9},
        {"temperature": 0.6, "seed": 2, "max_tokens": 5, "stop": ("e",)},
        {"top_logprobs": 4, "max_tokens": 2},
    ]
    return [ask(text, **kind) for text in QUESTIONS for kind in kinds]


def test_a_reply_depends_on_its_own_request_alone(folder: Path, llm: LLM) -> None:
    alone = [said(llm, request) for request in mixed()]
    assert llm.complete(mixed()) == alone
    assert llm.complete(mixed()[::-1]) == alone[::-1]
    for batch in (1, 3):
        assert make_llm(f"transformers/{folder}?device=cpu&batch={batch}").complete(mixed()) == alone


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_in_16_bits_requests_share_a_pass_too(folder: Path, dtype: str) -> None:
    llm: Any = make_llm(f"transformers/{folder}?device=cpu&dtype={dtype}")
    assert llm._batch == 8
    assert llm.fingerprint.endswith(f"-{dtype}-exact")
    assert llm.complete(mixed()) == llm.complete(mixed())
    assert all(isinstance(reply, Completion) for reply in llm.complete(mixed()))


def test_a_model_that_padding_changes_gets_one_request_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prb.engine.load.Checkpoint.sharing", Sharing(False, padding=False, why="as a test says"))
    llm: Any = make_llm(f"transformers/{folder}?device=cpu&revision=blind-to-padding")
    assert llm._batch == 1


THINKS = (
    "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}<|assistant|>"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)


def test_a_template_that_opens_the_thinking_is_seen_and_its_settings_reach_it(tmp_path: Path) -> None:
    folder = tiny.llama(tmp_path, template=THINKS)
    thinking = said(make_llm(f"transformers/{folder}?device=cpu"), ask("Hi", top_logprobs=4))
    assert thinking.text.startswith("<think>")
    assert thinking.first == {}, "it never got to an answer"
    quiet = make_llm(f'transformers/{folder}?device=cpu&chat_template_kwargs={{"enable_thinking": false}}')
    answer = said(quiet, ask("Hi", top_logprobs=4))
    assert answer.first
    assert "<think>" not in answer.text
    assert quiet.fingerprint != make_llm(f"transformers/{folder}?device=cpu").fingerprint


def test_greedy_replies_are_those_of_the_library(plain: tuple[Any, Any], llm: LLM) -> None:
    model, words = plain
    for text in QUESTIONS:
        ids = words.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
        completion = said(llm, ask(text, stop=("",)))  # an empty stop string stops nothing
        assert completion.text == words.decode(out, skip_special_tokens=True)
        assert completion.prompt_tokens == ids["input_ids"].shape[1]


def test_the_first_log_probabilities_are_those_of_a_plain_forward_pass(plain: tuple[Any, Any], llm: LLM) -> None:
    first = said(llm, ask("Hi", top_logprobs=3, temperature=0.3)).first
    best = next_logits(plain, ask("Hi")).log_softmax(-1).topk(3)
    assert list(first) == [plain[1].decode([token]) for token in best.indices.tolist()]
    assert list(first.values()) == pytest.approx(best.values.tolist(), abs=1e-4)
    assert said(llm, ask("Hi")).first == {}


def test_judges_prompts_that_begin_alike_are_read_once_and_weigh_what_they_weigh_alone(llm: Any) -> None:
    posts = "the quick brown fox jumps over the lazy dog " * 8
    requests = [ask(posts + end, top_logprobs=4, max_tokens=1) for end in ("A or B?", "B or A, then?", "Why?")]
    requests += [ask("Hi", top_logprobs=4, max_tokens=1), requests[0]]
    alone = [said(llm, request) for request in requests]
    lengths: list[int] = []
    embedding = llm._model.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].numel()))
    together = llm.complete(requests)
    hook.remove()
    assert sum(lengths) < sum(reply.prompt_tokens for reply in alone) / 2
    assert [reply.text for reply in together] == [reply.text for reply in alone]
    for reply, expected in zip(together, alone, strict=True):
        assert reply.first == pytest.approx(expected.first, abs=1e-5)


def test_every_end_token_of_the_repository_ends_a_reply(tmp_path: Path, plain: tuple[Any, Any], llm: LLM) -> None:
    likeliest = int(next_logits(plain, ask("Hi")).argmax())
    ending = make_llm(f"transformers/{tiny.llama(tmp_path, eos_token_id=[2, likeliest])}")
    for _ in range(2):
        reply = said(ending, ask("Hi"))
        assert reply == Completion(text="", prompt_tokens=said(llm, ask("Hi")).prompt_tokens, completion_tokens=1)
        ending = make_llm(f"transformers/{tmp_path}?batch=2")  # the same weights again, loaded once


def test_what_a_repository_suggests_about_sampling_is_not_used(tmp_path: Path, llm: LLM) -> None:
    suggestive = tiny.llama(tmp_path, repetition_penalty=5.0, top_k=1, do_sample=True, temperature=3.0)
    assert make_llm(f"transformers/{suggestive}").complete(mixed()) == llm.complete(mixed())


def test_a_reply_ends_where_the_context_does(llm: LLM) -> None:
    long = said(llm, ask("Hi", max_tokens=10_000))
    assert long.truncated == (long.prompt_tokens + long.completion_tokens == 256)


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [tiny.CHATML, tiny.CHATML.replace("{{ bos_token }}", ""), "<s><s>hello"])
def test_a_prompt_has_one_first_token_where_anybody_wants_one(template: str, adds_bos: bool) -> None:
    words = tiny.tokenizer(template, adds_bos=adds_bos)
    tokens = one_bos(words, words(write_prompt(words, ask("Hi").chat), add_special_tokens=False)["input_ids"])
    wanted = adds_bos or template.startswith(("{{ bos", "<s>"))
    assert tokens.count(1) == (1 if wanted else 0)
    assert (tokens[0] == 1) == wanted


def test_a_model_without_a_template_gets_the_plain_one(tmp_path: Path) -> None:
    words = tiny.tokenizer(None)
    chat = (Turn("system", "Be brief."), Turn("user", "Hi"))
    assert write_prompt(words, chat) == "System: Be brief.\n\nUser: Hi\n\nAssistant:"
    assert write_prompt(words, (*chat, Turn("assistant", "Well"))) == "System: Be brief.\n\nUser: Hi\n\nAssistant: Well"
    base = make_llm(f"transformers/{tiny.llama(tmp_path, template=None)}")
    assert said(base, ask("Hi")).prompt_tokens == len(words("User: Hi\n\nAssistant:")["input_ids"])


def test_a_template_that_knows_no_system_role_has_it_in_the_first_turn() -> None:
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN_TEMPLATE
    words = tiny.tokenizer(strict)
    chat = (Turn("system", "Be brief."), Turn("user", "Hi"))
    assert write_prompt(words, chat) == "User: Be brief.\n\nHi\n\nAssistant:"
    words = tiny.tokenizer("{{ raise_exception('never') }}")
    with pytest.raises(ValueError, match="template refuses this chat: never"):
        write_prompt(words, chat)


def test_the_fingerprint_is_of_weights_and_tokenizer(tmp_path: Path, folder: Path, llm: LLM) -> None:
    other = shutil.copytree(folder, tmp_path / folder.name)
    assert make_llm(f"transformers/{other}").fingerprint == llm.fingerprint
    assert make_llm(f"transformers/{tiny.llama(tmp_path / 'x' / folder.name, seed=1)}").fingerprint != llm.fingerprint
    assert str(folder.parent) not in llm.fingerprint
    assert llm.remote is False


def test_an_adapter_changes_what_is_said_and_who_says_it(tmp_path: Path, folder: Path, llm: LLM) -> None:
    peft = pytest.importorskip("peft", reason="needs the train extra")
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "o_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    torch.manual_seed(1)
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config).save_pretrained(tmp_path)
    adapted = make_llm(f"transformers/{folder}?adapter={tmp_path}")
    assert adapted.fingerprint != llm.fingerprint
    assert said(adapted, ask("Hi", top_logprobs=5)).first != said(llm, ask("Hi", top_logprobs=5)).first
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(BadInput, match=r"has no adapter_model\.safetensors"):
        make_llm(f"transformers/{folder}?adapter={tmp_path}&dtype=fp32")


def test_weights_that_could_run_code_are_refused(tmp_path: Path, folder: Path) -> None:
    from safetensors.torch import load_file

    pickled = shutil.copytree(folder, tmp_path / "pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(BadInput, match="cannot load"):
        make_llm(f"transformers/{pickled}")


def test_bad_settings_are_told_before_anything_is_loaded(folder: Path) -> None:
    with pytest.raises(BadSpec, match="batch='0': Input should be greater than or equal to 1"):
        make_llm(f"transformers/{folder}?batch=0")
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="there is no GPU here"):
            make_llm(f"transformers/{folder}?device=cuda")


def test_a_converted_gguf_says_the_same_in_both_back_ends(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs the llamacpp extra")
    path = tiny.gguf(tmp_path / "tiny.gguf", space_first=True)  # as transformers reads all such files
    (tmp_path / "converted").mkdir()
    convert(path, tmp_path / "converted")
    request = ask("hi there", top_logprobs=5, max_tokens=1)
    ours = said(make_llm(f"transformers/{tmp_path / 'converted'}"), request)
    theirs = said(make_llm(f"llamacpp/{path}?threads=1&context=256"), request)
    assert ours.prompt_tokens == theirs.prompt_tokens
    assert list(ours.first.values()) == pytest.approx(list(theirs.first.values()), abs=0.02)


@pytest.mark.skipif(here("smollm2") != "yes", reason="needs SmolLM2: prb models pull smollm2")
def test_smollm2_reads_the_same_tokens_in_both_back_ends() -> None:
    pytest.importorskip("xllamacpp", reason="needs the llamacpp extra")
    ours = make_llm("transformers/smollm2?device=cpu")
    theirs = make_llm("llamacpp/smollm2?threads=1&context=512")
    texts = ["a  1\n\n 2   3\t4 x", "It's 12½ ٣ café 你好 😀", "x=1;\r\n\r\n  y = 22"]
    for text in texts:
        request = ask(text, top_logprobs=5, max_tokens=1)
        mine, its = said(ours, request), said(theirs, request)
        assert mine.prompt_tokens == its.prompt_tokens
        if its.first:  # llama.cpp does not tell where a reply begins with part of a character
            assert max(mine.first.values()) == pytest.approx(max(its.first.values()), abs=0.5)  # it computes in 8 bits
    (best,) = said(ours, ask("What is the capital of France? One word.", top_logprobs=1, max_tokens=1)).first
    assert best in ("Paris", "The")


LOGITS = [2.0, 1.5, 0.2, -1.0, -4.0]


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def frequencies(sampling: Sampling, draws: int = 4000) -> list[float]:
    generator, logits = seeded(7), torch.tensor(LOGITS)
    seen = Counter(draw(logits, gumbel(5, generator).float(), sampling) for _ in range(draws))
    return [seen[token] / draws for token in range(5)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature: float) -> None:
    expected = (torch.tensor(LOGITS) / temperature).softmax(-1).tolist()
    assert frequencies(Sampling(temperature=temperature)) == pytest.approx(expected, abs=0.03)


def slow_draw(logits: Any, noise: Any, sampling: Sampling) -> int:
    """By sorting everything and going through it one by one."""
    share = (logits / sampling.temperature).softmax(-1).tolist()
    kept, held = [], 0.0
    for token in sorted(range(len(share)), key=lambda t: -share[t]):
        if kept and held >= sampling.top_p:
            break
        kept.append(token)
        held += share[token]
    return max(kept, key=lambda t: float(logits[t] + sampling.temperature * noise[t]))


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.99])
def test_a_large_vocabulary_is_drawn_from_as_by_sorting_it_all(top_p: float, width: float) -> None:
    generator, sampling = seeded(11), Sampling(temperature=0.8, top_p=top_p)
    for _ in range(5):
        logits = torch.randn(3000, generator=generator) * width
        noise = gumbel(3000, generator).float()
        token = slow_draw(logits, noise, sampling)
        assert draw(logits, noise, sampling) == token
