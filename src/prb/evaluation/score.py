"""Until all callers moved."""

from prb.evaluation.scoring import CREDIT
from prb.evaluation.scoring import LARGEST_REWARD as LARGEST

__all__ = ["CREDIT", "LARGEST"]
