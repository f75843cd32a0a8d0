"""What verbs print and write, as JSON or to read; what a wrong request is answered with. `test_evaluate.py` has more of
the main verb, `tests/golden` all that verbs print and write."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prb.cli.parse import parse
from prb.data.load import load_pairs
from prb.downstream.correlate import CorrelateConfig
from prb.grading import GRADERS
from prb.llm import LLMS, ScriptedLLM
from tests.building.author import make_record
from tests.cli.conftest import Prb
from tests.conftest import make_row, make_twins
from tests.downstream.fakes import Marks, says
from tests.evaluation.test_audit import row as audit_row
from tests.runs import names
from tests.stats.test_ranking import BON
from tests.training.synthetic import rows_of_twelve

Write = Callable[..., Path]
Files = dict[str, Path]
ALWAYS = "llm?llm=scripted/[1, 1, 1]"
EVALUATED = ("--model", "length", "--model", "constant", "--condition", "none", "--quiet")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy `words/…` and a grader `marks`, for these tests only."""

    def words(model: str) -> ScriptedLLM:
        return ScriptedLLM(says)

    monkeypatch.setitem(LLMS._known, "words", words)
    monkeypatch.setitem(GRADERS._known, "marks", Marks.plain)


@pytest.fixture
def files(write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """What the verbs read, beside an empty working folder."""
    answers = [{"pair": p.id, "answer": t} for p in load_pairs("mirror", split="test", limit=4) for t in p.answers]
    pool = [{"pair": id_, "answers": ["once it is", "never it is"]} for id_ in ("t1a", "t1b", "r5")]
    made = {
        "pairs": write_jsonl([*make_twins(1), make_row(5), make_row(6)], "set.jsonl"),
        "audited": write_jsonl([audit_row(n) for n in range(25)], "audited.jsonl"),
        "users": write_jsonl(rows_of_twelve(), "users.jsonl"),
        "answers": write_jsonl(answers, "answers.jsonl"),
        "records": write_jsonl([make_record(1), make_record(2)], "records.jsonl"),
        "pool": write_jsonl(pool, "pool.jsonl"),
        "table": tmp_path / "six.csv",
        "same": tmp_path / "same.csv",
    }
    made["table"].write_text("\n".join(["model,bench,bon", *(f"m{n},{-n},{-at}" for n, at in enumerate(BON))]), "utf-8")
    made["same"].write_text("model,x,y\na,1,1\nb,1,2\nc,1,3\n", "utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return made


def filled(words: str, files: Files) -> list[str]:
    return [str(files.get(word.removeprefix("@"), word)) for word in shlex.split(words)]


BON_WORDS = "bon --policy words/x --grader marks --n 4 --history both?ranker=recency --dataset @pairs"


@pytest.mark.parametrize(
    ("words", "file", "parts"),
    [
        ("audit @audited", "audit.json", ["user-blind learner reaches 100.0 %", "weekly", "written: "]),
        ("grade --answers @answers", "summary.json", ["Graded by embedded. On the 240 rows of mirror's test", "run: "]),
        (f"grade --answers @answers --grader '{ALWAYS}'", "summary.json", ["To validate it: prb grade --validate"]),
        (
            f"{BON_WORDS} --model length --model random",
            "summary.json",
            ["4 queries, 3 clusters, N = 4", "(oracle pick)", "length − random", "Right on 3 of 4", "run: "],
        ),
        ("correlate @table --measure ndcg spearman", "correlation.json", ["0.918", "does not predict bon sign"]),
        ("train light --dataset @users", "card.json", ["light: fitted on", "evaluate: prb evaluate --dataset "]),
    ],
)
def test_a_verb_prints_its_result_and_as_json_the_content_of_its_file(
    words: str, file: str, parts: list[str], prb: Prb, files: Files
) -> None:
    said = prb(*filled(words, files), "--out", "out")
    assert said.code == 0, said.err
    assert [part for part in parts if part not in said.out] == []
    assert said.err  # progress
    again = prb(*filled(words, files), "--out", "out", "--json", "--quiet")
    assert again.json == json.loads(Path("out", file).read_bytes())
    assert again.err == ""


def test_a_build_of_nothing_fails_and_says_why(prb: Prb, files: Files) -> None:
    said = prb(*filled("build --input @records --llm scripted/no", files), "--out", "out")
    assert said.code == 1
    assert "0 rows of 0 users" in said.out
    assert said.err.endswith("prb: no pair was built; 2 rejected: rubric 2 (reasons in rejects.jsonl)\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("grade", "one of --answers FILE and --validate"),
        ("grade --answers nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("grade --answers .", ". is a folder; give a .jsonl file"),
        ("grade --validate --grader embeded", "no grader named 'embeded'; did you mean 'embedded'?"),
        ("grade --validate --grader llm", "needs llm=…"),
        ("grade --validate --grader llm?llm=gpt", "is not an llm spec"),
        ("grade --validate --split devel", "no rows in split 'devel'"),
        ("grade --validate --human nobody.jsonl", "nobody.jsonl does not exist"),
        ("grade --config nothing.json", "nothing.json does not exist"),
        ("bon --policy words/x --candidates @pool", "needs one of --policy"),
        (f"{BON_WORDS} --model lenght", "no model named 'lenght'; did you mean 'length'?"),
        (f"{BON_WORDS} --policy smollm2", "'smollm2' is not an llm spec"),
        (f"{BON_WORDS} --model scripted-judge --n 17", "only compares answers"),
        (f"{BON_WORDS} --condition none --condition profile", "--condition takes one value here"),
        (f"{BON_WORDS} --n many", "many"),
        (f"{BON_WORDS} --planner crystal-ball", "no planner named 'crystal-ball'"),
        ("bon --candidates @pool --grader marks --dataset @pairs --n 16", "fewer than --n 16; use --n 2"),
        ("build --input lampqa?path=nowhere --llm scripted/no", "nowhere does not exist"),
        ("build --input @records --llm scripted/no --gate lenght=off", "did you mean 'length'?"),
        ("build --input @records --llm opnai/x --dry-run", "did you mean 'openai'?"),
        ("build --input @records --llm openai/x?usd_in=nan --dry-run", "usd_in='nan'"),
        ("correlate @same", "column 'x' is the same for all 3 models"),
        ("correlate nowhere.csv", "does not exist"),
        ("correlate", "give a table, or run folders"),
        ("correlate --bench . --downstream .", "is not a run"),
        ("correlate --bench bench --downstream bon @table", "a table comes first: prb correlate "),
        ("correlate @table --measure rbo --out @same", "cannot be a folder"),
        ("train", "the following arguments are required: METHOD; see `prb train --help`"),
        ("train lihgt", "did you mean 'light'"),
        ("train light?rnak=3", "rnak"),
        ("train bilinear?rank=-3", "rank='-3'"),
        ("train light --features statics", "did you mean 'static'"),
        ("train light --dataset nowhere.jsonl", "nowhere.jsonl"),
        ("train light --split test", "cannot be tested"),
        ("export . --to csv", "is not a run"),
        ("export . --to excel", "no format named 'excel'; there are: "),
        ("export .", "--to is required; see `prb export --help`"),
    ],
)
def test_a_wrong_request_exits_2_with_one_line_and_writes_nothing(
    words: str, says: str, prb: Prb, files: Files
) -> None:
    out = [] if "--out" in words or words.startswith("export") else ["--out", "out"]
    said = prb(*filled(words, files), *out)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert "Traceback" not in said.err
    assert [path for path in Path().rglob("*") if path.is_file()] == []


# --- audit ---
def test_without_an_out_a_run_is_named_after_its_set_and_without_matplotlib_figures_are_left_out(
    prb: Prb, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prb("audit", "--dataset", files["audited"]).code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("audit-audited-jsonl-")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = prb("correlate", files["table"], "--out", "out", "--measure", "rbo")
    extra = "the plot needs the 'figures' extra: pip install 'personalized-rewardbench[figures]'"
    assert (said.code, f"no scatter.svg: {extra}" in said.err) == (0, True)
    assert names(Path("out")) == ["correlation.json", "table.md"]


# --- bon ---
def test_best_of_n_begins_with_whether_it_gains_and_says_if_its_grader_was_never_measured(
    prb: Prb, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Marks, "validity")
    said = prb(*filled(f"{BON_WORDS} --model length", files), "--out", "out", "--quiet")
    assert said.out.startswith("Best of 4: ")
    assert "Graded by marks. Its validity has not been measured." in said.out


def test_models_are_added_and_answers_of_a_file_may_move_but_not_change(prb: Prb, files: Files, tmp_path: Path) -> None:
    words = "bon --candidates @pool --grader marks --history both?ranker=recency --dataset @pairs --out run"
    said = prb(*filled(f"{words} --model length", files))
    assert said.code == 0, said.err
    assert "left out 1 rows without candidates" in said.err
    assert "3 queries" in said.out
    added = prb("bon", "--config", "run", "--out", "run", "--model", "lexical", "--json")
    assert [row["model"] for row in added.json["results"]] == ["length", "lexical"]
    assert added.json["n"] == 2  # the default is what there is
    assert prb("bon", "--config", "run", "--out", "again", "--json", "--quiet").json == added.json
    moved = files["pool"].rename(tmp_path / "moved.jsonl")
    resumed = prb("bon", "--config", "run", "--out", "run", "--candidates", moved, "--json")
    assert resumed.json["results"] == added.json["results"]
    moved.write_text(moved.read_text("utf-8").replace("never", "often"), "utf-8")
    changed = prb("bon", "--config", "run", "--out", "run", "--json")
    assert (changed.code, "'policy: candidates' was " in changed.err) == (2, True)
    other = prb("grade", "--config", "run")
    assert (other.code, "holds no settings of `prb grade`" in other.err) == (2, True)


# --- correlate, train ---
def test_flags_take_several_values_and_may_be_repeated(prb: Prb, files: Files) -> None:
    words = ("--json", "--quiet", "--measure", "rbo", "spearman", "--measure", "ndcg")
    found = prb("correlate", files["table"], *words).json
    assert [c["measure"] for c in found["sets"][0]["correlations"]] == ["rbo", "spearman", "ndcg"]
    for folders in (("--bench", "a", "b"), ("--bench", "a", "--bench", "b")):
        config = parse(CorrelateConfig, [*folders, "--downstream", "c", "--quiet"], "correlate")
        assert (config.bench, config.downstream, config.constructed) == (("a", "b"), ("c",), ("noisy*",))


def test_the_help_of_train_lists_its_methods(prb: Prb) -> None:
    said = prb("train", "--help")
    assert said.code == 0
    assert all(name in said.out for name in ("light", "bt", "bilinear", "vpl", "reward-model", "dpo"))
    said = prb("train", "lore", "--help")
    assert said.code == 0
    assert "lore?rank=4&prior=0.05" in said.out


def test_the_line_that_training_ends_with_evaluates_what_was_trained(prb: Prb, files: Files) -> None:
    said = prb("train", "light", "--dataset", files["users"], "--out", "head", "--quiet")
    *_, last = said.out.strip().splitlines()
    words = shlex.split(last.removeprefix("evaluate: prb "))
    assert words[words.index("--dataset") + 1] == str(files["users"])
    evaluated = prb(*words, "--split", "train", "--trained", "count", "--out", "run", "--json")
    assert evaluated.code == 0
    assert {row["model"] for row in evaluated.json["results"]} == {"random", "personal?path=head"}


# --- what is made of evaluations: compare, export, leaderboard ---
@pytest.fixture
def run(prb: Prb, write_jsonl: Write, tmp_path: Path) -> Path:
    """Eight people alone; length is always wrong, constant always ties."""
    data = write_jsonl([make_row(n) for n in range(1, 9)])
    prb("evaluate", "--dataset", data, *EVALUATED, "--out", tmp_path / "run")
    return tmp_path / "run"


def test_exported_files_are_printed_one_per_line_or_as_json(prb: Prb, run: Path) -> None:
    files = [str(run / "export" / "csv" / f"{name}.csv") for name in ("estimates", "outcomes", "users")]
    assert prb("export", run, "--to", "csv", "--quiet") == (0, "\n".join(files) + "\n", "")
    assert prb("export", run, "--to", "csv", "--json", "--quiet").json == files
    refused = prb("export", run, "--to", "hf", "--quiet")
    assert (refused.code, "name the benchmark there: --to 'hf?dataset=owner/name'" in refused.err) == (2, True)


def test_accepted_and_refused_submissions_are_printed(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    data, runs, index = write_jsonl([*make_twins(0), *make_twins(1)]), tmp_path / "runs", tmp_path / "site/index.html"
    (runs / "empty").mkdir(parents=True)
    conditions = [word for name in ("none", "profile", "shuffled") for word in ("--condition", name)]
    prb("evaluate", "--dataset", data, "--model", "length", *conditions, "--quiet", "--out", runs / "ours")
    words = ["leaderboard", runs, "--out", tmp_path / "site", "--quiet"]
    (tmp_path / "reference.json").write_text(json.dumps({"evaluate": {"dataset": str(data), "k": 3}}))
    said = prb(*words, "--config", tmp_path / "reference.json")
    assert "refused:  ours: it was run with other settings: k is 10, not 3\n" in said.out
    assert (said.code, said.err) == (1, "prb: 2 of 2 submissions were refused\n")
    assert not (tmp_path / "site").exists()
    reason = "it has no config.json: it is not a finished run of `prb evaluate`"
    printed = f"accepted: ours\nrefused:  empty: {reason}\nreport: {index}\n"
    assert prb(*words, "--config", runs / "ours") == (0, printed, "")
    strict = prb(*words, "--config", runs / "ours", "--strict", "--json")
    assert strict.json == {"site": str(index), "accepted": ["ours"], "refused": {"empty": reason}}
    assert (strict.code, strict.err) == (1, "prb: 1 of 2 submissions were refused\n")
