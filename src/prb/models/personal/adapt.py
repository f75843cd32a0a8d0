"""A stranger's code from a few labelled pairs, all strangers at once."""

from __future__ import annotations

from prb.models.personal.method import Array, Method, Pairs, Params

STEPS = 100
RATE = 0.2


def most_probable_codes(method: Method, params: Params, pairs: Pairs, persons: int, nobody: Array) -> Array:
    """argmin Σ −log σ(margin) + prior ‖code − nobody‖² for each person; a person without pairs is nobody.

    The sum falls apart into persons, and Adam scales every coordinate by itself, so nobody's code depends on who
    else is asked about.
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
