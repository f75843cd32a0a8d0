"""A stranger's code from a few labelled pairs, all strangers at once, nobody's depending on who else is asked about."""

from __future__ import annotations

from prb.models.personal.method import Array, Method, Pairs, Params

STEPS = 100
RATE = 0.2
ROWS = 2048
"""Pairs that are compared with all known people at once."""


def most_probable_codes(method: Method, params: Params, pairs: Pairs, persons: int, nobody: Array) -> Array:
    """argmin Σ −log σ(margin) + prior ‖code − nobody‖² for each person; a person without pairs is nobody.

    The sum falls apart into persons, and Adam scales every coordinate by itself.
    """
    import torch
    from torch.nn.functional import softplus

    codes = nobody.repeat(persons, 1).requires_grad_()
    optimiser = torch.optim.Adam([codes], lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        view = pairs.view._replace(code=codes[pairs.person])
        surprise = softplus(-method.margins(params, pairs._replace(view=view))).sum()
        (surprise + method.prior * (codes - nobody).square().sum()).backward()
        optimiser.step()
    return codes.detach()


def explained_codes(method: Method, params: Params, pairs: Pairs, persons: int) -> Array:
    """The mean mixture of the known people, each as likely as they would have chosen what this person chose.

    An empirical prior: people come in kinds, and a few pairs tell the kind better than they tell a distance from the
    average. Codes are logits of simplex weights, so the logarithm of the mean mixture is a code again.
    """
    from torch.nn.functional import logsigmoid

    people = params["people"]
    total = people.new_zeros((persons, len(people)))
    for rows in _chunks(len(pairs.person)):
        part = Pairs(pairs.view._replace(code=people[:, None]), pairs.chosen[rows], pairs.rejected[rows], None)
        likely = logsigmoid(method.margins(params, part))
        total.index_add_(0, pairs.person[rows], likely.T)
    return (total.softmax(-1) @ people.softmax(-1)).log()


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + ROWS) for start in range(0, count, ROWS)]
