"""Who may do what: invitation tokens, the administrator's password, sessions, form tokens, rate limits."""

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

from prb.study.database import ANNOTATOR, SESSION, STUDY, Database, log

SESSION_DAYS = 30
ADMIN_HOURS = 12
PASSWORD_LENGTH = 16
TRACKED_KEYS = 10_000
"""Rate limits forget idle keys when there are more."""


def new_token() -> str:
    """256 random bits; only their hash is stored, which at this length needs no salt."""
    return secrets.token_urlsafe(32)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def new_pseudonym() -> str:
    return f"p-{secrets.token_hex(5)}"


def new_password() -> str:
    return new_token()[:PASSWORD_LENGTH]


def hash_password(password: str) -> str:
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)


def password_matches(stored: str, password: str) -> bool:
    from argon2 import PasswordHasher
    from argon2.exceptions import Argon2Error

    try:
        return PasswordHasher().verify(stored, password)
    except Argon2Error:
        return False


def replace_password(database: Database) -> str:
    """A new password for the administrator; sessions of the old one end."""
    password = new_password()
    with database.write() as connection:
        connection.execute(sa.update(STUDY).values(admin_hash=hash_password(password)))
        connection.execute(sa.delete(SESSION).where(SESSION.c.annotator.is_(None)))
        log(connection, "password replaced")
    return password


class Visitor(NamedTuple):
    """Whoever a session cookie stands for."""

    session: str
    annotator: int | None
    """`None`: the administrator."""
    name: str
    pseudonym: str
    consented: bool


def invited_annotator(connection: Connection, token: str) -> int | None:
    annotator = connection.scalar(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.token_hash == sha256(token)))
    return None if annotator is None else int(annotator)


def open_session(connection: Connection, annotator: int | None) -> tuple[str, int]:
    """The secret of a new session and how many seconds it lasts."""
    secret, now = new_token(), time.time()
    seconds = ADMIN_HOURS * 3600 if annotator is None else SESSION_DAYS * 86400
    connection.execute(sa.delete(SESSION).where(SESSION.c.expires < now))
    connection.execute(sa.insert(SESSION).values(hash=sha256(secret), annotator=annotator, expires=now + seconds))
    log(connection, "signed in", annotator=annotator)
    return secret, seconds


def session_visitor(connection: Connection, secret: str | None) -> Visitor | None:
    if not secret:
        return None
    row = connection.execute(
        sa.select(SESSION.c.annotator, ANNOTATOR.c.name, ANNOTATOR.c.pseudonym, ANNOTATOR.c.consented)
        .select_from(SESSION.outerjoin(ANNOTATOR, SESSION.c.annotator == ANNOTATOR.c.id))
        .where(SESSION.c.hash == sha256(secret), SESSION.c.expires > time.time())
    ).first()
    if row is None:
        return None
    return Visitor(secret, row.annotator, row.name or "admin", row.pseudonym or "", row.consented is not None)


def close_session(connection: Connection, secret: str) -> None:
    connection.execute(sa.delete(SESSION).where(SESSION.c.hash == sha256(secret)))


def renew_link(connection: Connection, annotator: int) -> str:
    """A new invitation; the old link and its sessions stop working."""
    token = new_token()
    connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(token_hash=sha256(token)))
    connection.execute(sa.delete(SESSION).where(SESSION.c.annotator == annotator))
    log(connection, "link renewed", annotator=annotator)
    return token


def form_token(session: str) -> str:
    """Proves that a form came from our page in this session, and when that page was made."""
    made = f"{time.time():.3f}"
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
class RateLimit:
    """A token bucket per key: `per_minute` requests, in bursts of as many; 0 means no limit."""

    per_minute: int
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def allows(self, key: str) -> bool:
        if not self.per_minute:
            return True
        now = time.monotonic()
        with self._lock:
            if len(self._buckets) > TRACKED_KEYS:  # a bucket is full again after a minute anyway
                self._buckets = {k: bucket for k, bucket in self._buckets.items() if now - bucket[1] < 60}
            left, last = self._buckets.get(key, (float(self.per_minute), now))
            left = min(float(self.per_minute), left + (now - last) * self.per_minute / 60)
            self._buckets[key] = (left - 1 if left >= 1 else left), now
            return left >= 1
