"""What training did to answers on held-out prompts: drawn, scored and graded before and after, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from prb.downstream.candidates import Candidates, Sample, sample_answers, score_candidates
from prb.downstream.policy import Policy
from prb.downstream.ppo_config import PpoConfig
from prb.downstream.ppo_prompts import Prompt, Prompts, Shown, masked
from prb.evaluation.run import chunks
from prb.grading import Grader, answered, as_line, grade_all
from prb.llm import Sampling
from prb.progress import Progress
from prb.runs import Journal
from prb.stats.estimate import Floats, Ints, codes, totals
from prb.stats.paired import bootstrap_interval, difference
from prb.types import Failure, Pair, Query, Scorer

AT_ONCE = 8
"""Prompts of which all lines are written together; a crash costs as many."""
NO_PAIR = Failure("no rubric to grade by")


class Proof:
    """The held-out prompts and their lines in `answers.jsonl`: one a stage (before, after) and prompt."""

    def __init__(
        self, config: PpoConfig, prompts: Prompts, model: Scorer, grader: Grader | None, policy: Policy, path: Path
    ) -> None:
        self.config, self.prompts, self.model, self.grader = config, prompts, model, grader
        self.policy, self.path = policy, path

    def answer(self, stage: str, progress: Progress) -> None:
        """All lines of a stage that are not there yet."""
        with Journal(self.path) as journal:
            there = {line["pair"] for line in journal.lines() if line["stage"] == stage}
            todo = [prompt for prompt in self.prompts.held_out if prompt.item.id not in there]
            progress.begin(f"held-out answers {stage} training", total=len(there) + len(todo), done=len(there))
            for some in chunks(todo, AT_ONCE):
                journal.append([{"stage": stage, **line} for line in self._lines(some)])
                progress.advance(len(some))

    def _lines(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        shown = dict(zip([p.item.id for p in prompts], self.prompts.show(prompts), strict=True))
        queries = {pair: self._fitted(s) for pair, s in shown.items()}
        c = self.config
        how = Sampling(temperature=c.temperature, max_tokens=c.max_new_tokens, seed=c.seed)
        samples = {
            sample.pair: sample for sample in sample_answers(self.policy, [(pair, 0) for pair in shown], queries, how)
        }
        rewards = self._rewards(shown, samples)
        grades = self._grades(prompts, samples)
        return [
            {
                **asdict(samples[p.item.id]),
                "cluster": p.cluster,
                "reward": rewards.get(p.item.id),
                "grade": grades.get(p.item.id),
            }
            for p in prompts
        ]

    def _fitted(self, shown: Shown | Failure) -> Query | Failure:
        if isinstance(shown, Failure):
            return shown
        fitted = self.policy.fitted(shown.policy, prompt=self.config.max_prompt, answer=self.config.max_new_tokens)
        return fitted if isinstance(fitted, Failure) else fitted[0]

    def _rewards(self, shown: dict[str, Shown | Failure], samples: dict[str, Sample]) -> dict[str, Any]:
        asked = [
            Candidates(pair, query.reward, [text])
            for pair, query in shown.items()
            if isinstance(query, Shown) and (text := samples[pair].text) is not None
        ]
        lines = score_candidates(self.config.model, self.model, asked) if asked else []
        return {line.pair: {"score": line.score, "failure": line.failure} for line in lines}

    def _grades(self, prompts: Sequence[Prompt], samples: dict[str, Sample]) -> dict[str, Any]:
        if self.grader is None:
            return {}
        with_text = {p.item.id: (p.item, text) for p in prompts if (text := samples[p.item.id].text) is not None}
        gradable = {id_: item for id_, (item, _) in with_text.items() if isinstance(item, Pair) and item.rubric}
        hidden = masked(self.config, self.grader)
        asked = [answered(item, with_text[id_][1], masked=hidden) for id_, item in gradable.items()]
        said = dict(zip(gradable, grade_all(self.grader, asked) if asked else [], strict=True))
        return {id_: as_line(said.get(id_, NO_PAIR)) for id_ in with_text}

    def summary(self) -> dict[str, Any]:
        if not self.prompts.held_out:
            return {"prompts": 0}
        with Journal(self.path) as journal:
            lines = {(line["stage"], line["pair"]): line for line in journal.lines()}
        columns = ["reward", *(["grade"] if self.grader is not None else [])]
        found = {name: self._compared(lines, name) for name in columns}
        return {"prompts": len(self.prompts.held_out), **found}

    def _compared(self, lines: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, Any]:
        clusters = codes([prompt.cluster for prompt in self.prompts.held_out])
        before, after = (self._column(lines, stage, name) for stage in ("before", "after"))
        ends = {"before": _mean(before, clusters, self.config.seed), "after": _mean(after, clusters, self.config.seed)}
        return {**ends, "difference": difference(after, before, clusters, seed=self.config.seed).as_dict()}

    def _column(self, lines: dict[tuple[str, str], dict[str, Any]], stage: str, name: str) -> Floats:
        found = [(lines[stage, prompt.item.id][name] or {}).get("score") for prompt in self.prompts.held_out]
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def _mean(values: Floats, clusters: Ints, seed: int) -> dict[str, Any]:
    known = ~np.isnan(values)
    told = {"value": None, "low": None, "high": None, "n": int(known.sum()), "failed": int((~known).sum())}
    if not known.any():
        return told
    low, high = bootstrap_interval(totals(values[known], clusters[known]), seed=seed)
    return {**told, "value": float(values[known].mean()), "low": low, "high": high}
