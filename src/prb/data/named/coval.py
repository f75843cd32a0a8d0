"""CoVal and its predecessor Collective Alignment 1 (OpenAI, 2025): people ranking four replies to contested prompts.

`comparisons.jsonl` holds one prompt per row with the assessments of all annotators, `annotators.jsonl` who they are.
Each annotator ranked twice: what they prefer themselves (`personal`) and what is best for the world (`world`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from prb.data.rows import BadRow, about, conversation, field, identifier, items, main_file, spec_name, turns
from prb.data.source import DATASETS, RawRow, Row, Source, file_source
from prb.data.votes import Vote, VoteSource, Voting

COMPARISONS, ANNOTATORS = "comparisons.jsonl", "annotators.jsonl"


@dataclass(frozen=True)
class Settings:
    block: Literal["personal", "world"] = "personal"
    """Which of the two rankings."""


@DATASETS.register("coval")
def coval(path: str, settings: Settings, voting: Voting) -> Source:
    """An annotator's best reply against the others of their ranking; with mirror=true, annotators who disagree."""
    comparisons = main_file(path, "coval", COMPARISONS)
    convert = Comparisons(comparisons, settings.block).votes
    return VoteSource(spec_name("coval", path, settings, voting), file_source(comparisons), convert, voting)


@dataclass(frozen=True)
class Comparisons:
    path: Path
    block: str

    @cached_property
    def _demographics(self) -> dict[str, dict[str, str]]:
        annotators = self.path.with_name(ANNOTATORS)
        facts_of = {}
        for row in file_source(annotators).rows() if annotators.is_file() else ():
            facts = row.data.get("demographics") if isinstance(row.data, dict) else None
            if isinstance(facts, dict):
                facts_of[str(row.data.get("annotator_id"))] = {key: str(value) for key, value in facts.items() if value}
        return facts_of

    def votes(self, row: Row, at: RawRow) -> Iterator[Vote]:
        prompt, metadata = field(row, "prompt"), field(row, "metadata")
        if not isinstance(prompt, dict) or not isinstance(metadata, dict):
            raise BadRow(f"`{'metadata' if isinstance(prompt, dict) else 'prompt'}` must be an object")
        asked = conversation(field(prompt, "messages"), "prompt.messages")
        replies = {
            identifier(reply, "response_index"): turns(field(reply, "messages"), "responses.messages")[-1]["text"]
            for reply in items(row, "responses")
        }
        for n, assessment in enumerate(items(metadata, "assessments")):
            ranks = ranks_of(assessment, self.block, replies.keys())
            if len(ranks) < 2:
                continue
            user = identifier(assessment, "annotator_id")
            facts = self._demographics.get(user, {})
            yield Vote(
                at=at,
                id=f"{identifier(row, 'prompt_id')}-{n}",
                user=user,
                **asked,
                answers=[replies[label] for label in ranks],
                ranks=list(ranks.values()),
                profile=about(user, facts),
                category=self.block,
                groups=facts,
            )


def ranks_of(assessment: Row, block: str, labels: Collection[str]) -> dict[str, int]:
    """Label to rank in `B>A=C>D`; nothing where the annotator gave no ranking of this kind."""
    blocks = assessment.get("ranking_blocks")
    given = blocks.get(block) if isinstance(blocks, dict) else None
    ranking = given[0].get("ranking") if isinstance(given, list) and given and isinstance(given[0], dict) else None
    if not ranking:
        return {}
    ranks = {x.strip(): rank for rank, level in enumerate(str(ranking).split(">")) for x in level.split("=")}
    if unknown := [label for label in ranks if label not in labels]:
        raise BadRow(f"`ranking` {ranking!r} names {unknown[0]!r}, which is no response")
    return dict(sorted(ranks.items()))
