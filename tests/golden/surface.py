"""What users type and read, whatever the values: flags, names, row fields, exit codes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import cache

import prb as package
from tests.golden import making, running
from tests.golden.running import make_row
from tests.golden.shell import Json, Shell, opened_shell

DEFAULT = re.compile(r"\((required|repeatable[^()]*|default: .*)\)$")
PROBES: dict[str, Json] = {"null": None, "text": "t1", "empty": "", "number": 1, "yes": True, "list": [], "map": {}}
BAD = (
    (),
    ("--version",),
    ("evalute",),
    ("evaluate", "--modle", "x"),
    ("evaluate", "--model", "lenght"),
    ("evaluate", "--model", "random?seed=a"),
    ("evaluate", "--limit", "0"),
    ("evaluate", "--dataset", "nowhere.jsonl"),
    ("evaluate", "--split", "devel"),
    ("evaluate", "--config", "nowhere.json"),
    ("evaluate", "--require", "acuracy>0"),
    ("evaluate", "--limit", "2", "--model", "constant", "--out", "run", "--quiet", "--require", "accuracy>0.9"),
    ("compare", "nowhere", "nowhere"),
    ("build", "--input", "nowhere.jsonl", "--llm", "scripted/no", "--out", "built"),
    ("train", "lihgt", "--out", "head"),
    ("report", "nowhere"),
    ("report",),
    ("bon",),
    ("bon", "--policy", "gpt"),
    ("correlate",),
    ("grade",),
    ("audit", "nowhere.jsonl"),
    ("data",),
    ("data", "chek"),
    ("data", "check", "nowhere.jsonl"),
    ("data", "check", "bad.jsonl"),
    ("data", "check", "odd.jsonl"),
    ("data", "check", "odd.jsonl", "--strict"),
    ("data", "show", "mirror", "nobody"),
    ("data", "show", "odd.jsonl", "r1", "--condition", "shuffled"),
    ("data", "convert", "mirror", "x.txt"),
    ("models", "pull", "nothing"),
    ("ppo", "--policy", "gpt", "--model", "length"),
    ("serve", "--model", "scripted-judge"),
    ("study", "agree", "nowhere.db"),
    ("study", "export", "nowhere.db"),
    ("cache", "stats"),
    ("cache", "clear"),
)


def flags(prb: Shell) -> Json:
    """Every flag of every verb as its help shows it: values it takes, and its default."""
    verbs = re.findall(r"^  (\w+) ", prb.ok("--help").out, re.M)
    commands = []
    for verb in verbs:
        subs = re.search(r"\{(\w+(?:,\w+)+)\} …", prb.ok(verb, "--help").out.splitlines()[0])
        named = ["light", "reward-model"] if verb == "train" else subs[1].split(",") if subs else [""]
        commands += [f"{verb} {sub}".strip() for sub in named]
    return {command: read_help(prb.ok(*command.split(), "--help-all").out) for command in commands}


def read_help(text: str) -> Json:
    """Each entry of a help page: the flag with its values, and its default; descriptions may change."""
    entries: list[list[str]] = []
    for line in re.findall(r"^  (\S.*|\s+\S.*)$", text, re.M):
        if not line.startswith(" "):
            entries.append(re.split(r"\s{2,}", line.strip(), maxsplit=1))
        else:
            entries[-1].append(line.strip())
    found: dict[str, str] = {}
    for name, *description in sorted(entries):
        default = DEFAULT.search(" ".join(description).strip())
        found[name] = default[1] if default else ""
    return found


def names(prb: Shell) -> Json:
    """What `prb` exports, and what specs may name."""
    listed = prb.ok("models", "list", "--json").json
    return {
        "prb": list(package.__all__),
        "models": {row["name"]: row["options"] for row in listed["models"]},
        "weights": [row["name"] for row in listed["weights"]],
        "datasets": {name: package.DATASETS.about(name).options for name in package.DATASETS},
        "methods": re.findall(r"^  ([a-z-]+)  ", prb.ok("train", "--help").out, re.M),
    }


def exports(prb: Shell) -> Json:
    """The Python API gives what the command line writes."""
    data = prb.write_rows("rows.jsonl", running.make_rows())
    prb.ok("evaluate", "--dataset", data, "--model", "lexical", "--condition", "profile", "--quiet", "--out", "shell")
    path, out = str(prb.folder / data), prb.folder / "python"
    config = package.EvaluateConfig(model=("lexical",), condition=("profile",), dataset=path, out=out)
    made = package.evaluate(config)
    pairs = package.load_pairs(path)
    expected = prb.read("shell/summary.json")
    return {
        "same results": made.summary["results"] == expected["results"],
        "fields": {
            cls.__name__: sorted(f.name for f in dataclasses.fields(cls))
            if dataclasses.is_dataclass(cls)
            else list(cls._fields)
            for cls in (package.EvaluateConfig, package.Pair, package.Query, package.Post, package.Verdict)
        },
        "pairs": [
            [pair.id, pair.user, pair.mirror, list(pair.answers) == [pair.chosen, pair.rejected]] for pair in pairs
        ],
        "failure": str(package.Failure("busy", "later")),
    }


def row_fields(prb: Shell) -> Json:
    """Which values each field of a row may take, and whether it may be absent; `mirror` needs a second row."""
    pair = make_row(1, tier="t", split="test", topic="t", drift=False, groups={}, own="kept")
    rating = {"id": "r", "user": "u", "question": "q", "profile": [], "answer": "a", "rating": 0.5, "category": "c",
              "rubric_aspects": [], "split": "test", "groups": {}, "own": "kept"}  # fmt: skip
    post, aspect = {"id": "1", "category": "c", "text": "t", "own": 1}, {"aspect": "a", "evidence": "e", "reason": "r"}
    return {
        "pairs": accepted(prb, "pairs", pair, lambda row: row),
        "ratings": accepted(prb, "ratings", rating, lambda row: row),
        "profile[]": accepted(prb, "pairs", post, lambda item: {**pair, "profile": [item]}),
        "rubric_aspects[]": accepted(prb, "pairs", aspect, lambda item: {**pair, "rubric_aspects": [item]}),
    }


def accepted(prb: Shell, task: str, sound: Json, make: Callable[[Json], Json]) -> dict[str, list[str]]:
    probes = [(field, "absent") for field in sound] + [(field, probe) for field in sound for probe in PROBES]
    lines = []
    for field, probe in probes:
        changed = {key: value for key, value in sound.items() if key != field}
        lines.append(make(changed if probe == "absent" else {**changed, field: PROBES[probe]}))
    # an id that is not probed itself has to be unique
    rows = [{**row, "id": f"r{n}"} if row.get("id") in ("r", "r1") else row for n, row in enumerate(lines)]
    problems = prb("data", "check", prb.write_rows("probes.jsonl", rows), "--task", task, "--json").json
    refused = {p["line"] for p in problems if p["level"] == "error"}
    fine = [probe for n, probe in enumerate(probes, 1) if n not in refused]
    return {field: [probe for name, probe in fine if name == field] for field in sound}


def exit_codes(prb: Shell) -> Json:
    """How commands end that are wrong, fail, or ask for little; and whether they leave files."""
    prb.write_rows("bad.jsonl", [make_row(1, chosen="")])
    prb.write_rows("odd.jsonl", [make_row(1, category="Society_and_Cultre")])
    return {"prb " + " ".join(words): prb(*words).code for words in BAD} | {"files": prb.names(".")}


CASES = {
    "flags": flags,
    "names": names,
    "exports": exports,
    "row-fields": row_fields,
    "exit-codes": exit_codes,
}
ALL = {**running.CASES, **making.CASES, **CASES}


@cache
def produce(name: str) -> Json:
    """The result of a case; worked out once per process."""
    with opened_shell() as shell:
        return ALL[name](shell)
