"""Trained personal heads: small reward models on frozen features that know whose preference they judge.

`prb train` writes a folder; `personal?path=FOLDER` is the reward model in it. Everything a head needs for scoring is
here; `prb.training` trains it.
"""

from __future__ import annotations

from pathlib import Path

from prb.models import MODELS
from prb.types import Scorer


@MODELS.register("personal")
def personal(path: Path) -> Scorer:
    """A head trained with `prb train` (path=FOLDER); methods with a code per user infer it from past choices."""
    from prb.models.personal.scorer import load_personal

    return load_personal(path)
