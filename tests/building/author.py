"""An LLM that does every job of a build by rule: wishes are made-up words, answers contain them or not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from prb.llm import Completion, Request, ScriptedLLM
from prb.text.words import sentences, words
from prb.types import Failure

_QUOTED = re.compile(r"<<([^<>\n]+) ([0-9a-f]{12})>>\n(.*?)\n<<end of \1 \2>>", re.S)
_FILLER = ("plain", "water", "light", "soil", "time", "care", "rest", "early", "late", "warm", "cool", "slow", "small")


def material(prompt: str) -> dict[str, str]:
    """What a prompt quotes, by name."""
    return {name: text for name, _, text in _QUOTED.findall(prompt)}


def author(request: Request) -> str:  # noqa: PLR0911 - one for each kind of prompt
    prompt = request.chat[-1].text
    quoted = material(prompt)
    if "explanation" in quoted:
        return rubric_of(quoted["explanation"])
    if "wishes of the first person" in quoted:
        return "They cannot both be pleased.\nVerdict: conflict"
    if "needs are the opposite" in prompt:
        return "\n".join(f"{n}. wants un{code}" for n, code in enumerate(_codes(quoted["wishes"]), 1))
    if "Write an answer" in prompt:
        codes = _codes(quoted["wishes"]) if "wishes" in quoted else []
        return answer_with(codes, request.sampling.seed)
    if "Grade the answer" in prompt:
        return grades_of(quoted)
    if "demanding editor" in prompt:
        line = "correctness 4, relevance 5, helpfulness 4, fluency 5"
        return f"Both are fine.\nAnswer A: {line}\nAnswer B: {line}"
    assert "Result: tie" in prompt, prompt
    return "Nothing is known of them.\nResult: tie"


def Author(reply: Callable[[Request], str | Failure] = author) -> ScriptedLLM:  # noqa: N802 - names what it makes
    """All of them are the same model to the log, whatever they reply."""

    def complete(request: Request) -> Completion | Failure:
        text = reply(request)
        if isinstance(text, Failure):
            return text
        return Completion(text=text, prompt_tokens=10, completion_tokens=5, cost=1e-3)

    llm = ScriptedLLM(complete)
    llm.fingerprint = "author"
    return llm


def rubric_of(narrative: str) -> str:
    """Each sentence of the explanation is the evidence of one aspect, named after its longest word."""
    found = sentences(narrative)[:3]
    return "\n".join(
        f'{n}. Aspect: wants {max(words(text), key=len)}\nEvidence: "{text}"\nReason: it says so.'
        for n, text in enumerate(found, 1)
    )


def answer_with(codes: list[str], seed: int, length: int = 300) -> str:
    """Filler of one length, different for every seed, that spells each wish in its own way."""
    digest = hashlib.sha256(f"{codes}{seed}".encode()).digest() * 8
    text = " ".join(["zz" + code for code in codes] + [_FILLER[byte % len(_FILLER)] for byte in digest])
    return text[:length].strip().ljust(length, ".")


def grades_of(quoted: dict[str, str]) -> str:
    asked = [text for name, text in quoted.items() if name.startswith("aspect ")]
    grades = [2 if f"zz{_codes(text)[0]}" in quoted["answer"].split() else 0 for text in asked]
    return "[" + ", ".join(f'{{"aspect": {n}, "why": "so", "grade": {g}}}' for n, g in enumerate(grades, 1)) + "]"


def _codes(text: str) -> list[str]:
    return re.findall(r"wants (\w+)", text)


TOPICS = (
    "balcony tomatoes", "sourdough bread", "winter tyres", "chess openings", "choir practice", "old maps", "bee hives",
    "tax forms", "night trains", "stone walls", "violin strings", "dog training", "river swimming", "watch repair",
    "school plays", "goat cheese", "roof gutters", "sign language", "field recording", "parish archives",
)  # fmt: skip


def make_record(n: int = 1, **changes: Any) -> dict[str, Any]:
    topic = TOPICS[(n - 1) % len(TOPICS)]
    record = {
        "id": f"r{n}",
        "user": f"u{n}",
        "question": f"What should I know about {topic} before I begin?",
        "narrative": f"My mornings belong to {topic}{n}. I distrust experiments{n} of any kind.",
        "posts": [{"id": f"u{n}-1", "category": "home", "text": f"Yesterday {topic} kept me busy until noon."}],
        "category": "Lifestyle_and_Personal_Development",
    }
    return {key: value for key, value in {**record, **changes}.items() if value is not None}
