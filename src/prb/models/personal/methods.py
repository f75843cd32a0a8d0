"""Methods: named arrays, a reward over them and a loss. Linear heads, heads that know a user by the posts, mixtures of
what all users share, and VPL. To add one, register a class:

    @METHODS.register("mine")
    @dataclass(frozen=True)
    class Mine(Method):
        '''One line that `prb train --help` shows.'''

        rank: Count = 8

The fields are its settings: `prb train "mine?rank=16"`. Torch is imported inside functions, so that listing the names
costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.config import Count, NonNegative, Positive, Share, Size
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
    """(rows, code size): what labeled pairs say about the user; `Head.prior_mean` for unknown users"""


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
    """Penalty on the squared distance of a code from the prior's mean, against the summed loss of the user's pairs."""

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        """Initial parameters for vectors of this size."""
        raise NotImplementedError

    def shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        """Of the parameters, for vectors of this size."""
        return {name: array.shape for name, array in self.start(size, np.random.default_rng(0)).items()}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        raise NotImplementedError

    def margins(self, params: Params, pairs: Pairs) -> Array:
        return self.reward(params, pairs.view, pairs.chosen) - self.reward(params, pairs.view, pairs.rejected)

    def loss(self, params: Params, pairs: Pairs, step: Step) -> Array:  # noqa: ARG002
        return bradley_terry(self.margins(params, pairs))

    def infer(self, params: Params, pairs: Pairs, users: int, prior_mean: Array) -> Array:
        """Codes of users from their labeled pairs; a user's code does not depend on who else is in the batch.

        argmin Σ −log σ(margin) + prior ‖code − prior_mean‖² per user; a user without pairs keeps the mean of the prior.
        The sum separates over users, and Adam scales every coordinate by itself, so all users are fitted at once.
        """
        import torch
        from torch.nn.functional import softplus

        codes = prior_mean.repeat(users, 1).requires_grad_()
        optimizer = torch.optim.Adam([codes], lr=STEP_SIZE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            view = pairs.view._replace(code=codes[pairs.user])
            loss = softplus(-self.margins(params, pairs._replace(view=view))).sum()
            (loss + self.prior * (codes - prior_mean).square().sum()).backward()
            optimizer.step()
        return codes.detach()

    def solve(self, parts: Iterable[Pairs]) -> dict[str, Floats]:
        """`parts`: all pairs, some at a time, since the posts of all may not fit into memory."""
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


TINY = 1e-9
"""Keeps a division by a length or a weight of zero finite."""

AFFINITY_SCALE = 10
"""Makes the penalty on the affinity negligible: it is one feature against hundreds."""
LEAK = 0.1
"""Slope that a linear path adds to the ReLU, so that no unit is dead at the start."""
GAIN = 3
"""Puts the mean of a few pairs into the bend of tanh, and posterior means beyond the prior's one standard deviation."""
ACTIVE = 0.01
"""Variance between users above which a latent dimension counts as used (Burda et al., arXiv 1509.00519)."""


@METHODS.register("bt")
class BradleyTerry(Method):
    """Pooled Bradley-Terry, user-blind: the baseline every other method has to beat.

    One taste for everybody (Bradley & Terry 1952, doi:10.1093/biomet/39.3-4.324).
    """

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:  # noqa: ARG002
        return {"taste": np.zeros(size)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:  # noqa: ARG002
        return answer @ params["taste"]


@METHODS.register("bt-profile")
class BradleyTerryWithProfile(BradleyTerry):
    """Pooled Bradley-Terry on answers encoded with the user's posts in the prompt (for features=hidden)."""

    joint = True


def nearest_posts(view: View, sharp: float) -> Array:
    """Posts averaged with weights exp(sharp × cosine to the question); zero where there are none."""
    scores = sharp * question_cosines(view)
    return weighted_mean(view, (np.exp(scores) if isinstance(scores, np.ndarray) else scores.exp()) * view.mask)


def question_cosines(view: View) -> Array:
    lengths = (view.posts**2).sum(-1) * (view.question**2).sum(-1)[:, None]
    return (view.posts * view.question[:, None, :]).sum(-1) / (lengths + TINY) ** 0.5


def weighted_mean(view: View, weights: Array) -> Array:
    total = weights.sum(-1)[:, None]
    return (view.posts * weights[:, :, None]).sum(1) / (total + (total == 0))


@METHODS.register("light")
@dataclass(frozen=True)
class Light(Method):
    """Logistic regression on answer, user × answer and affinity: no torch, trained in seconds."""

    c: Positive = 1e-3
    sharp: NonNegative = 5.0

    grid: ClassVar = {"c": (1e-5, 1e-4, 1e-3, 1e-2), "sharp": (0, 5, 20)}
    uses_posts = closed_form = True

    def shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        return {"weights": (2 * size + 1,)}

    def solve(self, parts: Iterable[Pairs]) -> dict[str, Floats]:
        """Every pair in both orders, without an intercept: the head cannot prefer a position."""
        from sklearn.linear_model import LogisticRegression

        rows = np.concatenate([self._describe(p.view, p.chosen) - self._describe(p.view, p.rejected) for p in parts])
        labels = np.r_[np.ones(len(rows)), np.zeros(len(rows))]
        model = LogisticRegression(C=self.c, fit_intercept=False, max_iter=1000, tol=1e-6)
        return {"weights": model.fit(np.r_[rows, -rows], labels).coef_[0]}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return self._describe(view, answer) @ params["weights"]

    def _describe(self, view: View, answer: Array) -> Array:
        """Answer, user × answer, and their affinity."""
        product = nearest_posts(view, self.sharp) * answer
        affinity = product.sum(axis=1, keepdims=True) / np.sqrt(answer.shape[1])
        return np.concatenate([answer, product, affinity * AFFINITY_SCALE], axis=1)


@METHODS.register("bilinear")
@dataclass(frozen=True)
class Bilinear(Method):
    """Posts near the question × answer: affinity plus a low-rank correction.

    reward = α p·a + (pV + code)·(aU) + taste·a, with p the mean of the posts near the question. The correction UVᵀ is
    of low rank and starts at zero, so training begins at plain affinity. The code is zero for unknown users; labeled
    pairs of a user move it within the learned subspace U.
    """

    rank: Count = 4
    sharp: NonNegative = 5.0
    prior: NonNegative = 5.0

    grid: ClassVar = {"rank": (4, 16), "sharp": (0, 5)}
    uses_posts = True
    unpenalized = frozenset({"affinity"})
    code_size = property(attrgetter("rank"))

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            "affinity": np.full(1, 1.0 / size),
            "taste": np.zeros(size),
            "person": np.zeros((size, self.rank)),
            "answer": normal(rng, size, self.rank),
        }

    def user(self, params: Params, view: View) -> Array:  # noqa: ARG002
        return nearest_posts(view, self.sharp)

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        user = self.user(params, view)
        affinity = params["affinity"] * (user * answer).sum(-1)
        learned = ((user @ params["person"] + view.code) * (answer @ params["answer"])).sum(-1)
        return affinity + learned + answer @ params["taste"]


@METHODS.register("attention")
@dataclass(frozen=True)
class Attention(Bilinear):
    """Bilinear with learned attention of the question over the posts.

    Weights softmax(sharp · cosine + (qA)·(pB)/√rank); the learned part starts at zero.
    """

    grid: ClassVar = {"rank": (4, 16)}
    unpenalized = frozenset({"affinity", "sharp"})

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            **super().start(size, rng),
            "query": normal(rng, size, self.rank),
            "key": np.zeros((size, self.rank)),
            "sharp": np.full(1, self.sharp),
        }

    def user(self, params: Params, view: View) -> Array:
        learned = ((view.question @ params["query"])[:, None, :] * (view.posts @ params["key"])).sum(-1)
        scores = params["sharp"] * question_cosines(view) + learned / self.rank**0.5
        return weighted_mean(view, scores.masked_fill(view.mask == 0, -1e9).softmax(-1) * view.mask)


@METHODS.register("profile-mlp")
@dataclass(frozen=True)
class ProfileMlp(Method):
    """A two-layer network on question, user, answer and user × answer."""

    hidden: Count = 32
    sharp: NonNegative = 5.0

    grid: ClassVar = {"hidden": (16, 64)}
    uses_posts = True
    unpenalized = frozenset({"bias"})

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        weights = {name: normal(rng, size, self.hidden) / 2 for name in ("question", "person", "answer", "product")}
        return {**weights, "bias": np.zeros(self.hidden), "out": np.zeros(self.hidden)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        user = nearest_posts(view, self.sharp)
        inner = view.question @ params["question"] + user @ params["person"] + answer @ params["answer"]
        inner = inner + (user * answer) @ params["product"] + params["bias"]
        return inner.relu() @ params["out"] + (inner * LEAK) @ params["out"]


@METHODS.register("axes")
@dataclass(frozen=True)
class Axes(Method):
    """Posts matched with answers, learned from labeled axes; no torch; needs `mirror?split=train`.

    The match of a post p and an answer a is pᵀ C⁻¹ (affinity + Σ poles) D⁻¹ a. C and D say how much posts, and answers,
    vary within a pole: what varies there tells nothing of a preference (Fisher 1936,
    doi:10.1111/j.1469-1809.1936.tb02137.x). Affinity carries over to axes that were not seen; the sum over seen axes
    turns what shows a pole in posts and answers into what suits it. Posts near the answer count more: `sharp`.
    """

    affinity: NonNegative = 1.0
    shrink: Positive = 3.0
    shrink_answers: Positive = 10.0
    sharp: NonNegative = 0.5

    uses_posts = closed_form = taught = True

    def shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        return {"match": (size, size)}

    def teach(self, lessons: Sequence[Taught]) -> dict[str, Floats]:
        posts = within_covariance([pole for lesson in lessons for pole in (lesson.first, lesson.second)])
        gaps = [lesson.answers[:, 0] - lesson.answers[:, 1] for lesson in lessons]
        answers = within_covariance(gaps)
        post_poles = np.stack([lesson.first.mean(axis=0) - lesson.second.mean(axis=0) for lesson in lessons]) / 2
        answer_poles = np.stack([gap.mean(axis=0) for gap in gaps]) / 2
        # answers show a pole more plainly than posts do
        poles = (post_poles + answer_poles / 2).T @ answer_poles / len(lessons)
        size = len(posts)
        affinity = self.affinity * np.sqrt(np.trace(posts) * np.trace(answers)) / size * np.eye(size)
        before, after = shrunk_inverse(posts, self.shrink), shrunk_inverse(answers, self.shrink_answers)
        return {"match": before @ (affinity + poles) @ after}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        """The mean match of the posts, weighted by their cosines to the answer, standardized over a user's posts."""
        posts, mask = view.posts, view.mask
        lengths = np.sqrt((posts**2).sum(axis=-1) * (answer**2).sum(axis=-1)[:, None])
        cosines = np.einsum("rps,rs->rp", posts, answer) / np.maximum(lengths, TINY)
        count = np.maximum(mask.sum(axis=1, keepdims=True), 1)
        centered = (cosines - (cosines * mask).sum(axis=1, keepdims=True) / count) * mask
        deviation = np.sqrt((centered**2).sum(axis=1, keepdims=True) / count)
        weights = np.exp(self.sharp * (centered / np.maximum(deviation, TINY))) * mask
        matches = np.einsum("rps,rs->rp", posts, answer @ params["match"].T)
        return (weights * matches).sum(axis=1) / np.maximum(weights.sum(axis=1), TINY)


@METHODS.register("matcher")
@dataclass(frozen=True)
class Matcher(Method):
    """Posts compared with answers in an LLM that is tuned so that they match: LoRA, for `hidden?lm=NAME&alone=true`.

    Needs `mirror?split=train` and the extra `train`. A post of a pole must be nearer to the answer for it than to the
    other one, by the cosine of mean states; posts of other axes take no side; and of users composed of such posts, each
    must get the right answer. The reward is the log-mean-exp of the cosines, so that posts near an answer count more.
    The adapter is written beside the head, which has no weights of its own.
    """

    rank: Count = 8
    """Of the adapter."""
    layers: Size = 0
    """So many layers below the state are tuned; 0: all of them. Fewer cost less, since the others need no gradients."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """In which the LLM is tuned; bf16 is several times as fast on a CPU with AVX512-BF16. Features keep their own."""
    passes: Count = 4
    """Over all axes; the one that is best on held-out axes is kept."""
    rate: Positive = 5e-4
    """Learning rate of the first step; it falls to zero in a straight line."""
    axes: Count = 3
    """Axes in a step, each with so many posts per pole and questions, and one exception:"""
    posts: Count = 3
    questions: Count = 2
    apart: NonNegative = 0.02
    """Weight of the penalty on taking sides on another axis."""
    scale: Positive = 20.0
    """Logits per unit of cosine."""
    near: Positive = 10.0
    """How much more a post counts while tuning that is nearer to the answer: e to this per unit of cosine."""
    nearest: Positive = 40.0
    """The same in the reward: users have more posts than those of a step, and few of them bear on a question."""

    uses_posts = closed_form = taught = True

    def shapes(self, size: int) -> dict[str, tuple[int, ...]]:  # noqa: ARG002
        return {}

    def reward(self, params: Params, view: View, answer: Array) -> Array:  # noqa: ARG002
        from scipy.special import logsumexp

        lengths = np.sqrt((view.posts**2).sum(axis=-1) * (answer**2).sum(axis=-1)[:, None])
        cosines = np.einsum("rps,rs->rp", view.posts, answer) / np.maximum(lengths, TINY)
        count = view.mask.sum(axis=1)
        cosines[count == 0] = 0  # nothing is known of the user
        weights = np.where(count[:, None], view.mask / np.maximum(count, 1)[:, None], 1 / view.mask.shape[1])
        return logsumexp(self.nearest * cosines, axis=1, b=weights) / self.nearest


def within_covariance(groups: Sequence[Floats]) -> Floats:
    """Covariance around the mean of each group."""
    centered = np.vstack([group - group.mean(axis=0) for group in groups])
    return np.asarray(centered.T @ centered / len(centered))


def shrunk_inverse(covariance: Floats, shrink: float) -> Floats:
    """Of the covariance plus `shrink` times its mean variance in every direction."""
    size = len(covariance)
    return np.linalg.inv(covariance + shrink * np.trace(covariance) / size * np.eye(size))


class Mixture(Method):
    """Users as mixtures of what all users share. Unknown users get the mixture of the average training user. With
    labeled pairs the papers fit the weights of a new user; here they are the mean of training users' weights, by how
    well these explain the pairs, which needs fewer of them."""

    tabled = needs_pairs = True

    def infer(self, params: Params, pairs: Pairs, users: int, prior_mean: Array) -> Array:  # noqa: ARG002
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
            log_likelihood.index_add_(0, pairs.user[rows], logsigmoid(self.margins(params, part)).T)
        return (log_likelihood.softmax(-1) @ known.softmax(-1)).log()


@METHODS.register("lore")
@dataclass(frozen=True)
class LoRe(Mixture):
    """LoRe: a low-rank basis of rewards, mixed by each user's simplex weights (arXiv 2504.14439)."""

    rank: Count = 4
    prior: NonNegative = 0.05

    grid: ClassVar = {"rank": (4, 8)}
    code_size = property(attrgetter("rank"))

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {"basis": normal(rng, size, self.rank)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return ((answer @ params["basis"]) * view.code.softmax(-1)).sum(-1)


@METHODS.register("pal")
@dataclass(frozen=True)
class Pal(Mixture):
    """PAL: distance to a mixture of prototype ideal points (arXiv 2406.08469).

    Its variant A. A user's ideal answer is a convex mixture of shared prototypes; the reward of an answer is minus its
    squared distance from the ideal, in a learned space. The map starts small and the prototypes far apart, so that
    users separate before the map does.
    """

    prototypes: Count = 4
    space: Count = 4
    prior: NonNegative = 0.05

    grid: ClassVar = {"prototypes": (4, 8)}
    unpenalized = frozenset({"prototypes"})
    code_size = property(attrgetter("prototypes"))

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            "map": normal(rng, size, self.space) / 8,
            "prototypes": 4 * rng.standard_normal((self.prototypes, self.space)),
        }

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        ideal = view.code.softmax(-1) @ params["prototypes"]
        return -(answer @ params["map"] - ideal).square().sum(-1)


def gaussian_kl(mean: Array, log_variance: Array) -> Array:
    """KL(N(mean, variance) ‖ N(0, 1)), summed over the last axis."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


@METHODS.register("vpl")
@dataclass(frozen=True)
class Vpl(Method):
    """VPL: a latent user inferred from labeled pairs, with KL warm-up (arXiv 2408.10075).

    The latent z has a standard normal prior and is inferred by a permutation-invariant encoder; the reward of an answer
    depends on z. Two choices differ from the published code: a pair's own label is left out of the set its latent is
    inferred from, so that training matches testing, and the decoder is linear in z, which needs far fewer pairs than a
    network on [answer; z].
    """

    latent: Count = 4
    hidden: Count = 32
    beta: NonNegative = 0.1
    warm: Share = 0.3

    grid: ClassVar = {"beta": (0.01, 0.1, 1.0)}
    needs_pairs = True
    code_size = property(attrgetter("latent"))

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
        """−ELBO per pair: each pair is scored with a latent drawn from a random part of the user's other pairs."""
        import torch

        users = int(pairs.user.max()) + 1
        share = torch.rand(users, generator=step.noise)[pairs.user]
        shown = (torch.rand(len(share), generator=step.noise) < share).to(pairs.chosen.dtype)[:, None]
        encoded = self._encode(params, pairs) * shown
        total, count = _sums(encoded, pairs.user, users), _sums(shown, pairs.user, users)
        mean, log_variance = self._posterior(params, total[pairs.user] - encoded, count[pairs.user] - shown)
        drawn = torch.randn(mean.shape, generator=step.noise, dtype=mean.dtype)
        code = mean + drawn * (log_variance / 2).exp()
        fit = super().loss(params, pairs._replace(view=pairs.view._replace(code=code)), step)
        pairs_per_user = _sums(torch.ones_like(shown), pairs.user, users)[pairs.user, 0]
        kl = (gaussian_kl(mean, log_variance) / pairs_per_user).mean()
        # from 0 to 1 over the first part of training, so that the latent is useful before it costs anything
        warmth = min(1.0, step.progress / self.warm) if self.warm > 0 else 1.0
        return fit + self.beta * warmth * kl

    def infer(self, params: Params, pairs: Pairs, users: int, prior_mean: Array) -> Array:  # noqa: ARG002
        encoded = self._encode(params, pairs)
        count = _sums(encoded[:, :1] * 0 + 1, pairs.user, users)
        return self._posterior(params, _sums(encoded, pairs.user, users), count)[0]

    def report(self, params: Params, pairs: Pairs, users: int) -> dict[str, Any]:
        """Latent dimensions whose mean varies between users; 0 is posterior collapse."""
        means = self.infer(params, pairs, users, None)
        active = int((means.var(dim=0) > ACTIVE).sum()) if len(means) > 1 else 0
        return {"active_units": active, "latent": self.latent}

    def _encode(self, params: Params, pairs: Pairs) -> Array:
        """Each labeled pair by itself."""
        return ((pairs.chosen - pairs.rejected) @ params["look"]).tanh()

    def _posterior(self, params: Params, total: Array, count: Array) -> tuple[Array, Array]:
        """Mean and log-variance; without any pair exactly the prior. The tanh lets few pairs settle on a kind."""
        seen = (total / (count + 1) @ params["mix"] * GAIN).tanh()
        return (seen @ params["mean"]) * GAIN, (seen @ params["spread"]) - (count + 1).log()


def _sums(rows: Array, user: Array, users: int) -> Array:
    return rows.new_zeros((users, rows.shape[1])).index_add(0, user, rows)
