"""What README and docs tell people to type: every command parses, what can run offline runs, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import prb.cli.parse
from prb.cli import VERBS, _dispatch, run
from prb.data.check import describe
from prb.data.load import load
from prb.data.source import MemorySource
from prb.downstream.answers import read_pool
from prb.downstream.correlate import CorrelateConfig, correlate
from prb.errors import BadInput
from prb.evaluation.config import PERSONAL, READER, EvaluateConfig
from prb.evaluation.run import evaluate
from prb.registry import split_alias
from prb.reporting.format import Table, markdown, number, p_equals
from prb.reporting.results import correlation_sentences
from prb.summary import CONDITIONS, METRICS, Summary
from prb.types import NO_EVIDENCE

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "build" / "README.md"]
RUNNABLE = (
    "prb data stats mirror",
    "prb data show c01-q1-amparo",
    "prb data check mirror",
    "prb models list",
    "prb train --help",
    "prb evaluate --model random --limit 12 --quiet",
    "prb cache stats",
)
"""Commands of the docs that need neither network nor weights nor minutes; the others are only parsed."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def commands(page: Path) -> list[str]:
    """Every `prb …` line of the shell blocks, continued lines joined, comments and other programs left out."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"\s&&\s|\s\|\s", line)]
    return [part for part in parts if part.startswith("prb ")]


def steps(workflow: Path) -> list[str]:
    """Every `prb …` line of a workflow's steps."""
    (job,) = yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values()
    lines = "\n".join(step.get("run", "") for step in job["steps"]).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("prb ")]


WORKFLOW = ROOT / "examples" / "publish" / "github-pages.yml"
ALL = [(page.name, command) for page in PAGES for command in commands(page)]
ALL += [(WORKFLOW.name, command) for command in steps(WORKFLOW)]


def test_the_pages_stay_few_and_short():
    """Long tables belong in docs/tables, internals in docstrings. The glossary, which is generated, does not count."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) <= 12
    words = sum(len(page.read_text("utf-8").split()) for page in pages)
    assert words - sum(len(markdown(table).split()) for table in glossary().values()) <= 19_400


@pytest.mark.parametrize(("page", "command"), ALL)
def test_every_command_of_the_docs_has_flags_that_exist(page, command, monkeypatch, tmp_path):
    """Parsing is real; the verb itself is replaced, so that nothing runs."""
    words = [word for word in shlex.split(command, comments=True)[1:] if word not in ("…", "...")]
    assert words[0] in VERBS, page
    parsed: list[object] = []

    class Parsed(Exception):
        pass

    def parse(*args: object) -> None:
        parsed.append(original(*args))
        raise Parsed

    original = prb.cli.parse.parse
    monkeypatch.setattr("prb.cli.parse.parse", parse)
    monkeypatch.chdir(tmp_path)
    if "--help" in words or words[1:2] == ["--help"]:
        assert run(words) == 0
        return
    if "--config" in words and words[0] != "leaderboard":  # read before anything else; the run it names is not here
        with pytest.raises(BadInput, match="does not exist"):
            _dispatch(words)
        return
    with pytest.raises(Parsed):
        _dispatch([word for word in words if word != "&"])
    assert parsed


def test_the_workflow_evaluates_checks_and_publishes_what_it_built():
    content = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    assert set(content[True]) == {"push", "workflow_dispatch"}  # YAML 1.1 reads the key `on` as true
    assert content["permissions"] == {"contents": "read", "pages": "write", "id-token": "write"}
    (job,) = content["jobs"].values()
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    used = {step["uses"].partition("@")[0]: step.get("with", {}) for step in job["steps"] if "uses" in step}
    assert [command.split()[1] for command in steps(WORKFLOW)] == ["evaluate", "leaderboard", "export"]
    site = shlex.split(steps(WORKFLOW)[1])
    assert used["actions/upload-pages-artifact"]["path"] == site[site.index("--out") + 1]
    assert "actions/deploy-pages" in used
    install = next(step["run"] for step in job["steps"] if step.get("name") == "Install")
    assert install == 'pip install "personalized-rewardbench @ git+$PRB"'  # on no index: that name might be anybody's
    assert content["env"]["PRB"].startswith("https://")


@pytest.mark.parametrize("command", RUNNABLE)
def test_a_command_that_can_run_offline_runs(command, tmp_path):
    command_line = [sys.executable, "-m", "prb", *shlex.split(command)[1:]]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "evaluate.md"], ids=lambda page: page.name)
def test_the_python_of_the_docs_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"^print\(.*\)  # (.+)$", code, re.M)
    assert done.stdout.splitlines()[: len(promised)] == promised


def json_objects(page: Path) -> list[dict[str, Any]]:
    """Every object of the JSON blocks that is a row of a dataset or a line of candidates."""
    decoder, objects = json.JSONDecoder(), []
    text = "".join(blocks(page, "json")).strip()
    while text:
        value, end = decoder.raw_decode(text)
        objects.append(value)
        text = text[end:].lstrip()
    return [value for value in objects if {"chosen", "rating", "answers", "answer"} & value.keys()]


@pytest.mark.parametrize("page", [page for page in PAGES if json_objects(page)], ids=lambda page: page.name)
def test_every_row_in_the_docs_loads(page, tmp_path):
    tasks: dict[str, Any] = {"pairs": "chosen", "ratings": "rating"}
    rows = json_objects(page)
    for task, field in tasks.items():
        if examples := [row for row in rows if field in row]:
            assert len(load(MemorySource(page.name, examples), task=task)) == len(examples)
    if candidates := [row for row in rows if not {"chosen", "rating"} & row.keys()]:
        path = tmp_path / "candidates.jsonl"
        path.write_text("\n".join(map(json.dumps, candidates)))
        read_pool(str(path))


def test_there_are_commands_and_rows_to_check():
    assert len(ALL) > 40
    assert {"README.md", "data.md", "downstream.md"} <= {page.name for page in PAGES if json_objects(page)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8"))
    assert not [link for link, _ in links if not (page.parent / link).exists()]
    sections = [(page.parent / link if link else page, section) for link, section in links if section]
    assert not [section for target, section in sections if section not in headings(target)]


def headings(page: Path) -> set[str]:
    """The anchors that the forge makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_annotated_tree_is_the_real_one():
    tree = re.search(r"^```\nsrc/prb/\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S)
    assert tree
    listed = set(re.findall(r"\b([a-z_0-9]+)\.py\b", tree[1])) | set(re.findall(r"\b([a-z_]+)/", tree[1]))
    source = ROOT / "src" / "prb"
    modules = {path.stem for path in source.rglob("*.py")} - {"__init__", "__main__"}
    assert not modules - listed, "not in the tree"


def test_the_datasheet_of_mirror_has_the_hashes_of_its_rows_and_the_score_of_a_coin_on_hard():
    figures, index = describe("mirror"), load("mirror", split="hard").index
    page = (ROOT / "docs" / "mirror.md").read_text("utf-8")
    table = re.findall(r"^\| `(\w+)` \|.*\| `([0-9a-f]{64})` \|$", page, re.M)
    assert dict(table) == figures["fingerprints"]
    assert f"(the `fingerprint` of every run on `mirror`): `{figures['fingerprint']}`" in page
    counted = sum(tier != NO_EVIDENCE for tier in index.tiers)
    assert f"Over the {counted} rows that count, a coin scores {100 * index.chance:.1f} %." in page


TOLD = ("tables/correlation.md", "downstream.md")


def test_what_the_study_says_of_families_follows_from_its_table(tmp_path):
    """docs/correlation.csv has the scores of every model on every cluster; the sentences that decide are those of
    `prb correlate`, without the family that was added later."""
    lines = (ROOT / "docs" / "correlation.csv").read_text("utf-8").splitlines(keepends=True)
    table = tmp_path / "registered.csv"
    table.write_text("".join(line for line in lines if not line.startswith("matcher on ")), "utf-8")
    constructed = ("noisy *", "wrong *", "random*", "length", "shortest", "constant", "bt on *")
    config = CorrelateConfig(
        table=table,
        bench=("mirror",),
        downstream=("policy accuracy",),
        measure=("spearman",),
        unit="family",
        constructed=constructed,
    )
    found = correlate(config)
    cell = found.sets[-1].correlations[0]
    left = cell.leave_one_out
    assert left
    result, page = (" ".join((ROOT / "docs" / name).read_text("utf-8").split()) for name in TOLD)
    for line in correlation_sentences(found):
        if line.startswith("Without constructed families: "):
            assert line.removeprefix("Without constructed families: ") in result
    assert f"ρ {number(cell.value, 2)} ({p_equals(cell.p)})" in page
    assert f"{number(left.value, 2)} ({p_equals(left.p)})" in page


def test_the_glossary_is_what_conditions_and_metrics_say_of_themselves():
    """`python -c "from tests.test_docs import write_glossary; write_glossary()"` writes it anew."""
    page = ROOT / "docs" / "statistics.md"
    assert page.read_text("utf-8") == with_glossary(page.read_text("utf-8"))


def glossary() -> dict[str, Table]:
    """What docs/statistics.md says of conditions and metrics, by the name of the part."""
    shows = tuple((f"`{name}`", condition.shows) for name, condition in CONDITIONS.items())
    units = {"share": "%", "points": "points", "number": ""}
    rows = []
    for key, metric in METRICS.items():
        tested = "yes" if metric.tested else ""
        rows.append((f"`{key}`", metric.sentence, units[metric.unit], metric.better, metric.task, tested))
    columns = ("metric", "meaning", "shown in", "better", "task", "tested")
    return {
        "conditions": Table("", ("condition", "what a model is shown of the user"), shows),
        "metrics": Table("", columns, tuple(rows)),
    }


def with_glossary(text: str) -> str:
    for name, table in glossary().items():
        content = "\n".join(line for line in markdown(table).splitlines() if line.startswith("|"))
        content = content.replace(" ---: |", " --- |")
        pattern = rf"<!-- {name} -->\n.*?<!-- /{name} -->"
        block = f"<!-- {name} -->\n{content}\n<!-- /{name} -->"
        text = re.sub(pattern, lambda _, block=block: block, text, flags=re.S)
    return text


def write_glossary() -> None:
    page = ROOT / "docs" / "statistics.md"
    page.write_text(with_glossary(page.read_text("utf-8")), "utf-8")


def test_the_readme_has_the_numbers_of_the_table_that_make_demo_prints(tmp_path):
    """Models at exactly 50 by construction are left out of the run: they do not count in Holm's correction either."""
    settings = EvaluateConfig(model=("lexical", "embedding", PERSONAL, READER), out=tmp_path / "run")
    summary = Summary.read(evaluate(settings).summary)
    personal = split_alias(PERSONAL)[0]
    result, control = summary.result(personal, "profile"), summary.contrasts_of(personal)["control"]
    assert result is not None
    effect = result.as_json()["person_effect"]
    page = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"orders {100 * effect['value']:.1f} % of the twins by the user (p = {effect['p_holm']:.2f})" in page
    assert f"control is {number(control.value, scale=100, sign=True)} points (p = {control.p_holm:.2f})" in page
