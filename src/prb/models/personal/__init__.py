"""Trained personal heads: small reward models on frozen features that know whose preference they judge.

`prb train` writes a folder; `personal?path=FOLDER` is the reward model in it. Everything a head needs for scoring is
here; `prb.training` trains it.
"""

from __future__ import annotations

from pathlib import Path

from prb.models import MODELS
from prb.types import Scorer


@MODELS.register("personal")
def personal(path: str, support: str | None = None, support_split: str | None = None) -> Scorer:
    """A head trained with `prb train` (path=FOLDER).

    support: a dataset with labeled pairs of the users to be scored (a file or a spec), for methods that can use them.
    Rows that are given as support get no score.
    """
    from prb.models.personal.scorer import load_personal

    return load_personal(Path(path), support, support_split)
