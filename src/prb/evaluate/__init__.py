"""Conditions, the resumable runner, and the summary made from its outcomes.

`prb.evaluate` is this package and, called, the function `prb.evaluate.run.evaluate`: importing a package binds its
name in its parent, so `from prb import evaluate` cannot give anything else.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from prb.evaluate.run import evaluate

        return evaluate(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
