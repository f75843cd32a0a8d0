"""Trained personal heads: small reward models on frozen features that know whose preference they judge.

`prb train` writes a folder; `personal?path=FOLDER` is the reward model in it. Everything a head needs for scoring is
here; `prb.training` trains it. `make embedded-model` writes one into `embedded/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from prb.errors import BadSpec
from prb.models import MODELS
from prb.types import Scorer

EMBEDDED = Path(__file__).parent / "embedded"


@MODELS.register("personal")
def personal(path: Path | None = None, lm: Literal["smollm2"] | None = None) -> Scorer:
    """A head trained with `prb train` (path=FOLDER), or by `make embedded-model` (lm=smollm2, on pulled weights).

    Methods with a code per user infer it from past choices.
    """
    from prb.models.personal.collaborative import load_collaborative
    from prb.models.personal.head import load_personal

    if (path is None) == (lm is None):
        raise BadSpec(
            "model 'personal': give path=FOLDER of a trained head, or lm=smollm2 for that of `make embedded-model`"
        )
    if lm and not (EMBEDDED / lm).exists():
        raise BadSpec(
            f"model 'personal': lm={lm}: there is no such head yet; `make embedded-model` in a checkout trains it"
        )
    folder = path or EMBEDDED / str(lm)
    return load_collaborative(folder) or load_personal(folder)
