"""Until all callers moved."""

from prb.evaluation.planners import PLANNERS, Planner

__all__ = ["PLANNERS", "Planner"]
