"""Mutated rows, replies and bodies: taken as they are or refused with a reason, never guessed at, never a traceback."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from prb.data.check import check
from prb.data.load import load
from prb.data.source import open_source
from prb.errors import PrbError
from prb.llm import Completion
from prb.models.judge import STYLES, read_choice, read_rating
from prb.types import Failure, Pair
from tests.chaos.damage import change_byte, cut_off, edit_json, remove_bytes, repeat_bytes
from tests.chaos.jobs import times
from tests.conftest import make_row
from tests.models.test_judge import SAYS

httpx = pytest.importorskip("httpx2", reason="needs the api extra")
pytestmark = pytest.mark.chaos
ROWS_PER_FILE = 40
ASIDES = (
    "",
    "<think>B, no, A</think>",
    "I like A and B. ",
    "```\nResult: B\n```\n",
    "Wait, ",
    " or B",
    "\n\n[[B]]",
    "5/10 ",
)
SCORE = {"query": {"question": "q", "posts": ["I am brief"], "user": "u"}, "answers": ["a", "b"], "partial": True}
REWARD = {"query": ["Q: q\nAnswer."], "prompts": ["Q: q\n"], "labels": [orjson.dumps({"question": "q"}).decode()]}


def mutated(content: bytes, draws: random.Random) -> bytes:
    """One to three changes of values or bytes; a line stays a line."""
    for _ in range(draws.randint(1, 3)):
        change = draws.choice([edit_json, edit_json, edit_json, change_byte, remove_bytes, repeat_bytes, cut_off])
        content = change(content, draws)
    return content.replace(b"\n", b" ")


def test_a_mutated_row_is_read_as_it_is_or_refused_by_its_line(tmp_path):
    sound = [make_row(n, context=[{"role": "user", "text": "Hi"}] * (n % 2)) for n in range(ROWS_PER_FILE)]
    for seed in range(times(400, 100_000) // ROWS_PER_FILE):
        draws, path = random.Random(seed), tmp_path / "rows.jsonl"
        lines = [mutated(orjson.dumps(row), draws) for row in sound]
        path.write_bytes(b"\n".join(lines) + b"\n")
        with suppress(PrbError):
            check(open_source(str(path)))
        with suppress(PrbError):
            dataset = load(str(path), skip_bad=True, split="all")
            taken = list(dataset)
            assert len(taken) + dataset.left_out == sum(map(bool, map(bytes.strip, lines))), seed
            written = list(texts(lines))
            assert all(isinstance(pair, Pair) and (pair.question, pair.answers) in written for pair in taken), seed


def texts(lines: list[bytes]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Question and answers of each line that is a row."""
    for line in lines:
        with suppress(orjson.JSONDecodeError, KeyError, TypeError):
            row = orjson.loads(line)
            yield row["question"], (*listed(row["chosen"]), *listed(row["rejected"]))


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


@pytest.mark.parametrize("name", [name for name, style in STYLES.items() if style.kind != "checklist"])
def test_a_mutated_reply_has_a_verdict_or_none_whichever_answer_it_names(name):
    """A judge's words with A and B exchanged are the exchanged verdict: neither letter is a default."""
    style, exchanged = STYLES[name], {"first": "second", "second": "first"}
    for seed in range(times(100, 2_000)):
        text = reply(name, random.Random(f"{name}{seed}"))
        if style.kind == "rating":
            rating = read_rating(Completion(text=text), style)
            assert rating is None or isinstance(rating, Failure) or str(int(rating)) in text, text
            continue
        choice = read_choice(Completion(text=text), style)
        if choice is not None and not isinstance(choice, Failure) and not re.search("tie|draw", text, re.IGNORECASE):
            other = read_choice(Completion(text=exchange(text, style.keys)), style)
            assert other is not None, text
            assert not isinstance(other, Failure), text
            assert other.choice == exchanged.get(choice.choice, choice.choice), text


def reply(name: str, draws: random.Random) -> str:
    said = draws.choice(SAYS.get(name, ("Rating: [[7]]", "[RESULT] 4", "6")))
    text = draws.choice(ASIDES) + said + draws.choice(ASIDES)
    for _ in range(draws.randint(0, 3)):
        change = draws.choice([change_byte, remove_bytes, repeat_bytes, cut_off])
        text = change(text.encode(), draws).decode("utf-8", "replace")
    return text


def exchange(text: str, keys: tuple[str, str] | None) -> str:
    names = dict(zip(keys, keys[::-1], strict=True)) if keys else {"A": "B", "B": "A", "a": "b", "b": "a"}
    pattern = "|".join(map(re.escape, names))
    return re.sub(pattern if keys else rf"(?<![^\W_])(?:{pattern})(?![^\W_])", lambda match: names[match[0]], text)


def test_a_mutated_body_is_scored_as_it_is_or_refused_by_the_reward_server():
    pytest.importorskip("fastapi", reason="needs the serve extra")
    from tests.serving.test_app import Server

    async def talk(client: Any) -> None:
        for seed in range(times(300, 10_000)):
            draws = random.Random(seed)
            path, sound = draws.choice([("/v1/score", SCORE), ("/get_reward", REWARD)])
            body = mutated(orjson.dumps(sound), draws)
            said = await client.post(path, content=body, headers={"content-type": "application/json"})
            assert said.status_code < 500, (seed, body, said.text)
            if said.status_code == 200:
                sent = orjson.loads(body)
                assert len(said.json()["scores"]) == len(sent["answers" if path == "/v1/score" else "query"]), body

    Server(window=0.0).run(talk)


def test_a_mutated_form_is_stored_as_it_is_or_refused_by_the_study(make):
    import sqlalchemy as sa

    from prb.study.database import REPLY
    from prb.study.judgments import check_reply, validate_fields
    from tests.study.conftest import AFTER, BEFORE

    study = make(annotators=1, overlap=1)
    person = study.person()
    cookie = "; ".join(f"{name}={value}" for name, value in person.client.cookies.items())
    person.open("/task")
    token, paths = person.token, ["/skip/1/1", "/undo", "/join", "/data/delete", "/admin/login", "/task/99/1"]

    async def talk() -> None:
        headers = {"cookie": cookie, "content-type": "application/x-www-form-urlencoded"}
        transport = httpx.ASGITransport(study.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver", headers=headers) as client:
            for seed in range(times(100, 10_000)):
                draws = random.Random(seed)
                page = (await client.get("/task")).text
                action = re.search(r'action="(/task/\d+/\d)"', page)
                if not action:  # all is judged: one step back
                    await client.post("/undo", data={"token": token, "from": "end"})
                path = action[1] if action and draws.random() < 0.6 else draws.choice(paths)
                fields = {"token": token, **draws.choice((BEFORE, AFTER)), "from": "1-1"}
                body = (
                    mutated(urlencode(fields).encode(), draws) if draws.random() < 0.8 else urlencode(fields).encode()
                )
                said = await client.post(path, content=body)
                assert said.status_code < 500, (seed, path, body, said.text[:300])

    asyncio.run(talk())
    with study.database.read() as connection:
        stored = connection.execute(sa.select(REPLY)).all()
    for row in stored:
        given, wrong = check_reply(validate_fields(row.step), row.fields)
        assert (given, wrong) == (row.fields, {}) or "skip" in row.fields
