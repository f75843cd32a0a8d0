"""Trained personal heads: small reward models on frozen features that know whose preference they judge.

`prb train` makes a folder; `personal?path=FOLDER` is the reward model in it. Everything a head needs at scoring time
is here; how it is trained is in `prb.training`.
"""

from __future__ import annotations

from pathlib import Path

from prb.models import MODELS
from prb.types import Scorer


@MODELS.register("personal")
def personal(path: str, support: str | None = None, support_split: str | None = None) -> Scorer:
    """A head trained with `prb train` (path=FOLDER).

    support: a dataset with labelled pairs of the persons to be judged (a file or a spec); what a person chose there
    tells about them, for methods that can use it. Do not evaluate on the same rows.
    """
    from prb.models.personal.scorer import load_personal

    return load_personal(Path(path), support, support_split)
