"""`prb serve` in the shape of vLLM's `/classify`, and what it tells about itself."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httpx2", reason="needs the api extra")
pytest.importorskip("fastapi", reason="needs the serve extra")

from tests.serving.fakes import UNSCORABLE, worth
from tests.serving.test_app import TOKEN, Server, value

CHATS = {
    "chatml": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\nAnswer.<|im_end|>\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nAnswer.<|eot_id|>",
    "gemma": "<bos><start_of_turn>system\nBe kind.<end_of_turn>\n<start_of_turn>user\nq<end_of_turn>\n"
    "<start_of_turn>model\nAnswer.<end_of_turn>\n",
}


@pytest.mark.parametrize("chat", [*CHATS, "messages"])
def test_vllm_clients_are_answered_in_their_own_terms(chat: str) -> None:
    server = Server()
    turns = (("system", "Be kind."), ("user", "q"), ("assistant", "Answer."))
    messages = [{"role": role, "content": text} for role, text in turns]
    sent: dict[str, Any] = {"messages": messages} if chat == "messages" else {"input": CHATS[chat]}
    said = server.send("POST", "/classify", json={"model": "any", "use_activation": False, **sent})
    (asked,) = server.model.batches[0]
    assert (asked.query.question, asked.query.context, asked.answer) == ("q", (("system", "Be kind."),), "Answer.")
    assert said.json()["data"] == [{"index": 0, "label": "LABEL_0", "probs": [worth(asked)], "num_classes": 1}]
    assert (said.json()["object"], said.json()["model"]) == ("list", "recorder")


def test_vllm_clients_may_say_who_asks_and_ask_for_probabilities() -> None:
    server = Server()
    query = {"question": "q", "posts": ["I am brief"]}
    sent = {"input": [CHATS["chatml"]] * 2, "query": query, "use_activation": True}
    said = server.send("POST", "/classify", json=sent).json()["data"]
    score = value("q", "Answer.")
    assert [one["probs"][0] for one in said] == pytest.approx([1 / (1 + 2.718281828459045**-score)] * 2)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({"input": [1, 2, 3]}, "token ids"),
        ({"input": [[1, 2, 3]]}, "token ids"),
        ({"input": "just a text"}, "send messages"),
        ({"input": CHATS["chatml"] + "and more"}, "send messages"),
        ({"input": "<|im_start|>user\nq<|im_end|>"}, "must end with"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "user", "content": "q"}]}, "must end with"),
        ({}, "either input or messages"),
    ],
)
def test_what_is_not_a_chat_with_an_answer_is_refused(sent: dict[str, Any], why: str) -> None:
    said = Server().send("POST", "/classify", json={"model": "any", **sent})
    assert said.status_code == 422
    assert why in said.json()["error"]


def test_an_answer_without_a_score_fails_the_request_of_a_vllm_client() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": UNSCORABLE}]
    assert Server().send("POST", "/classify", json={"messages": messages}).status_code == 422


def test_what_is_served_is_told_to_those_with_the_token() -> None:
    server = Server(token=TOKEN)
    assert [server.send("GET", "/info").status_code, server.send("POST", "/classify").status_code] == [401, 401]
    said = server.send("GET", "/info", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    assert (said["server"], said["model"], said["fingerprint"]) == ("prb", "recorder", "recorder-1")
