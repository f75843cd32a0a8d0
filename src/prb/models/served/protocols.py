"""Bodies and replies of reward servers, without the network: vLLM, SGLang, text-embeddings-inference, our own.

Replies are read strictly: a list of another length, a missing index or a label nobody knows is no reply at all.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prb.errors import BadInput

Kind = Literal["vllm", "sglang", "tei", "prb"]
Api = Literal["auto", "vllm", "vllm-pooling", "sglang", "sglang-embeddings", "tei", "prb"]
Get = Callable[[str], Awaitable[Any]]
"""GET a path: its JSON, or `None` where the server has no such route."""
Input = Sequence[int] | Sequence[str]
"""A text as token ids; as one string, or as two where the model reads pairs, for a server that tokenizes itself."""
Logits = list[float]

BATCH = 64
"""Texts per request, unless the server allows fewer."""
TEI_BATCH = 32
OLDEST_SWITCH, NEW_SWITCH, TOKEN_IDS = (0, 10, 2), (0, 11, 1), (0, 15, 0)
"""vLLM versions: raw logits can be asked for; under today's name; `/classify` takes token ids."""
UNKNOWN = (999, 0, 0)


@dataclass(frozen=True, kw_only=True)
class About:
    """What a server says about itself. Servers that say the same are interchangeable."""

    kind: Kind
    model: str
    version: str = ""
    dtype: str = ""
    weights: str = ""
    """A commit or fingerprint, where the server knows it."""
    source: str = field(default="", compare=False)
    """Where the server got the weights: a folder, perhaps of another machine, or a hub id."""
    tokenizer: str = field(default="", compare=False)
    """Where it got the tokenizer, if elsewhere."""
    max_length: int | None = None
    batch: int = BATCH
    labels: tuple[str, ...] = ()
    """Names of the logits in order, where replies name them."""


async def describe(get: Get, api: Api, model: str) -> About | None:
    """What answers there; `None` if it is none of these servers."""
    kind = "" if api == "auto" else api.split("-")[0]
    if kind in ("", "vllm") and (version := await get("/version")) and isinstance(version.get("version"), str):
        return _vllm(version["version"], await get("/v1/models"), model)
    if kind in ("", "sglang"):
        about = await get("/model_info") or await get("/get_model_info")
        if about and "model_path" in about:
            return _sglang(about, await get("/server_info") or await get("/get_server_info") or {}, model)
    if kind in ("", "tei", "prb") and (info := await get("/info")):
        if info.get("server") == "prb":
            return About(kind="prb", model=str(info["model"]), version=info["version"], weights=info["fingerprint"])
        if "model_id" in info:
            return _tei(info, model)
    return None


def _vllm(version: str, listed: Any, model: str) -> About:
    cards = {str(card.get("id")): card for card in (listed or {}).get("data", [])}
    card = cards.get(model or next(iter(cards), ""))
    if card is None:
        raise BadInput(_another_model(model, cards))
    return About(
        kind="vllm",
        version=version,
        model=str(card["id"]),
        source=str(card.get("root") or card["id"]),
        max_length=_count(card.get("max_model_len")),
    )


def _sglang(about: dict[str, Any], server: dict[str, Any], model: str) -> About:
    name = str(server.get("served_model_name") or about["model_path"])
    if model and model not in (name, about["model_path"]):
        raise BadInput(_another_model(model, [name]))
    if about.get("is_generation") is True:
        raise BadInput(f"SGLang serves {name} as a generator; start it with --is-embedding")
    return About(
        kind="sglang",
        version=str(server.get("version") or ""),
        model=name,
        dtype=str(server.get("dtype") or ""),
        source=str(about["model_path"]),
        tokenizer=str(about.get("tokenizer_path") or ""),
        max_length=_count(server.get("context_length") or server.get("max_req_input_len")),
    )


def _tei(info: dict[str, Any], model: str) -> About:
    name = str(info["model_id"])
    if model and model != name:
        raise BadInput(_another_model(model, [name]))
    kinds = info.get("model_type") or {}
    classifier = kinds.get("classifier") or kinds.get("reranker")
    if not classifier:
        raise BadInput(f"text-embeddings-inference serves {name} for {', '.join(kinds)}, not as a classifier")
    names = classifier.get("id2label") or {}
    return About(
        kind="tei",
        version=str(info.get("version") or ""),
        model=name,
        dtype=str(info.get("model_dtype") or ""),
        weights=str(info.get("model_sha") or ""),
        source=name,
        max_length=_count(info.get("max_input_length")),
        batch=int(info.get("max_client_batch_size") or TEI_BATCH),
        labels=tuple(names[key] for key in sorted(names, key=int)),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _another_model(model: str, served: Sequence[str] | dict[str, Any]) -> str:
    names = ", ".join(served) or "no model"
    return f"the server serves {names}, not {model}" if model else f"the server serves {names}"


@dataclass(frozen=True)
class Dialect:
    """How a server is asked for the logits of several texts, and how its reply is read."""

    path: str
    write: Callable[[Sequence[Input], bool], dict[str, Any]]
    """Inputs, and whether logits should be raw → body."""
    read: Callable[[Any], list[Any] | None]
    """Reply → what it says of each input, in order."""
    model: str
    labels: tuple[str, ...] = ()
    takes_text: bool = False
    """Whether the server tokenizes by itself."""
    has_switch: bool = True
    """Whether a sigmoid or softmax can be asked for."""
    trusted: bool = True
    """Whether this release is known to honor that it was not."""

    def logits(self, reply: Any, n: int) -> list[Logits] | None:
        """The logits of each of `n` texts; `None` if the reply is not about these texts or from another model."""
        if isinstance(reply, dict) and reply.get("model", self.model) != self.model:
            return None
        rows = self.read(reply)
        if rows is None or len(rows) != n:
            return None
        logits = [_numbers(_by_label(row, self.labels)) for row in rows]
        return logits if all(logits) else None  # type: ignore[return-value]


def dialect_of(about: About, api: Api) -> Dialect:
    name = about.kind if api == "auto" else api
    if about.kind == "vllm":
        return _vllm_dialect(about, api)
    if name == "sglang-embeddings":
        return Dialect(
            "/v1/embeddings",
            lambda inputs, _: {"model": about.model, "input": list(inputs)},
            lambda reply: _indexed(reply, "embedding"),
            about.model,
            has_switch=False,
        )
    if name == "sglang":
        return Dialect(
            "/classify", lambda inputs, _: {"input_ids": list(inputs)}, _embeddings, about.model, has_switch=False
        )
    return Dialect(
        "/predict",
        lambda inputs, raw: {"inputs": [list(parts) for parts in inputs], "raw_scores": raw, "truncate": False},
        lambda reply: reply if isinstance(reply, list) else None,
        about.model,
        about.labels,
        takes_text=True,
    )


def _vllm_dialect(about: About, api: Api) -> Dialect:
    version, pooling = _release(about.version), api == "vllm-pooling"
    if version < OLDEST_SWITCH:
        raise BadInput(f"vLLM {about.version} gives no raw logits; the first release that does is 0.10.2")
    if version < TOKEN_IDS and not pooling:
        if api == "vllm":
            raise BadInput(f"/classify of vLLM {about.version} takes no token ids (0.15 does); use api=vllm-pooling")
        pooling = True
    switch = "use_activation" if version >= NEW_SWITCH else "activation"

    def write(inputs: Sequence[Input], raw: bool) -> dict[str, Any]:
        task = {"task": "classify"} if pooling and version >= TOKEN_IDS else {}
        return {"model": about.model, "input": list(inputs), switch: not raw, **task}

    values = "data" if pooling else "probs"
    return Dialect(
        "/pooling" if pooling else "/classify",
        write,
        lambda reply: _indexed(reply, values),
        about.model,
        trusted=NEW_SWITCH <= version < UNKNOWN,
    )


def _release(version: str) -> tuple[int, ...]:
    """Of a build without a release number, as from a checkout, the newest is assumed; the logits are checked anyway."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    release = tuple(int(n or 0) for n in numbers.groups()) if numbers else (0, 0, 0)
    return release if release > (0, 1, 9) else UNKNOWN


def _indexed(reply: Any, field: str) -> list[Any] | None:
    match reply:
        case {"data": [*rows]}:
            values = {row.get("index"): row.get(field) for row in rows if isinstance(row, dict)}
            if len(values) == len(rows) and set(values) == set(range(len(rows))):
                return [values[n] for n in range(len(rows))]
    return None


def _embeddings(reply: Any) -> list[Any] | None:
    rows = reply if isinstance(reply, list) else [reply]
    return [row["embedding"] for row in rows] if all(isinstance(r, dict) and "embedding" in r for r in rows) else None


def _by_label(row: Any, labels: tuple[str, ...]) -> Any:
    """Scores that are named and come largest first, in the order of the head."""
    match row:
        case [{"label": _, "score": _}, *_]:
            scores = {str(entry["label"]): entry["score"] for entry in row if isinstance(entry, dict)}
            if len(scores) == len(row) == 1:
                return list(scores.values())
            return [scores[label] for label in labels] if set(scores) == set(labels) else None
    return row


def _numbers(value: Any) -> Logits | None:
    """One or several logits; servers write null for what is not a number."""
    match value:
        case [[*inner]]:
            return _numbers(inner)
        case [*items] if items and all(item is None or type(item) in (int, float) for item in items):
            return [float("nan") if item is None else float(item) for item in items]
    return None
