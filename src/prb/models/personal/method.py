"""What a method is: named arrays, a reward over them and a loss. To add one, register a class in `methods.py`:

    @METHODS.register("mine")
    @dataclass(frozen=True)
    class Mine(Method):
        '''One line that `prb train --help` shows.'''

        rank: Count = 8

The fields are its settings: `prb train "mine?rank=16"`. Torch is imported inside functions, so that listing the names
costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.registry import Registry

Array = Any
"""A numpy array, or a torch tensor of the same shape: a method is given one or the other, never a mixture."""
Params = dict[str, Array]
"""Names are those of the tensors in `weights.safetensors`: renaming one makes saved heads unreadable."""
Floats = NDArray[np.float64]

STEPS, STEP_SIZE = 100, 0.2
"""Of Adam when a new user's code is fitted; a convex problem of a few numbers, converged well before."""
ROWS = 2048
"""Pairs that are compared with all known users at once."""


class View(NamedTuple):
    """What a head may see beside the answer, one row per answer."""

    question: Array
    """(rows, size)"""
    posts: Array
    """(rows, posts, size); zeros where there is no post"""
    mask: Array
    """(rows, posts): 1 where there is a post"""
    code: Array
    """(rows, code size): what labeled pairs say about the user; `Head.nobody` for unknown users"""


class Pairs(NamedTuple):
    view: View
    chosen: Array
    rejected: Array
    user: Array
    """(rows,): which rows belong to the same user, as 0, 1, 2 …"""


class Step(NamedTuple):
    """How far training is: for warm-ups, and for noise that depends on nothing global."""

    progress: float
    """0 at the start, 1 after the last allowed epoch."""
    noise: Any
    """A torch.Generator."""


class Taught(NamedTuple):
    """An axis of preference with labels, as vectors."""

    first: Floats
    """(posts, size): posts that show its first pole."""
    second: Floats
    answers: Floats
    """(questions, 2, size): the answers for the first pole and for the second."""

    @property
    def gaps(self) -> Floats:
        """(questions, size): the answer for the first pole minus the one for the second."""
        return np.asarray(self.answers[:, 0] - self.answers[:, 1])


class Method:
    """The defaults describe a user-blind head; see `methods.py` for the rest."""

    joint: ClassVar[bool] = False
    """Answers are encoded with the posts in the prompt."""
    uses_posts: ClassVar[bool] = False
    """Posts are given as vectors of their own."""
    tabled: ClassVar[bool] = False
    """Every training user has a code, logits of a mixture, learned with the other parameters. Some of them are kept as
    `people`, and the code of a new user is a mean of theirs."""
    needs_pairs: ClassVar[bool] = False
    """User-blind unless labeled pairs of the user are given."""
    closed_form: ClassVar[bool] = False
    """`solve` gives the parameters at once: no torch, no epochs."""
    taught: ClassVar[bool] = False
    """`teach` gives the parameters from labeled axes, which only some datasets have."""
    unpenalized: ClassVar[frozenset[str]] = frozenset()
    """Parameters without an L2 penalty."""
    grid: ClassVar[dict[str, tuple[float, ...]]] = {}
    """Settings of the factory that `--sweep` tries."""
    code_size: int = 0
    """How many numbers describe a user; 0: labeled pairs of a user change nothing."""
    prior: float = 1.0
    """Penalty on the squared distance of a code from `nobody`'s, against the summed loss of the user's pairs."""

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        """Initial parameters for vectors of this size."""
        raise NotImplementedError

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        raise NotImplementedError

    def margins(self, params: Params, pairs: Pairs) -> Array:
        return self.reward(params, pairs.view, pairs.chosen) - self.reward(params, pairs.view, pairs.rejected)

    def loss(self, params: Params, pairs: Pairs, step: Step) -> Array:  # noqa: ARG002
        return bradley_terry(self.margins(params, pairs))

    def infer(self, params: Params, pairs: Pairs, users: int, nobody: Array) -> Array:
        """Codes of users from their labeled pairs; a user's code does not depend on who else is in the batch."""
        if self.tabled:
            return weighted_codes(self, params, pairs, users)
        return most_probable_codes(self, params, pairs, users, nobody)

    def solve(self, pairs: Pairs) -> dict[str, Floats]:
        raise NotImplementedError

    def teach(self, lessons: Sequence[Taught]) -> dict[str, Floats]:
        raise NotImplementedError

    def report(self, params: Params, pairs: Pairs, users: int) -> dict[str, Any]:  # noqa: ARG002
        """What the card should say about the trained method."""
        return {}


METHODS: Registry[Method] = Registry("method", package="prb.models.personal", group="prb.methods")


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    """Initial weights whose rows have about unit length."""
    return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]))


def bradley_terry(margins: Array) -> Array:
    """Mean −log σ(margin)."""
    from torch.nn.functional import softplus

    return softplus(-margins).mean()


def most_probable_codes(method: Method, params: Params, pairs: Pairs, users: int, nobody: Array) -> Array:
    """argmin Σ −log σ(margin) + prior ‖code − nobody‖² per user; a user without pairs keeps `nobody`'s code.

    The sum separates over users, and Adam scales every coordinate by itself, so all users are fitted at once.
    """
    import torch
    from torch.nn.functional import softplus

    codes = nobody.repeat(users, 1).requires_grad_()
    optimizer = torch.optim.Adam([codes], lr=STEP_SIZE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        view = pairs.view._replace(code=codes[pairs.user])
        loss = softplus(-method.margins(params, pairs._replace(view=view))).sum()
        (loss + method.prior * (codes - nobody).square().sum()).backward()
        optimizer.step()
    return codes.detach()


def weighted_codes(method: Method, params: Params, pairs: Pairs, users: int) -> Array:
    """The mean mixture of the known users, weighted by the likelihood that they would have made the same choices.

    An empirical prior: users come in kinds, and a few pairs identify the kind better than they determine a distance
    from the average. Codes are logits of simplex weights, so the logarithm of the mean mixture is a code again.
    """
    from torch.nn.functional import logsigmoid

    known = params["people"]
    log_likelihood = known.new_zeros((users, len(known)))
    for start in range(0, len(pairs.user), ROWS):
        rows = slice(start, start + ROWS)
        part = Pairs(pairs.view._replace(code=known[:, None]), pairs.chosen[rows], pairs.rejected[rows], None)
        log_likelihood.index_add_(0, pairs.user[rows], logsigmoid(method.margins(params, part)).T)
    return (log_likelihood.softmax(-1) @ known.softmax(-1)).log()
