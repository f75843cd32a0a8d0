"""VPL: variational preference learning (Poddar et al., arXiv 2408.10075).

A person is a latent z with a standard normal prior, inferred from labelled pairs by an encoder that does not care for
their order; the reward of an answer depends on z. Two choices differ from the published code: a pair's own label is
left out of the set its latent is inferred from, so that training asks for what testing asks for, and the decoder is
linear in z, which needs far fewer pairs than a network on [answer; z].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from prb.models.personal.losses import active_units, bradley_terry, gaussian_kl, warm_up
from prb.models.personal.method import METHODS, Array, Floats, Method, Pairs, Params, Step, View, normal


@dataclass(frozen=True)
class Vpl(Method):
    latent: int
    hidden: int
    beta: float
    warm: float

    grid: ClassVar = {"beta": (0.01, 0.1, 1.0)}
    needs_pairs = True

    @property
    def code_size(self) -> int:  # type: ignore[override]
        return self.latent

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            "look": normal(rng, size, self.hidden),
            "mix": normal(rng, self.hidden, self.hidden),
            "mean": normal(rng, self.hidden, self.latent),
            "spread": np.zeros((self.hidden, self.latent)),
            "taste": np.zeros(size),
            "decode": normal(rng, size, self.latent),
        }

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return answer @ params["taste"] + ((answer @ params["decode"]) * view.code).sum(-1)

    def loss(self, params: Params, pairs: Pairs, step: Step) -> Array:
        """−ELBO a pair: each pair is judged by a latent drawn from a random part of the person's other pairs."""
        import torch

        persons = int(pairs.person.max()) + 1
        share = torch.rand(persons, generator=step.noise)[pairs.person]
        shown = (torch.rand(len(share), generator=step.noise) < share).to(pairs.chosen.dtype)[:, None]
        own = self._looks(params, pairs) * shown
        total, count = _sums(own, pairs.person, persons), _sums(shown, pairs.person, persons)
        mean, log_variance = self._posterior(params, (total[pairs.person] - own), (count[pairs.person] - shown))
        drawn = torch.randn(mean.shape, generator=step.noise, dtype=mean.dtype)
        code = mean + drawn * (log_variance / 2).exp()
        fit = bradley_terry(self.margins(params, pairs._replace(view=pairs.view._replace(code=code))))
        pairs_each = _sums(torch.ones_like(shown), pairs.person, persons)[pairs.person, 0]
        cost = (gaussian_kl(mean, log_variance) / pairs_each).mean()
        return fit + self.beta * warm_up(step.progress, self.warm) * cost

    def infer(self, params: Params, pairs: Pairs, persons: int, nobody: Array) -> Array:  # noqa: ARG002
        looks = self._looks(params, pairs)
        count = _sums(looks[:, :1] * 0 + 1, pairs.person, persons)
        return self._posterior(params, _sums(looks, pairs.person, persons), count)[0]

    def report(self, params: Params, pairs: Pairs, persons: int) -> dict[str, Any]:
        means = self.infer(params, pairs, persons, None)
        return {"active_units": active_units(means), "latent": self.latent}

    def _looks(self, params: Params, pairs: Pairs) -> Array:
        """One labelled pair, seen on its own."""
        return ((pairs.chosen - pairs.rejected) @ params["look"]).tanh()

    def _posterior(self, params: Params, total: Array, count: Array) -> tuple[Array, Array]:
        """Mean and log-variance; without any pair exactly the prior. The bend lets few pairs settle on a kind."""
        seen = (total / (count + 1) @ params["mix"] * 3).tanh()
        return (seen @ params["mean"]) * 3, (seen @ params["spread"]) - (count + 1).log()


def _sums(rows: Array, person: Array, persons: int) -> Array:
    return rows.new_zeros((persons, rows.shape[1])).index_add(0, person, rows)


@METHODS.register("vpl")
def vpl(latent: int = 4, hidden: int = 32, beta: float = 0.1, warm: float = 0.3) -> Method:
    """VPL: a latent person inferred from labelled pairs, with KL warm-up (arXiv 2408.10075)."""
    return Vpl(latent, hidden, beta, warm)
