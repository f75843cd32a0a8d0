"""Personalized RewardBench: does a reward model know whose preference it judges?

    from prb import EvaluateConfig, evaluate
    result = evaluate(EvaluateConfig(model=("embedding",), condition=("none", "profile")))

Names are loaded when they are first used, so `import prb` and `prb --help` cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prb.data.load import load_pairs as load_pairs
    from prb.evaluation.config import EvaluateConfig as EvaluateConfig
    from prb.evaluation.personalized_reward import evaluate_personalized_reward as evaluate_personalized_reward
    from prb.evaluation.run import evaluate as evaluate
    from prb.models import MODELS as MODELS
    from prb.types import Failure as Failure
    from prb.types import Pair as Pair
    from prb.types import Post as Post
    from prb.types import Query as Query
    from prb.types import Verdict as Verdict

__version__ = "0.1.0"

_HOME = {
    "MODELS": "prb.models",
    "DATASETS": "prb.data.source",
    "EvaluateConfig": "prb.evaluation.config",
    "Failure": "prb.types",
    "Pair": "prb.types",
    "Post": "prb.types",
    "Query": "prb.types",
    "Verdict": "prb.types",
    "evaluate": "prb.evaluation.run",
    "evaluate_personalized_reward": "prb.evaluation.personalized_reward",
    "load_pairs": "prb.data.load",
}
__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prb' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
