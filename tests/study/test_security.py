"""Strangers stay outside, nobody sees or changes what is not theirs, and no text is ever markup."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2 as httpx
import pytest
import sqlalchemy as sa

from prb.errors import BadInput
from prb.serving import http
from prb.study import site
from prb.study.app import serve
from prb.study.config import ServeConfig
from prb.study.database import AUDIT, REPLY, STUDY, password_matches, replace_password
from tests.conftest import make_row
from tests.study.conftest import AFTER, BEFORE, Make

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onmouseover='alert(3)",
    "<a href='javascript:alert(4)'>click</a>",
    "</textarea><svg onload=alert(5)>",
    "{{ 12345679 * 9 }} {% include 'admin.html' %}",
    "safe \u202egnihtemos esle\u2066 \u0007 \x1b[31m",
]


def evil_row(n: int) -> dict[str, object]:
    text = EVIL[n % len(EVIL)]
    return make_row(
        n,
        question=f"{text} {n}?",
        profile=[{"id": "1", "category": text, "text": text}],
        chosen=f"{text} yes",
        rejected=f"{text} no",
        narrative=text,
        rubric_aspects=[{"aspect": text, "evidence": text, "reason": text}],
    )


def harmless(text: str) -> None:
    assert not re.search(r"<script(?! src=\"/static/study.js\" defer)", text)
    assert not re.search(r"<(img|svg)|<a [^>]*javascript:|<[^>]+ on\w+=", text)
    assert "111111111" not in text
    assert not set(text) & set("\u202e\u2066\u0007\x1b")


def test_nothing_an_answer_a_post_or_a_rubric_says_is_markup(make: Make) -> None:
    study = make([evil_row(n) for n in range(len(EVIL))], annotators=1, overlap=1, checks=2, contact=EVIL[1])
    person = study.person()
    for _ in range(len(EVIL) + 2):
        harmless(person.open("/task"))
        harmless(person.follow(person.action, BEFORE))
        harmless(person.follow(person.action, AFTER))
    for path in ("/admin", "/admin/items"):
        harmless(study.admin().open(path))


def test_nothing_a_participant_writes_is_markup(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MAX_POSTS", 20)
    study = make(kind="collect")
    person = study.at_task(agree=True)
    for text in EVIL:
        harmless(person.follow("/posts", {"text": text}))
    harmless(person.follow("/questions", {"own": EVIL[0], "pick-1": "yes"}))
    harmless(person.follow(person.action, {"narrative": ""}))
    for text in EVIL:
        page = person.follow(person.action, {"narrative": text + "x" * 20_000})
        harmless(re.sub("[\x07\x1b\u202e\u2066]", "", page))  # inside the text field it stays what was typed
    harmless(person.follow(person.action.replace("/task/", "/skip/"), {"reason": "other"}))
    harmless(person.open("/data"))
    harmless(study.admin().open("/admin"))


def test_broken_forms_end_in_a_page_not_in_an_error(make: Make) -> None:
    person = make().at_task()
    for body in (b"\xff\xfe=1", b"a=%ff%fe&b=%00", b"&".join(b"a=1" for _ in range(500)), b"", b"=" * 9):
        assert 400 <= person.client.post(person.action, content=body).status_code < 500


def test_every_page_carries_the_headers_and_cookies_stay_where_they_belong(make: Make) -> None:
    study = make()
    person = study.person(join=False)
    cookie = person.client.post("/join", data={"invitation": study.tokens[0]}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "secure" not in cookie  # plain HTTP on loopback
    for path in ("/", "/task", "/data", "/nowhere", "/admin/login", "/static/study.css", f"/join/{study.tokens[0]}"):
        reply = person.client.get(path)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "same-origin"
        assert reply.headers["cache-control"] == "no-store"


def test_strangers_are_sent_to_their_invitation_and_a_link_alone_signs_nobody_in(make: Make) -> None:
    study = make()
    stranger = study.person(join=False)
    assert stranger.client.get(f"/join/{study.tokens[0]}").headers.get("set-cookie") is None
    for path in ("/task", "/data"):
        assert stranger.client.get(path).status_code == 401
    for path in ("/task/1/1", "/skip/1/1", "/undo", "/data/delete", "/admin/renew", "/leave"):
        assert stranger.send(path, BEFORE).status_code == 401
    assert "invitation link" in stranger.open("/")


def test_nobody_reaches_the_items_of_somebody_else(make: Make) -> None:
    study = make(overlap=1)
    one, two = study.at_task(0), study.at_task(1)
    assert two.send(one.action, BEFORE).status_code == 404
    assert two.send(one.action.replace("/task/", "/skip/"), {"reason": "other"}).status_code == 404
    assert study.count(REPLY) == 0


def test_a_form_without_our_token_or_with_somebody_elses_is_refused(make: Make) -> None:
    study = make()
    one, two = study.at_task(0), study.at_task(1)
    for token in ("", "1.2", two.token, one.token[:-2] + ("00" if one.token[-2] != "0" else "11"), "é.ü"):
        assert one.client.post(one.action, data={**BEFORE, "token": token}).status_code == 403
    for path in ("/undo", "/data/delete", "/leave"):
        assert one.client.post(path, data={"sure": "yes", "from": "x"}).status_code == 403
    other_site = {"sec-fetch-site": "cross-site"}
    assert one.client.post(one.action, data={**BEFORE, "token": one.token}, headers=other_site).status_code == 403
    assert one.send(one.action, BEFORE).status_code == 303


def test_only_hashes_of_links_sessions_and_passwords_are_at_rest(make: Make) -> None:
    study = make()
    person, admin = study.person(), study.admin()
    cookies = [*person.client.cookies.values(), *admin.client.cookies.values()]
    files = list(Path(study.where).parent.glob("s0.db*"))  # also what SQLite keeps beside it
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)  # only the owner can read them
    stored = b"".join(path.read_bytes() for path in files)
    for secret in (*study.tokens, *cookies, study.password):
        assert secret.encode() not in stored
    assert study.scalars(sa.select(STUDY.c.admin_hash))[0].startswith("$argon2id$")


def test_guessing_links_and_passwords_is_slow(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make()
    stranger = study.person(join=False)
    codes = [stranger.client.get(f"/join/{n}").status_code for n in range(12)]
    assert codes == [404] * 10 + [429] * 2
    reply = stranger.send("/admin/login", {"password": study.password})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "5")
    assert stranger.client.get(f"/join/{study.tokens[0]}").status_code == 200  # invited people are not held up
    study.app.state.site._attempts_since -= 61  # a minute later
    assert stranger.send("/admin/login", {"password": study.password}).status_code == 303


def test_at_most_two_passwords_are_checked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check takes 64 MB, and limits per address do not bound how many come from many addresses."""
    running: list[int] = []

    class Slow:
        def verify(self, *_: str) -> bool:
            running.append(1)
            most.append(len(running))
            time.sleep(0.02)
            running.pop()
            return True

    most: list[int] = []
    monkeypatch.setattr("argon2.PasswordHasher", Slow)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: password_matches("stored", "given"), range(8)))
    assert max(most) == 2


def test_addresses_that_clients_claim_are_not_believed(make: Make) -> None:
    """Over a real socket: only a configured proxy may say whose request it forwards."""
    study = make()
    for proxies, expected in (((), [404] * 10 + [429] * 2), (("127.0.0.1",), [404] * 12)):
        study.app.state.site._attempts.clear()
        with http.bind("127.0.0.1", 0) as listener:
            server = http.Server(study.app, ready=lambda: None, connections=99, grace=5, proxies=proxies)
            thread = Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            with httpx.Client(base_url=http.url_of(listener), trust_env=False) as web:
                codes = [
                    web.get(f"/join/{n}", headers={"X-Forwarded-For": f"203.0.113.{n}"}).status_code for n in range(12)
                ]
            server.should_exit = True
            thread.join()
        assert codes == expected


def test_no_number_in_an_address_is_an_error_of_ours(make: Make) -> None:
    person = make().person()
    collector = make(kind="collect").at_task(agree=True)
    for number in (2**31, 2**63, 10**30, -1):
        for path in (f"/task/{number}/1", f"/task/1/{number}", f"/skip/{number}/1", f"/skip/1/{number}"):
            assert person.send(path, {**BEFORE, "reason": "other"}).status_code == 404
            assert collector.send(path, {"narrative": "x", "reason": "other"}).status_code == 404
        assert collector.send(f"/posts/{number}/remove").status_code == 404


OWN: tuple[dict[str, str], ...] = (
    {"origin": "http://testserver"},
    {"origin": "https://study.example.org"},  # the public address, whatever the proxy makes of the host
    {"referer": "http://testserver/admin/login"},
    {"sec-fetch-site": "same-origin", "origin": "null"},
    {},  # no browser
)
FOREIGN = (
    {"origin": "http://evil.example"},
    {"origin": "http://testserver.evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"referer": "http://evil.example/testserver"},
    {"sec-fetch-site": "cross-site", "origin": "http://testserver"},
)


def test_nobody_is_signed_in_by_another_site(make: Make) -> None:
    study = make()
    study.app.state.site.url = "https://study.example.org"
    for headers in (*OWN, *FOREIGN):
        status = 303 if headers in OWN else 403
        client = study.person(join=False).client
        assert client.post("/admin/login", data={"password": study.password}, headers=headers).status_code == status
        assert client.post("/join", data={"invitation": study.tokens[0]}, headers=headers).status_code == status


def test_sessions_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make()
    person, admin = study.person(), study.admin()
    started = time.time()
    for hours, annotator, administrator in ((1, 200, 200), (13, 200, 401), (31 * 24, 401, 303)):
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda at=started + 3600 * hours: at)
            assert person.client.get("/task").status_code == annotator
            assert admin.client.get("/admin").status_code == administrator
    other = study.at_task()
    other.send("/leave")
    assert other.client.get("/task").status_code == 401


def test_the_pages_of_the_administrator_need_the_password(make: Make) -> None:
    study = make()
    annotator = study.person()
    assert "Password" in annotator.open("/admin")
    assert annotator.client.get("/admin").status_code == 303  # an annotator's session opens no other door
    assert annotator.send("/admin/state", {"state": "closed"}).status_code == 401
    assert annotator.send("/admin/login", {"password": "guess"}).status_code == 403
    admin = study.admin()
    assert "Study progress" in admin.open("/admin")
    assert admin.client.get("/task").status_code == 401


def test_a_new_link_or_password_replaces_the_old_one_and_its_sessions(make: Make) -> None:
    study = make()
    person, admin = study.person(0), study.admin()
    admin.open("/admin")
    text = admin.follow("/admin/renew", {"annotator": "1"})
    link = re.search(r"/join/([\w-]+)", text)
    assert link
    assert person.client.get("/task").status_code == 401
    assert person.client.get(f"/join/{study.tokens[0]}").status_code == 404
    assert person.client.get(f"/join/{link[1]}").status_code == 200
    assert admin.send("/admin/renew", {"annotator": "99"}).status_code == 404
    password = replace_password(study.database)
    assert admin.client.get("/admin").status_code == 401
    assert admin.send("/admin/login", {"password": study.password}).status_code == 403
    assert admin.send("/admin/login", {"password": password}).status_code == 303


def test_what_happened_is_in_the_log_and_no_secret_is(make: Make) -> None:
    study = make()
    study.person().judge()
    study.person(join=False).send("/admin/login", {"password": "guess"})
    log = study.rows(sa.select(AUDIT).order_by(AUDIT.c.id))
    assert [row.what for row in log] == ["study made", "signed in", "replied", "replied", "wrong password"]
    assert [row.annotator for row in log] == [None, 1, 1, 1, None]
    assert "guess" not in repr(log)


def test_names_of_other_hosts_are_refused_and_listening_to_everybody_needs_a_public_address(make: Make) -> None:
    study = make()
    client, where = study.person(join=False).client, study.where
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "127.0.0.1:8600"}).status_code == 200
    with pytest.raises(BadInput, match=r"--host 0\.0\.0\.0 needs --url"):
        serve(ServeConfig(study=where, host="0.0.0.0"), print)
    with pytest.raises(BadInput, match=r"is not a URL like https://study\.example\.org"):
        serve(ServeConfig(study=where, url="study.example.org"), print)


def test_a_client_that_leaves_in_mid_form_leaves_no_line_in_the_log(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    study, statuses = make(), list[int]()
    messages = [{"type": "http.request", "body": b"password=", "more_body": True}, {"type": "http.disconnect"}]
    scope = {"type": "http", "method": "POST", "path": "/admin/login", "raw_path": b"/admin/login", "scheme": "http"}
    scope |= {"headers": [(b"host", b"testserver")], "query_string": b"", "server": ("testserver", 80)}

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    asyncio.run(study.app(scope, receive, send))
    assert (statuses, caplog.text) == ([400], "")


def test_on_a_full_disk_a_reply_says_so_and_the_log_holds_one_line_without_texts(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    study = make(kind="collect")
    person = study.at_task(agree=True)
    with study.database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    study.database.engine.dispose()
    sa.event.listen(
        study.database.engine, "connect", lambda raw, _: raw.execute(f"PRAGMA max_page_count={pages}"), named=False
    )
    reply = person.send("/posts", {"text": "my secret " * 1_900})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "60")
    assert "cannot be saved at the moment" in reply.text
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line == "the database is not available: database or disk is full"
    assert "secret" not in caplog.text
