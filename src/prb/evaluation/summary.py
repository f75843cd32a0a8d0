"""From columns of outcomes to `summary.json` and `users.json`. Nothing here depends on the clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from prb import __version__
from prb.data.load import Dataset, Index
from prb.evaluation.columns import Column, Columns
from prb.evaluation.config import EvaluateConfig
from prb.stats.bias import length_bias, position_bias
from prb.stats.calibrate import calibration
from prb.stats.estimate import Floats, Ints, codes, share
from prb.stats.mirror import Twins, average_user_share, mirror_accuracy, person_effect
from prb.stats.paired import difference, flip_rate, holm
from prb.stats.people import by_group, by_label, spread, user_means
from prb.stats.ratings import METRICS, mean_over_users, rating_metrics

CONTRASTS = {"gain": ("profile", "none"), "control": ("profile", "shuffled")}


def summarise(config: EvaluateConfig, dataset: Dataset, columns: Columns) -> tuple[dict[str, Any], dict[str, Any]]:
    rows = Rows(dataset.index)
    describe = rows.ratings_result if config.task == "ratings" else rows.pairs_result
    results = [
        {"model": model, "condition": condition, **describe(column, config.seed)}
        for (model, condition), column in columns.of.items()
    ]
    summary = {
        "prb": __version__,
        "task": config.task,
        "protocol": config.protocol,
        "dataset": {
            "name": dataset.name,
            "split": dataset.split,
            "rows": len(dataset),
            "users": len(set(dataset.index.users)),
            "clusters": len(set(dataset.index.clusters)),
            "fingerprint": dataset.fingerprint,
            "left_out": len({(p.place, p.line) for p in dataset.problems}),
        },
        "results": results,
        "contrasts": [] if config.task == "ratings" else rows.contrasts(config, columns),
    }
    return summary, rows.users_table(config, columns)


class Rows:
    """The dataset's side of the columns, as arrays."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._clusters: Ints = codes(index.clusters)
        self._users: Ints = codes(index.users)
        self._names = list(dict.fromkeys(index.users))
        self._twins: Ints = np.array(index.twins, dtype=np.int64)
        self._lengths = tuple(np.array(column, dtype=np.float64) for column in index.lengths)

    def pairs_result(self, column: Column, seed: int) -> dict[str, Any]:
        credit, margin = column.credit, column.margin
        answered = ~np.isnan(credit)
        failed = int((~answered).sum())
        won = np.where(credit == 1, 1.0, 0.0)
        return {
            "accuracy": share(credit[answered], self._clusters[answered], failed=failed).as_dict(),
            "strict_accuracy": share(won[answered], self._clusters[answered], failed=failed).as_dict(),
            **self._mirror(credit, margin, answered, seed),
            "by_category": _dicts(by_label(credit, self._clusters, self._index.categories)),
            "by_tier": _dicts(by_label(credit, self._clusters, self._index.tiers)),
            "by_group": by_group(credit, self._clusters, self._index.groups),
            "users": spread(user_means(credit, self._users)[0]),
            "biases": {
                "length": length_bias(credit, self._clusters, *self._lengths),
                "position": position_bias(column.verdicts),
                "calibration": calibration(margin, credit, self._clusters),
            },
            "failures": dict(sorted(column.failures.items())),
            "cut_posts": column.cut,
        }

    def _mirror(self, credit: Floats, margin: Floats, answered: Any, seed: int) -> dict[str, Any]:
        twins = Twins.find(self._twins, self._clusters, answered)
        if not len(twins):
            return {"mirror_accuracy": None, "person_effect": None, "average_user_share": None}
        effect, p = person_effect(margin, twins, seed=seed)
        return {
            "mirror_accuracy": mirror_accuracy(credit, twins).as_dict(),
            "person_effect": {**effect.as_dict(), "p": p},
            "average_user_share": average_user_share(margin, twins),
        }

    def contrasts(self, config: EvaluateConfig, columns: Columns) -> list[dict[str, Any]]:
        """Gain and control of every model, with Holm's correction over all of them together."""
        found = []
        for model in config.model:
            for kind, (a, b) in CONTRASTS.items():
                if a in config.condition and b in config.condition:
                    left, right = columns.of[model, a].credit, columns.of[model, b].credit
                    row = difference(left, right, self._clusters, seed=config.seed).as_dict()
                    flips = flip_rate(left, right) if kind == "control" else None
                    found.append({"model": model, "kind": kind, **row, "p_holm": None, "flip_rate": flips})
        tested = [row for row in found if row["p"] is not None]
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["p_holm"] = p
        return found

    def ratings_result(self, column: Column, seed: int) -> dict[str, Any]:  # noqa: ARG002
        score = column.score
        users = self._rating_users(score)
        wanted = len(np.unique(self._users))
        return {
            "n": int((~np.isnan(score)).sum()),
            "failed": int(np.isnan(score).sum()),
            "users": len(users),
            "users_too_few_rows": wanted - len(users),
            **{metric: mean_over_users([u[metric] for u in users.values()]) for metric in METRICS},
            "by_group": self._rating_groups(users),
            "failures": dict(sorted(column.failures.items())),
        }

    def _rating_users(self, score: Floats) -> dict[int, dict[str, Any]]:
        return rating_metrics(score, np.array(self._index.ratings), self._users)

    def _rating_groups(self, users: dict[int, dict[str, Any]]) -> dict[str, Any]:
        belongs = {int(code): row for code, row in zip(self._users, self._index.groups, strict=True) if row}
        attributes = sorted({key for row in belongs.values() for key in row})
        return {key: self._rating_group(key, belongs, users) for key in attributes}

    def _rating_group(self, key: str, belongs: dict[int, dict[str, str]], users: dict[int, dict[str, Any]]) -> Any:
        names = sorted({row[key] for row in belongs.values() if key in row})
        members = {name: [u for code, u in users.items() if belongs.get(code, {}).get(key) == name] for name in names}
        return {name: mean_over_users([u["alignment"] for u in rows]) for name, rows in members.items()}

    def users_table(self, config: EvaluateConfig, columns: Columns) -> dict[str, Any]:
        """Column-wise, so that a million people stay a readable file and a small one."""
        one = self._rating_columns if config.task == "ratings" else self._accuracy_columns
        results = [{"model": m, "condition": c, **one(column)} for (m, c), column in columns.of.items()]
        return {"users": self._names, "results": results}

    def _accuracy_columns(self, column: Column) -> dict[str, Any]:
        means, n, present = user_means(column.credit, self._users)
        accuracy: list[float | None] = [None] * len(self._names)
        counts = [0] * len(self._names)
        for code, mean, rows in zip(present.tolist(), means.tolist(), n.tolist(), strict=True):
            accuracy[code], counts[code] = mean, rows
        return {"accuracy": accuracy, "n": counts}

    def _rating_columns(self, column: Column) -> dict[str, Any]:
        users = self._rating_users(column.score)
        everybody = range(len(self._names))
        return {name: [users.get(code, {}).get(name) for code in everybody] for name in ("n", *METRICS)}


def _dicts(estimates: dict[str, Any]) -> dict[str, Any]:
    return {name: estimate.as_dict() for name, estimate in estimates.items()}
