"""How fast and in how much memory users' votes stream; results go to docs/tables/benchmarks.md.

python benchmarks/sources.py                233,000 votes, as in Community Alignment (needs 1.5 GB of disk)
python benchmarks/sources.py --votes 20000  the same, smaller
"""

from __future__ import annotations

import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import tyro
from record import write_between

BARE = """
import orjson, resource, sys, time
start = time.process_time()
with open(sys.argv[1], "rb") as file:
    count = sum(1 for line in file if orjson.loads(line))
print(count, time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
OURS = """
import resource, sys, time
from prb.data.source import open_source
start = time.process_time()
count = sum(1 for row in open_source(sys.argv[1]).rows() if row.problem is None)
print(count, time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True)
class Args:
    votes: int = 233_000
    users: int = 854
    """Of the file in PersonalRewardBench's format."""
    folder: Path | None = None
    """Where to put the files for a while."""


def main(args: Args) -> None:
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        votes, choices = Path(folder) / "votes.jsonl", Path(folder) / "choices.jsonl"
        write(votes, ballots(args.votes))
        write(choices, personal(args.users))
        specs = {
            votes: [f"votes?path={votes}", f"votes?path={votes}&mirror=true"],
            choices: [f"personalrewardbench?path={choices}"],
        }
        lines = [
            "| dataset | rows | CPU seconds | bare parse | ratio | peak memory |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        ]
        for path, sources in specs.items():
            _, bare, _ = measure(BARE, str(path))
            for spec in sources:
                count, seconds, memory = measure(OURS, spec)
                name = spec.replace(str(path), path.name)
                cells = (
                    f"{count:,.0f}",
                    f"{seconds:.1f}",
                    f"{bare:.1f}",
                    f"{seconds / bare:.0f}",
                    f"{memory / 1024:.0f} MB",
                )
                lines.append(f"| `{name}` | {' | '.join(cells)} |")
        about = f"{platform.machine()}, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}."
        sizes = f"{args.votes:,} votes ({votes.stat().st_size >> 20} MB) and {args.users} users"
        write_between("sources", f"{about} {sizes}.\n\n" + "\n".join(lines))
    print("\n".join(lines))


def ballots(count: int) -> Iterator[dict[str, Any]]:
    """Votes for one of four answers; three of four prompts are shared by eight voters, as in Community Alignment."""
    for n in range(count):
        prompt = f"p{n // 8}" if n % 4 else f"own{n}"
        dice = random.Random(prompt)
        answers = [" ".join(dice.choices(WORDS, k=110)) for _ in range(4)]
        question = f"{prompt} " + " ".join(dice.choices(WORDS, k=15))
        yield {"user": f"u{n * 7919 % 3500}", "prompt": question, "answers": answers, "choice": n * 31 % 7 % 4}


def personal(users: int) -> Iterator[dict[str, Any]]:
    """About as many rows per user as PersonalRewardBench has, each with two turns of context."""
    for user in range(users):
        for n in range(30):
            dice = random.Random(f"{user}-{n}")
            texts = [" ".join(dice.choices(WORDS, k=k)) for k in (20, 120, 20, 120, 120)]
            roles = ("user", "model", "user")
            yield {
                "conversation_id": f"c{user}-{n}",
                "user_id": f"u{user}",
                "context": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)],
                "chosen": {"role": "model", "content": texts[3]},
                "rejected": {"role": "model", "content": texts[4]},
                "split": ("train", "val", "test")[n % 3],
            }


WORDS = [f"word{n}" for n in range(2000)]


def write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        for row in rows:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def measure(program: str, argument: str) -> tuple[float, float, float]:
    """Rows, CPU seconds and peak kilobytes of a process of its own."""
    done = subprocess.run([sys.executable, "-c", program, argument], check=True, capture_output=True, text=True)
    count, seconds, memory = map(float, done.stdout.split())
    return count, seconds, memory


if __name__ == "__main__":
    main(tyro.cli(Args))
