"""Cases that evaluate reward models, and what is made of such runs: compare, report, audit, correlate."""

from __future__ import annotations

import json
from typing import Any

from tests.golden.author import endpoint
from tests.golden.shell import Json, Shell, without_clock

CATEGORIES = ("Lifestyle_and_Personal_Development", "Art_and_Entertainment")
RECENT = ("--history", "both?ranker=recency")
RUN = ("config.json", "summary.json", "users.json")
NOUNS = [f"{a}{b}" for a in ("river", "stone", "paper", "engine", "garden") for b in ("work", "house", "light", "song")]


def make_row(n: int, **changes: Any) -> Json:
    row = {
        "id": f"r{n}",
        "user": f"u{n}",
        "question": f"How often does my {NOUNS[n]} need attention?",
        "profile": [
            {"id": f"u{n}-1", "category": CATEGORIES[0], "text": f"I love short lists, most of all about {NOUNS[n]}."},
            {"id": f"u{n}-2", "category": CATEGORIES[1], "text": "My flat faces north, and reasons matter to me."},
            {"id": f"u{n}-3", "category": CATEGORIES[1], "text": f"Call me at +49 30 1234567{n % 10} after work."},
        ],
        "rubric_aspects": [
            {"aspect": "brevity", "evidence": "keep it short", "reason": "Long texts tire them."},
            {"aspect": "a reason", "evidence": "tell me why", "reason": "They like to understand."},
        ],
        "narrative": "Please keep it short and tell me why, I read on the bus.",
        "category": CATEGORIES[n % 2],
        "chosen": f"Weekly, because {NOUNS[n]} is patient.",
        "rejected": f"It depends: {NOUNS[n]} has {n} moods, and each of them asks for something else in its season.",
    }
    return {**row, **changes}


def make_twins(n: int, **changes: Any) -> list[Json]:
    """The same question and answers for two people with opposite labels."""
    first = make_row(n, id=f"t{n}a", user=f"a{n}", mirror=f"t{n}b", **changes)
    posts = [{"id": f"b{n}-1", "category": CATEGORIES[0], "text": "I enjoy long stories with many moods."}]
    swapped = {"chosen": first["rejected"], "rejected": first["chosen"], "profile": posts}
    return [first, {**first, "id": f"t{n}b", "user": f"b{n}", "mirror": f"t{n}a", **swapped}]


def make_rows() -> list[Json]:
    """Twins, single rows, every optional field, a history as attributes, and nobody's rubric once."""
    return [
        *make_twins(1, tier="stated", topic="plants", groups={"age": "60+"}),
        *make_twins(2, tier="implied", topic="plants", groups={"age": "<60"}, drift=True),
        make_row(5, groups={"age": "60+"}, rejected="Seldom, I think, whatever others tell you about it."),
        make_row(6, rubric_aspects=[], profile={"likes": "brevity", "job": "gardener"}),
        make_row(7, id=7, user=7, tier="stated", note="fields of one's own are kept"),
    ]


def evaluate_mirror(prb: Shell) -> Json:
    models = ("--model", "embedding", "--model", "aspect-match")
    conditions = [word for name in ("none", "profile", "plan", "shuffled", "oracle") for word in ("--condition", name)]
    prb.ok("evaluate", "--limit", 6, *models, *conditions, "--k", 3, "--quiet", "--out", "run")
    return prb.files("run", *RUN, "outcomes.jsonl")


def evaluate_simulate(prb: Shell) -> Json:
    """Enough people for intervals and tests to be drawn."""
    models = ("--model", "random?seed=3", "--model", "length", "--model", "noisy?model=embedding&sd=0.1")
    data = "simulate?persons=48&pairs=4&mirror=true"
    words = ("--dataset", data, "--history", "both?ranker=bm25", "--seed", 5, "--quiet")
    reply = prb.ok("evaluate", *models, *words, "--json", "--out", "run")
    return {"stdout": reply.json, **prb.files("run", "config.json", "users.json")}


def evaluate_file(prb: Shell) -> Json:
    """Comparers in one order, scorers, failures; recency, a budget, masking, another seed."""
    data = prb.write_rows("rows.jsonl", make_rows())
    models = ("scripted-judge", "scripted?fail=busy", "lexical")
    named = [word for model in models for word in ("--model", model)]
    words = ("--orders", "one", "--history", "both?ranker=recency&budget=40", "--k", 2, "--seed", 3, "--mask-pii", "on")
    conditions = ("--condition", "none", "--condition", "shuffled", "--condition", "oracle")
    prb.ok(
        "evaluate",
        "--max-failed",
        1,
        "--dataset",
        data,
        *named,
        *words,
        *conditions,
        "--batch",
        3,
        "--quiet",
        "--out",
        "run",
    )
    return prb.files("run", *RUN, "outcomes.jsonl")


def evaluate_ratings(prb: Shell) -> Json:
    rows = [
        {"user": user, "question": f"{n}?", "profile": {"likes": f"tea, {user}"}, "answer": "a" * n, "rating": n / 10,
         "groups": {"age": age}}
        for user, age in (("ann", "60+"), ("bob", "<60"), ("cleo", "<60"))
        for n in (1, 2, 4, 8)
    ]  # fmt: skip
    data = prb.write_rows("ratings.jsonl", rows)
    words = ("--model", "length", "--model", "random", "--condition", "profile", "--condition", "shuffled", "--quiet")
    prb.ok("evaluate", "--task", "ratings", "--dataset", data, *words, "--out", "run")
    return prb.files("run", *RUN, "outcomes.jsonl")


def evaluate_judges(prb: Shell) -> Json:
    """Every style of judge: what it is asked, and how its replies are read."""
    styles = (
        "pairwise",
        "pairwise-direct",
        "mtbench",
        "prometheus",
        "rating",
        "rating-direct",
    )
    named = [word for style in styles for word in ("--model", f"judge?llm=openai/judge&style={style}")]
    data = prb.write_rows("rows.jsonl", make_rows()[2:6])
    conditions = ("--condition", "none", "--condition", "profile")
    with endpoint() as server:
        prb.ok(
            "evaluate", "--max-failed", 1, "--dataset", data, *named, *conditions, "--k", 2, "--quiet", "--out", "run"
        )
        entries = prb.ok("cache", "stats", "--json").json["entries"]
        cached = {name.partition("@")[0]: count for name, count in entries.items()}
        return {**prb.files("run", "config.json", "outcomes.jsonl"), "requests": server.requests(), "cached": cached}


def evaluate_plans(prb: Shell) -> Json:
    """Planners that ask an LLM."""
    data = prb.write_rows("rows.jsonl", make_rows()[:2] + make_rows()[4:5])
    with endpoint() as server:
        words = ("--planner", "llm?llm=openai/judge", "--model", "lexical", "--condition", "plan", "--quiet")
        prb.ok("evaluate", "--dataset", data, *words, "--out", "llm")
        return {"llm": prb.files("llm", "config.json", "outcomes.jsonl"), "requests": server.requests()}


def evaluate_paper(prb: Shell) -> Json:
    data = prb.write_rows("rows.jsonl", make_rows())
    words = ("--protocol", "paper", "--model", "judge?llm=openai/judge", "--dataset", data, "--quiet")
    with endpoint() as server:
        prb.ok("evaluate", *words, "--out", "run")
        return {**prb.files("run", *RUN, "outcomes.jsonl"), "requests": server.requests()}


def compare(prb: Shell) -> Json:
    words = ("--model", "random", "--model", "lexical", "--model", "constant", "--condition", "profile", "--quiet")
    prb.ok("evaluate", "--dataset", "simulate?persons=48&pairs=3", *words, "--out", "a")
    prb.ok("evaluate", "--dataset", "simulate?persons=48&pairs=3", *words, "--limit", 30, "--k", 2, "--out", "b")
    return {
        "two runs": prb.ok("compare", "a", "b", "--json").json,
        "two models": prb.ok("compare", "a", "a", "--json").json,
    }


def report(prb: Shell) -> Json:
    """Names of all files, and the data that the pages read."""
    data = prb.write_rows("rows.jsonl", make_rows())
    models = ("--model", "lexical", "--model", "scripted-judge", "--condition", "none", "--condition", "profile")
    prb.ok("evaluate", "--dataset", data, *models, *RECENT, "--quiet", "--out", "run")
    prb.ok("report", "run", "--quiet")
    prb.ok("report", "run", "--no-texts", "--quiet", "--out", "bare")
    return {
        "files": prb.names("run/report"),
        "data": {name: page_data(prb, f"run/report/data/{name}") for name in prb.names("run/report/data")},
        "files without texts": prb.names("bare"),
        "pairs without texts": page_data(prb, "bare/data/d0/pairs.js"),
        "markdown": prb.ok("report", "run", "--format", "markdown").out.splitlines(),
        "csv": (prb.folder / "run/report/table.csv").read_text("utf-8").splitlines(),
        "json is the summaries": prb.ok("report", "run", "--json").json == [prb.read("run/summary.json")],
    }


def page_data(prb: Shell, name: str) -> Json:
    """`prb.data("key", VALUE)` as key and value."""
    text = (prb.folder / name).read_text("utf-8").strip().removesuffix(";")
    return without_clock(json.loads(f"[{text.removeprefix('prb.data(').removesuffix(')')}]"))


def audit(prb: Shell) -> Json:
    rows = [row for n in range(5) for row in make_twins(n)] + [make_row(n) for n in range(5, 20)]
    prb.ok("audit", prb.write_rows("rows.jsonl", rows), "--seed", 2, "--quiet", "--out", "audit")
    return prb.files("audit", "audit.json")


def correlate(prb: Shell) -> Json:
    lines = ["model,bench,bon", *(f"m{n},{n},{(n * 7) % 12}" for n in range(12)), "noisy-x,3.5,2"]
    (prb.folder / "table.csv").write_text("\n".join(lines), "utf-8")
    words = ("--bench", "bench", "--downstream", "bon", "--quiet", "--out", "out")
    prb.ok("correlate", "table.csv", *words)
    table = (prb.folder / "out/table.md").read_text("utf-8").splitlines()
    return {**prb.files("out", "correlation.json"), "table.md": table}


CASES = {
    "evaluate-mirror": evaluate_mirror,
    "evaluate-simulate": evaluate_simulate,
    "evaluate-file": evaluate_file,
    "evaluate-ratings": evaluate_ratings,
    "evaluate-judges": evaluate_judges,
    "evaluate-plans": evaluate_plans,
    "evaluate-paper": evaluate_paper,
    "compare": compare,
    "report": report,
    "audit": audit,
    "correlate": correlate,
}
