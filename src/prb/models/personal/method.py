"""What a method is: named arrays, a reward over them, a loss. Adding one is a file in `methods/` with one decorator.

    @METHODS.register("mine")
    def mine(rank: int = 8) -> Method:
        '''One line that `prb train --help` shows.'''
        return Mine(rank)

The arguments of the factory are its settings: `prb train "mine?rank=16"`. Modules import torch inside functions, so
that listing the names costs nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.registry import Registry

Array = Any
"""A numpy array, or a torch tensor of the same shape: a method is handed one or the other, never a mixture."""
Params = dict[str, Array]
Floats = NDArray[np.float64]


class View(NamedTuple):
    """What a head may look at beside the answer, one row an answer."""

    question: Array
    """(rows, size)"""
    posts: Array
    """(rows, posts, size); zeros where there is no post"""
    mask: Array
    """(rows, posts): 1 where there is a post"""
    code: Array
    """(rows, code size): what labelled pairs told about the person; `Method.nobody` for strangers"""


class Pairs(NamedTuple):
    view: View
    chosen: Array
    rejected: Array
    person: Array
    """(rows,): which rows belong to the same person, as 0, 1, 2 …"""


class Step(NamedTuple):
    """Where training stands: for warm-ups, and for noise that does not depend on anything global."""

    progress: float
    """0 at the start, 1 after the last epoch that is allowed."""
    noise: Any
    """A torch.Generator."""


class Method:
    """A linear user-blind head unless more is said; see `methods/` for the rest."""

    joint: ClassVar[bool] = False
    """Answers are read with the posts in the prompt."""
    looks_at_posts: ClassVar[bool] = False
    """Posts are given as vectors of their own."""
    tabled: ClassVar[bool] = False
    """Every training person has a code, logits of a mixture, that is learned with the rest; some of them are kept as
    `people`, and a stranger's code is a mean of theirs."""
    needs_pairs: ClassVar[bool] = False
    """Without labelled pairs of a person it is user-blind."""
    closed_form: ClassVar[bool] = False
    """`solve` gives the parameters at once: no torch, no epochs."""
    free: ClassVar[frozenset[str]] = frozenset()
    """Parameters without an L2 penalty."""
    grid: ClassVar[dict[str, tuple[float, ...]]] = {}
    """Settings of the factory that `--sweep` tries."""
    code_size: int = 0
    """How many numbers describe a person; 0: labelled pairs of a person change nothing."""
    prior: float = 1.0
    """Penalty on the squared distance of a code from `nobody`'s, against the summed loss of the person's pairs."""

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        raise NotImplementedError

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        raise NotImplementedError

    def margins(self, params: Params, pairs: Pairs) -> Array:
        return self.reward(params, pairs.view, pairs.chosen) - self.reward(params, pairs.view, pairs.rejected)

    def loss(self, params: Params, pairs: Pairs, step: Step) -> Array:  # noqa: ARG002
        from prb.models.personal.losses import bradley_terry

        return bradley_terry(self.margins(params, pairs))

    def infer(self, params: Params, pairs: Pairs, persons: int, nobody: Array) -> Array:
        """Codes of persons from labelled pairs: a mean of known people's, or the most probable ones under the prior."""
        from prb.models.personal.adapt import explained_codes, most_probable_codes

        if self.tabled:
            return explained_codes(self, params, pairs, persons)
        return most_probable_codes(self, params, pairs, persons, nobody)

    def solve(self, pairs: Pairs) -> dict[str, Floats]:
        raise NotImplementedError

    def report(self, params: Params, pairs: Pairs, persons: int) -> dict[str, Any]:  # noqa: ARG002
        """What the card should say about the trained method."""
        return {}


METHODS: Registry[Method] = Registry("method", package="prb.models.personal.methods", group="prb.methods")


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    """Start weights with rows of about unit length."""
    return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]))
