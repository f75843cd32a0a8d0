"""Texts that begin alike get the ids and offsets that they get alone, whatever the tokenizer and the texts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.engine.chat import Chat, Encoder
from prb.types import Query
from tests import tiny
from tests.tiny import transformers

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<|im", "<eot>"]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TRIMMED = "<s>{% for m in messages %}[{{ m.role }}]<eot>{{ m.content | trim }}</s>{% endfor %}"
UNMARKED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATES = [tiny.CHAT, CHATML, TRIMMED, UNMARKED, None]
HOSTILE = st.lists(
    st.sampled_from([*SPECIAL, "<", "|im_", "end|>", " ", "\n", "  ", "a", "be", "better", "é", "e\u0301", "👍🏽", "▁"])
    | st.text(max_size=4),
    max_size=8,
).map("".join)


@cache
def tokenizer(kind: str, **marks: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE(byte_fallback=kind != "bytes", unk_token=None))
    if kind == "bytes":
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=marks.pop("space", False))
        raw.decoder = decoders.ByteLevel()
    elif kind == "prepended":
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        raw.normalizer = normalizers.NFC()
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else ["▁"]
    words = [*tiny.WORDS, "▁better▁bread", "\n\n", "a<", "▁▁"]
    raw.train_from_iterator(words, trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet))
    if kind != "bytes":
        raw.add_tokens([AddedToken(f"<0x{n:02X}>", normalized=True) for n in range(256)])
    raw.add_tokens([AddedToken(token, special=True, normalized=False, **marks) for token in SPECIAL])
    raw.add_tokens([AddedToken("best", normalized=True)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


TOKENIZERS = {
    "bytes": lambda: tokenizer("bytes"),
    "bytes with a space in front": lambda: tokenizer("bytes", space=True),
    "metaspace first": lambda: tokenizer("first"),
    "metaspace always": lambda: tokenizer("always"),
    "prepended": lambda: tokenizer("prepended"),
    "tokens that take the space before them": lambda: tokenizer("bytes", lstrip=True),
    "tokens that take the space behind them": lambda: tokenizer("bytes", rstrip=True),
    "tokens that are whole words": lambda: tokenizer("first", single_word=True),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(HOSTILE, st.lists(HOSTILE, min_size=1, max_size=4))
def test_texts_that_begin_alike_are_encoded_as_if_alone(kind: str, beginning: str, ends: list[str]) -> None:
    encoder = Encoder(TOKENIZERS[kind]())
    texts = [beginning + end for end in ends]
    assert encoder.alike(texts) == [encoder.one(text) for text in texts]
    whole = [encoder.one(text, add_special_tokens=True) for text in texts]
    assert encoder.alike(texts, add_special_tokens=True) == whole


@pytest.mark.parametrize("template", TEMPLATES, ids=["tiny", "chatml", "trimmed", "unmarked", "none"])
@settings(max_examples=25)
@given(HOSTILE.filter(str.strip), st.lists(HOSTILE.filter(str.strip), min_size=1, max_size=4))
def test_answers_to_a_query_get_the_ids_of_whole_texts(template: str | None, question: str, answers: list[str]) -> None:
    made = TOKENIZERS["bytes"]()
    made.chat_template = template
    reader, query = Chat(made), Query(question=question)
    alone = [reader.texts(query, [answer])[0] for answer in answers]
    assert reader.texts(query, answers) == alone


class Counting:
    """A tokenizer that counts the characters it reads."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.characters = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self.inner(text, **options)


@pytest.mark.parametrize("template", [tiny.CHAT, CHATML])
def test_a_query_is_tokenized_once_for_all_its_answers(template: str) -> None:
    counting = Counting(TOKENIZERS["bytes"]() if template is CHATML else tiny.tokenizer())
    counting.inner.chat_template = template
    Chat(counting).texts(Query(question="better bread " * 100), [f"answer {n}" for n in range(30)])
    assert counting.characters < 2 * 1300 + 30 * 100
