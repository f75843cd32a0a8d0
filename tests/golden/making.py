"""Cases that make something: benchmarks, heads, samples, grades, converted data, judgments of people."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import prb as package
from tests.golden.author import endpoint
from tests.golden.running import RECENT, make_row, make_rows, make_twins
from tests.golden.shell import ROOT, Json, Shell, without_clock

TOPICS = ("balcony tomatoes", "sourdough bread", "winter tires", "chess openings", "choir practice", "old maps")
PSEUDONYM = re.compile(r"p-[0-9a-f]{10}")


def make_records() -> list[Json]:
    """Six people with a topic each, two with the same question, and one without posts."""
    records = [
        {
            "id": f"r{n}",
            "user": f"u{n}",
            "question": f"What should I know about {topic} before I begin?",
            "narrative": f"My mornings belong to slowness{n}. I distrust experiments{n} of any kind.",
            "posts": [{"id": f"u{n}-1", "category": "home", "text": f"Yesterday {topic} kept me busy until noon."}],
            "category": "Lifestyle_and_Personal_Development",
        }
        for n, topic in enumerate(TOPICS)
    ]
    rival = {"id": "r6", "user": "u6", "narrative": "My evenings belong to hurry6. I adore adventures6 of any kind."}
    return [*records, {**records[0], **rival}, {**records[1], "id": "r7", "user": "u7", "posts": []}]


def build(prb: Shell) -> Json:
    data = prb.write_rows("records.jsonl", make_records())
    words = ("--input", data, "--llm", "openai/author?usd_in=1&usd_out=10", "--gate", "couple?cosine=0.6")
    estimate = prb.ok("build", *words, "--dry-run", "--json", "--out", "none").json
    with endpoint() as server:
        prb.ok("build", *words, "--seed", 2, "--quiet", "--out", "out")
        made = prb.files("out", "config.json", "card.json", "pairs.jsonl", "rejects.jsonl", "gates.jsonl")
        return {"estimate": estimate, **made, "replies": summarize_replies(prb), "requests": server.requests()}


def summarize_replies(prb: Shell) -> Json:
    """How many replies each stage has, and a digest of what they say."""
    replies = prb.read("out/replies.jsonl")
    texts = "\n".join(sorted(str(reply["value"]) for reply in replies))
    stages = Counter(reply["model"] for reply in replies)
    return {"stages": dict(sorted(stages.items())), "texts": hashlib.sha256(texts.encode()).hexdigest()}


def build_example(prb: Shell) -> Json:
    """The walk-through in `examples/build`, answered from its log to the byte."""
    shutil.copytree(ROOT / "examples", prb.folder / "examples")
    command = (ROOT / "examples/build/README.md").read_text("utf-8").split("```sh\n")[1].split("```")[0]
    words = command.replace("\\\n", " ").replace('"', "").split()[1:]
    card = prb.ok(*words, "--quiet", "--json").json
    kept = ("pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json", "replies.jsonl", "hub/README.md")
    return {"stdout": card, "sha256": {name: prb.sha256(f"examples/build/out/{name}") for name in kept}}


def train(prb: Shell) -> Json:
    """A light head, what its scores are, and how much a few labeled pairs of a person help."""
    from safetensors.numpy import load_file

    data = "simulate?persons=36&pairs=6&noise=0.05"
    card = prb.ok("train", "light", "--dataset", data, "--seed", 3, "--quiet", "--json", "--out", "head").json
    words = ("--model", "personal?path=head", "--dataset", data, "--condition", "profile", "--condition", "shuffled")
    prb.ok("evaluate", *words, "--limit", 12, "--quiet", "--out", "run")
    tensors = {name: list(value.shape) for name, value in load_file(prb.folder / "head/weights.safetensors").items()}
    scores = [
        {key: line[key] for key in ("pair", "condition", "scores", "post_ids")}
        for line in prb.read("run/outcomes.jsonl")
    ]
    head = prb.files("head", "config.json", "users.json")
    return {
        "card": without_clock(card),
        **head,
        "weights": dict(sorted(tensors.items())),
        "outcomes": scores,
    }


def bon(prb: Shell) -> Json:
    """Best-of-N of a drawn policy, graded two ways, and what a run of it says together with a benchmark run."""
    data = prb.write_rows("rows.jsonl", [*make_twins(1), *make_twins(2), make_row(5), make_row(7)])
    usual = ("--dataset", data, "--policy", "openai/judge", "--n", 4, *RECENT, "--seed", 2, "--quiet")
    models = [word for name in ("length", "random", "lexical", "embedding") for word in ("--model", name)]
    with endpoint() as server:
        prb.ok("bon", *usual, *models, "--out", "embedded")
        prb.ok("bon", *usual, "--model", "scripted-judge", "--grader", "llm?llm=openai/judge", "--out", "llm")
        requests = server.requests()
    prb.ok("evaluate", "--dataset", data, *models, "--condition", "profile", "--quiet", "--out", "bench")
    words = ("--bench", "bench", "--downstream", "embedded", "--measure", "spearman", "--quiet", "--json")
    names = ("config.json", "summary.json", "samples.jsonl", "scores.jsonl", "grades.jsonl")
    return {
        "embedded": prb.files("embedded", *names),
        "llm": prb.files("llm", "config.json", "summary.json"),
        "requests": requests,
        "correlate": prb.ok("correlate", *words).json,
    }


def grade(prb: Shell) -> Json:
    rows = [row for row in make_rows() if row["rubric_aspects"]]
    data = prb.write_rows("rows.jsonl", rows)
    answers = prb.write_rows(
        "answers.jsonl",
        [{"pair": str(row["id"]), "answer": row[side]} for row in rows for side in ("chosen", "rejected")],
    )
    human = prb.write_rows(
        "human.jsonl",
        [{"pair": str(row["id"]), "answer": row["chosen"], "grades": [2, n % 3]} for n, row in enumerate(rows)],
    )
    usual = ("--dataset", data, "--quiet")
    names = ("config.json", "summary.json", "grades.jsonl")
    with endpoint() as server:
        prb.ok("grade", *usual, "--answers", answers, "--out", "embedded")
        prb.ok("grade", *usual, "--answers", answers, "--grader", "llm?llm=openai/judge&way=each", "--out", "each")
        words = ("--validate", "--human", human, "--grader", "llm?llm=openai/judge")
        prb.ok("grade", *usual, *words, "--out", "validated")
        made = {folder: prb.files(folder, *names) for folder in ("embedded", "each", "validated")}
        return {**made, "requests": server.requests()}


def data(prb: Shell) -> Json:
    """Statistics, prompts of every condition, conversions there and back, and the texts of the shipped sets."""
    rows = prb.write_rows("rows.jsonl", make_rows())
    prb.ok("data", "convert", rows, "there.parquet")
    prb.ok("data", "convert", "there.parquet", "back.jsonl")
    prb.ok("data", "convert", "mirror", "mirror.jsonl")
    prb.ok("data", "convert", "simulate?persons=16&pairs=3&individual=0.5&seed=4", "simulate.jsonl")
    conditions = ("none", "profile", "plan", "shuffled", "oracle")
    shown = {c: prb.ok("data", "show", rows, "t1a", "--condition", c, "--json").json["prompt"] for c in conditions}
    return {
        "stats": {name: prb.ok("data", "stats", name, "--json").json for name in (rows, "mirror", "simulate.jsonl")},
        "prompts": shown,
        "row": prb.ok("data", "show", rows, "7", "--json").json,
        "converted back": prb.read("back.jsonl") == prb.read(rows),
        "sha256": {name: prb.sha256(name) for name in ("back.jsonl", "mirror.jsonl", "simulate.jsonl")},
        "first simulated row": prb.read("simulate.jsonl")[0],
    }


def study(prb: Shell) -> Json:
    """The export of a filled study, and how far its people agree."""
    with served(prb, "study", "demo", "--port", 0, "--out", "demo.db") as line:
        fetch(line.split()[-1])  # the page is there, so the server has begun to listen for signals
    counts = prb.ok("study", "export", "demo.db", "--out", "export", "--json").json
    for name in prb.names("export"):
        renumber_people(prb, f"export/{name}")
    made: dict[str, Json] = {"validate": {"stdout": counts, **prb.files("export", "study.json")}}
    made["validate"]["judgements.jsonl"] = prb.read("export/judgements.jsonl")
    made["agree"] = prb.ok("study", "agree", "export/judgements.jsonl", "--json").json
    return made


def renumber_people(prb: Shell, name: str) -> None:
    """Pseudonyms are drawn from the system's randomness; they become numbers in order of appearance."""
    text = (prb.folder / name).read_text("utf-8")
    seen = {pseudonym: f"p-{n}" for n, pseudonym in enumerate(dict.fromkeys(PSEUDONYM.findall(text)), 1)}
    (prb.folder / name).write_text(PSEUDONYM.sub(lambda match: seen[match[0]], text), "utf-8")


def serve(prb: Shell) -> Json:
    """Replies of every address of a reward server, with a cheap model behind it."""
    query = {
        "user": "u1",
        "question": "How often?",
        "posts": ["Keep it short.", {"id": "x", "text": "Weekly is best."}],
    }
    blind = {"question": "How often?"}
    texts = {"query": ["How often? Weekly.</s>", "How often? Never."], "prompts": ["How often?", "How often?"]}
    with served(prb, "serve", "--model", "lexical", "--port", 0, "--json", "--quiet") as line:
        ready = json.loads(line)
        url = ready["url"]
        answers = {"query": query, "answers": ["Weekly, short.", "It depends on many things."]}
        return {
            "/v1/score": fetch_json(f"{url}/v1/score", answers),
            "/get_reward": fetch_json(f"{url}/get_reward", {**texts, "labels": [json.dumps(query), json.dumps(blind)]}),
            "/healthz": fetch_json(f"{url}/healthz"),
            "/metrics": sorted(re.findall(r"^# TYPE (prb\w*) (\w+)", fetch(f"{url}/metrics"), re.M)),
        }


def fetch(url: str, body: Json = None) -> str:
    content = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, content, {"Content-Type": "application/json"}), timeout=60) as reply:
        return str(reply.read().decode())


def fetch_json(url: str, body: Json = None) -> Json:
    return json.loads(fetch(url, body))


@contextmanager
def served(prb: Shell, *words: object) -> Iterator[str]:
    """A command that runs until it is interrupted, once it has printed its first line."""
    command = [sys.executable, "-m", "prb", *map(str, words)]
    source = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}  # the same package as in this process
    with subprocess.Popen(command, cwd=prb.folder, env=source, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline()
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
        assert server.returncode == 0


CASES = {
    "build": build,
    "build-example": build_example,
    "train": train,
    "bon": bon,
    "grade": grade,
    "data": data,
    "study": study,
    "serve": serve,
}
