"""Trained personal heads: small reward models on frozen features that know whose preference they judge.

`prb train` writes a folder; `personal?path=FOLDER` is the reward model in it. Everything a head needs for scoring is
here; `prb.training` trains it. `make embedded-model` writes those that ship into `embedded/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from prb.errors import BadSpec
from prb.models import MODELS
from prb.types import Recorded, Scorer

EMBEDDED = Path(__file__).parent / "embedded"
EmbeddedHead = Literal["smollm2", "qwen2.5-1.5b"]
"""The LLMs on whose states a head ships; their weights are pulled."""


@MODELS.register("personal")
def personal(path: Path | None = None, lm: EmbeddedHead | None = None) -> Scorer:
    """A head trained with `prb train` (path=FOLDER), or one that ships (lm=smollm2 or lm=qwen2.5-1.5b, once pulled).

    Methods with a code per user infer it from past choices.
    """
    from prb.models.personal.collaborative import load_collaborative
    from prb.models.personal.head import load_personal

    if (path is None) == (lm is None):
        raise BadSpec(
            f"model 'personal': give path=FOLDER of a trained head, or lm={' or lm='.join(get_args(EmbeddedHead))}"
        )
    folder = path or EMBEDDED / str(lm)
    return load_collaborative(folder) or load_personal(folder)


@MODELS.register("personal-recorded")
def personal_recorded(lm: EmbeddedHead = "smollm2") -> Recorded:
    """Scores of `personal?lm=…` on `mirror`, splits test and hard (smollm2: and restraint), with all posts shown."""
    from prb.models.scores import RecordedScores

    return RecordedScores(EMBEDDED / lm / "recorded.jsonl")
