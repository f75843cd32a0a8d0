"""Personalized RewardBench: does a reward model know whose preference it judges?

    import prb
    result = prb.evaluate(model="embedding", condition=("none", "profile", "shuffled"))
    result.accuracy("embedding", "profile")

Names are loaded when they are first used, so `import prb` and `prb --help` cost nothing.
"""

TYPE_CHECKING = False  # type checkers read it as true; importing `typing` would double the cost of `import prb`
if TYPE_CHECKING:
    from prb.api import audit as audit
    from prb.api import best_of_n as best_of_n
    from prb.api import build as build
    from prb.api import compare as compare
    from prb.api import correlate as correlate
    from prb.api import evaluate as evaluate
    from prb.api import export as export
    from prb.api import grade as grade
    from prb.api import leaderboard as leaderboard
    from prb.api import merge as merge
    from prb.api import open_run as open_run
    from prb.api import ppo as ppo
    from prb.api import report as report
    from prb.api import serve as serve
    from prb.api import train as train
    from prb.building.config import BuildConfig as BuildConfig
    from prb.data.load import load_pairs as load_pairs
    from prb.data.source import DATASETS as DATASETS
    from prb.downstream.bon import BonConfig as BonConfig
    from prb.downstream.correlate import CorrelateConfig as CorrelateConfig
    from prb.downstream.ppo import PpoConfig as PpoConfig
    from prb.errors import PrbError as PrbError
    from prb.evaluation.audit import AuditConfig as AuditConfig
    from prb.evaluation.compare import CompareConfig as CompareConfig
    from prb.evaluation.config import EvaluateConfig as EvaluateConfig
    from prb.evaluation.paper import evaluate_personalized_reward as evaluate_personalized_reward
    from prb.evaluation.planners import PLANNERS as PLANNERS
    from prb.evaluation.run import MergeConfig as MergeConfig
    from prb.grading import GRADERS as GRADERS
    from prb.grading import GradeConfig as GradeConfig
    from prb.hooks import HOOKS as HOOKS
    from prb.llm import LLMS as LLMS
    from prb.models import MODELS as MODELS
    from prb.reporting.evaluation_results import Evaluation as Evaluation
    from prb.reporting.formats import ExportConfig as ExportConfig
    from prb.reporting.results import Run as Run
    from prb.reporting.site import ReportConfig as ReportConfig
    from prb.reporting.submissions import LeaderboardConfig as LeaderboardConfig
    from prb.serving.server import ServeConfig as ServeConfig
    from prb.text.encoders import ENCODERS as ENCODERS
    from prb.training.config import FullConfig as FullConfig
    from prb.training.config import TrainConfig as TrainConfig
    from prb.types import Ask as Ask
    from prb.types import Aspect as Aspect
    from prb.types import Choice as Choice
    from prb.types import Comparer as Comparer
    from prb.types import Duel as Duel
    from prb.types import Estimate as Estimate
    from prb.types import Failure as Failure
    from prb.types import Outcome as Outcome
    from prb.types import Pair as Pair
    from prb.types import Post as Post
    from prb.types import Query as Query
    from prb.types import Rating as Rating
    from prb.types import Record as Record
    from prb.types import Recorded as Recorded
    from prb.types import Reward as Reward
    from prb.types import Scorer as Scorer
    from prb.types import Turn as Turn
    from prb.types import Verdict as Verdict

__version__ = "0.1.0"

_EXPORTS = {
    "prb.api": (
        "audit best_of_n build compare correlate evaluate export grade leaderboard merge open_run ppo report serve "
        "train"
    ),
    "prb.building.config": "BuildConfig",
    "prb.data.load": "load_pairs",
    "prb.data.source": "DATASETS",
    "prb.downstream.bon": "BonConfig",
    "prb.downstream.correlate": "CorrelateConfig",
    "prb.downstream.ppo": "PpoConfig",
    "prb.errors": "PrbError",
    "prb.evaluation.audit": "AuditConfig",
    "prb.evaluation.compare": "CompareConfig",
    "prb.evaluation.run": "MergeConfig",
    "prb.evaluation.config": "EvaluateConfig",
    "prb.evaluation.paper": "evaluate_personalized_reward",
    "prb.evaluation.planners": "PLANNERS",
    "prb.grading": "GRADERS GradeConfig",
    "prb.hooks": "HOOKS",
    "prb.llm": "LLMS",
    "prb.models": "MODELS",
    "prb.reporting.evaluation_results": "Evaluation",
    "prb.reporting.formats": "ExportConfig",
    "prb.reporting.results": "Run",
    "prb.reporting.site": "ReportConfig",
    "prb.reporting.submissions": "LeaderboardConfig",
    "prb.serving.server": "ServeConfig",
    "prb.text.encoders": "ENCODERS",
    "prb.training.config": "FullConfig TrainConfig",
    "prb.types": (
        "Ask Aspect Choice Comparer Duel Estimate Failure Outcome Pair Post Query "
        "Rating Record Recorded Reward Scorer Turn Verdict"
    ),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'prb' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
