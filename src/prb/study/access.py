"""Who may do what: invitation tokens, the administrator's password, sessions, CSRF tokens, rates."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.study.database import log
from prb.study.tables import ANNOTATOR, SESSION

SESSION_DAYS = 30
ADMIN_HOURS = 12


def new_token() -> str:
    """256 random bits; at rest there is only their hash, which at this length needs no salt."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_pseudonym() -> str:
    return f"p-{secrets.token_hex(5)}"


def hash_password(password: str) -> str:
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)


def password_fits(stored: str, password: str) -> bool:
    from argon2 import PasswordHasher
    from argon2.exceptions import Argon2Error

    try:
        return PasswordHasher().verify(stored, password)
    except Argon2Error:
        return False


class Visitor(NamedTuple):
    """Whoever a session cookie stands for."""

    session: str
    annotator: int | None
    """`None`: the administrator."""
    name: str
    pseudonym: str
    consented: bool


def by_token(connection: Connection, token: str) -> int | None:
    found = connection.scalar(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.token_hash == digest(token)))
    return None if found is None else int(found)


def open_session(connection: Connection, annotator: int | None) -> tuple[str, int]:
    """A new session's secret and how many seconds it lasts."""
    secret, now = new_token(), time.time()
    seconds = ADMIN_HOURS * 3600 if annotator is None else SESSION_DAYS * 86400
    connection.execute(sa.delete(SESSION).where(SESSION.c.expires < now))
    connection.execute(sa.insert(SESSION).values(hash=digest(secret), annotator=annotator, expires=now + seconds))
    log(connection, "signed in", annotator=annotator)
    return secret, seconds


def visitor(connection: Connection, secret: str | None) -> Visitor | None:
    if not secret:
        return None
    found = connection.execute(
        sa.select(SESSION.c.annotator, ANNOTATOR.c.name, ANNOTATOR.c.pseudonym, ANNOTATOR.c.consented)
        .select_from(SESSION.outerjoin(ANNOTATOR, SESSION.c.annotator == ANNOTATOR.c.id))
        .where(SESSION.c.hash == digest(secret), SESSION.c.expires > time.time())
    ).first()
    if found is None:
        return None
    return Visitor(secret, found.annotator, found.name or "admin", found.pseudonym or "", found.consented is not None)


def close_session(connection: Connection, secret: str) -> None:
    connection.execute(sa.delete(SESSION).where(SESSION.c.hash == digest(secret)))


def renew_link(connection: Connection, annotator: int) -> str:
    """A new invitation; the old link and its sessions stop working."""
    token = new_token()
    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(token_hash=digest(token)))
    connection.execute(sa.delete(SESSION).where(SESSION.c.annotator == annotator))
    log(connection, "link renewed", annotator=annotator)
    return token


def form_token(session: str, now: float | None = None) -> str:
    """Proves that a form came from our page in this session, and says when that page was made."""
    made = f"{time.time() if now is None else now:.3f}"
    return f"{made}.{_sign(session, made)}"


def form_age(session: str, token: str) -> float | None:
    """Seconds since the page was made; `None` if the token is not ours."""
    made, _, signature = token.rpartition(".")
    if not made or not hmac.compare_digest(_sign(session, made).encode(), signature.encode()):
        return None
    return max(0.0, time.time() - float(made))


def _sign(session: str, made: str) -> str:
    return hmac.new(f"form:{session}".encode(), made.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


@dataclass
class Rate:
    """At most `per_minute` for each key, in bursts of as many; 0 is no limit."""

    per_minute: int
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def allows(self, key: str) -> bool:
        if not self.per_minute:
            return True
        now = time.monotonic()
        with self._lock:
            if len(self._left) > 10_000:  # whoever has been away for a minute starts afresh anyway
                self._left = {k: v for k, v in self._left.items() if now - v[1] < 60}
            left, last = self._left.get(key, (float(self.per_minute), now))
            left = min(float(self.per_minute), left + (now - last) * self.per_minute / 60)
            self._left[key] = (left - 1 if left >= 1 else left), now
            return left >= 1
