"""An LLM endpoint on loopback whose replies are fixed by model, prompt and seed; it keeps what it was asked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

from tests.golden.shell import Json

WORDS = [
    "once",
    "daily",
    "rarely",
    "never",
    "weekly",
    "often",
    "soon",
    "plain",
    "water",
    "light",
    "soil",
    "time",
    "care",
]
QUOTED = re.compile(r"<<([^<>\n]+) ([0-9a-f]{12})>>\n(.*?)\n<<end of \1 \2>>", re.S)
VERDICTS = (
    ("[[A>>B]]", ("[[A>>B]]", "[[A>B]]", "[[A=B]]", "[[B>A]]", "[[B>>A]]")),
    ("[[C]]", ("[[A]]", "[[B]]", "[[C]]")),
    ("[RESULT] A", ("Feedback: so. [RESULT] A", "Feedback: so. [RESULT] B")),
    ("[RESULT] n", tuple(f"Feedback: so. [RESULT] {n}" for n in range(1, 6))),
    ("Rating: [[n]]", tuple(f"It fits.\nRating: [[{n}]]" for n in range(1, 10))),
    ("Reply with a single letter", ("A", "B")),
    ("Reply with a single digit", tuple("123456789")),
    ("Result: tie", ("So.\nResult: A", "So.\nResult: B", "So.\nResult: tie", "I cannot say.")),
    ("Result: A", ("So.\nResult: A", "So.\nResult: B", "I cannot say.")),
    ("Do not answer the question", ("1. Keep it short.\n2. Give reasons.", "1. Tell a story.\n2. Be concrete.")),
)
"""What marks a prompt, and the replies that one of is drawn."""


def judge(prompt: str, seed: int) -> str:
    """Judges, plans, grades and answers at random, by hash of the prompt."""
    draw = hashlib.sha256(f"{seed}:{prompt}".encode()).digest()
    for marker, replies in VERDICTS:
        if marker in prompt:
            return replies[draw[0] % len(replies)]
    if '"grade"' in prompt:
        grades = [{"aspect": n + 1, "why": "so", "grade": draw[n] % 3} for n in range(count_aspects(prompt))]
        return json.dumps(grades if "a list with one entry" in prompt else grades[0])
    return " ".join(WORDS[byte % len(WORDS)] for byte in draw[: 6 + draw[0] % 12])


def author(prompt: str, seed: int) -> str:  # noqa: PLR0911 - one per kind of prompt
    """Does every job of `prb build`: a wish is a made-up word, and an answer contains it or not."""
    quoted = {name: text for name, _, text in QUOTED.findall(prompt)}
    if "explanation" in quoted:
        return write_rubric(quoted["explanation"])
    if "wishes of the first person" in quoted:
        return "They cannot both be pleased.\nVerdict: conflict"
    if "needs are the opposite" in prompt:
        return "\n".join(f"{n}. wants un{code}" for n, code in enumerate(codes_in(quoted["wishes"]), 1))
    if "Write an answer" in prompt:
        return write_answer(codes_in(quoted.get("wishes", "")), seed)
    if "Grade the answer" in prompt:
        aspects = [text for name, text in quoted.items() if name.startswith("aspect ")]
        met = [f"zz{codes_in(text)[0]}" in quoted["answer"].split() for text in aspects]
        return json.dumps([{"aspect": n, "why": "so", "grade": 2 * ok} for n, ok in enumerate(met, 1)])
    if "demanding editor" in prompt:
        ratings = "correctness 4, relevance 5, helpfulness 4, fluency 5"
        return f"Both are fine.\nAnswer A: {ratings}\nAnswer B: {ratings}"
    return judge(prompt, seed)


def write_rubric(narrative: str) -> str:
    sentences = re.findall(r"[^.]+\.", narrative)[:3]
    return "\n".join(
        f'{n}. Aspect: wants {max(re.findall(r"[a-z0-9]+", text), key=len)}\nEvidence: "{text.strip()}"\nReason: so.'
        for n, text in enumerate(sentences, 1)
    )


def write_answer(codes: list[str], seed: int, length: int = 300) -> str:
    draw = hashlib.sha256(f"{codes}{seed}".encode()).digest() * 3
    text = " ".join(["zz" + code for code in codes] + [WORDS[byte % len(WORDS)] for byte in draw])
    return text[:length].strip().ljust(length, ".")


def codes_in(text: str) -> list[str]:
    return re.findall(r"wants (\w+)", text)


def count_aspects(prompt: str) -> int:
    return max(1, sum(name.startswith("aspect ") for name, _, _ in QUOTED.findall(prompt)))


class Endpoint(ThreadingHTTPServer):
    request_queue_size = 128
    """With five, as by default, a client of 64 connections waits a second for its next attempt."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[Json] = []

    def requests(self) -> list[Json]:
        """Everything asked so far, each prompt by its hash, in an order that concurrency cannot change."""
        asked = [
            {**body, "messages": hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:16]}
            for body in self.bodies
        ]
        return sorted(asked, key=lambda body: json.dumps(body, sort_keys=True))


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        prompt = "\n".join(message["content"] for message in body["messages"])
        text = {"author": author, "judge": judge}[body["model"]](prompt, body.get("seed", 0))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
        content = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Serves `openai/author` and `openai/judge`; specs need no address, so the port appears in no result."""
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with mock.patch.dict(os.environ, {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}):
            yield server
        server.shutdown()
