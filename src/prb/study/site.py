"""A study being served: who is asking, genuine forms, and every page that annotators and participants see."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from itsdangerous import BadSignature, URLSafeSerializer
from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy import Connection
from starlette.requests import ClientDisconnect

from prb.hashing import draw
from prb.study.database import (
    ANNOTATOR,
    ASSIGNMENT,
    ITEM,
    POST,
    REPLY,
    STUDY,
    Database,
    delete_data,
    log,
    new_token,
    sha256,
    study_row,
)
from prb.study.judgments import (
    END,
    LETTERS,
    MAX_TEXT,
    SKIP_REASONS,
    CurrentStep,
    check_reply,
    current_step,
    form_fields,
    numbered_reply,
    progress,
    shown_order,
    step_count,
    store_reply,
    too_long,
    undo_reply,
    undone_reply,
)
from prb.types import visible

SIGN_INS_PER_MINUTE = 10
ADMIN_SECONDS = 12 * 3600
BOUND = 16
"""Characters of a hash that bind a session to a link or a password: a new one ends the session."""
NOTICES = {
    "kept": "This item had already been answered, perhaps in another tab. The first answer was kept; use Undo to "
    "change it.",
    "undone": "Taken back. Change what you like and save it again.",
}
MAX_EXTERNAL_ID = 200
OFFERED = 12
"""Questions shown to choose from, those with the fewest takers first."""
MIN_POSTS, MAX_POSTS = 2, 10
"""That a participant gives."""
PAGES, COLLECT = APIRouter(), APIRouter()
"""What annotators and participants do; what only participants of a collection do."""
Form = dict[str, str]
Id = Annotated[int, Path(ge=0, lt=2**31)]
"""The range of an integer column in any database."""


class Refused(Exception):
    """Ends a request with a page that says why."""

    def __init__(self, status: int, title: str, text: str = "") -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text


class Site:
    """A study being served: its database and templates, who is asking, and whether a form is genuine."""

    def __init__(self, database: Database, *, url: str = "") -> None:
        self.database = database
        self.url = url.rstrip("/")
        with database.read() as connection:
            study = study_row(connection)
        self.kind: str = study.kind
        self.secret: str = study.secret
        self.settings: Mapping[str, Any] = study.settings
        self._forms = URLSafeSerializer(self.secret, salt="form")
        self._attempts, self._attempts_since = Counter[str](), time.monotonic()
        self.templates = Environment(
            loader=PackageLoader("prb.study"),
            autoescape=True,
            auto_reload=False,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters["visible"] = visible
        self.templates.globals |= {
            "title": study.title,
            "kind": self.kind,
            "rubric": self.settings.get("rubric", True),
            "practice": self.settings.get("practice", False),
            "contact": self.settings.get("contact", ""),
            "notice": "",
        }

    def page(self, request: Request, name: str, status: int = 200, **fields: Any) -> HTMLResponse:
        token = self._forms.dumps([request.scope.get("session", {}).get("key"), time.time()])
        return HTMLResponse(self.templates.get_template(name).render(token=token, **fields), status)

    def form_age(self, request: Request, form: Form) -> float:
        """Seconds since the page of this form was made; refuses a form that is not from our page."""
        try:
            session, made = self._forms.loads(form.get("token", ""))
        except (BadSignature, UnicodeError):
            session, made = None, 0.0
        if session is None or session != request.session.get("key"):
            raise Refused(403, "This form has expired", "Go back, reload the page and send it again.")
        return max(0.0, time.time() - float(made))

    def limit_sign_ins(self, request: Request) -> None:
        """Passwords and links can be guessed, so attempts are limited per address."""
        if time.monotonic() - self._attempts_since >= 60:
            self._attempts, self._attempts_since = Counter(), time.monotonic()
        address = request.client.host if request.client else ""
        self._attempts[address] += 1
        if self._attempts[address] > SIGN_INS_PER_MINUTE:
            raise Refused(429, "Too many attempts", "Wait a minute, then try again.")

    def check_open(self, connection: Connection) -> None:
        """Refuse annotators while the study is closed."""
        if study_row(connection).state != "open":
            raise Refused(503, "This study is closed", "Everything you saved is kept. Thank you for your work.")

    def sign_in(self, request: Request, annotator: int | None) -> Response:
        """A new session, bound to the link or (`None`: the administrator) the password it was opened with."""
        with self.database.write() as connection:
            if annotator is None:
                bound = sha256(study_row(connection).admin_hash)
                request.session.update(admin=bound[:BOUND], admin_until=time.time() + ADMIN_SECONDS)
            else:
                link = connection.scalar(sa.select(ANNOTATOR.c.token_hash).where(ANNOTATOR.c.id == annotator))
                request.session.update(annotator=annotator, link=(link or "")[:BOUND])
            log(connection, "signed in", annotator=annotator)
        request.session["key"] = new_token()
        return redirect("/admin" if annotator is None else "/task")


async def served_site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


async def read_form(request: Request) -> Form:
    """A posted form from our own pages; anything else is refused before it is read."""
    fetched_from = request.headers.get("sec-fetch-site")
    if fetched_from is not None:
        is_ours = fetched_from in ("same-origin", "none")
    else:  # an older browser, or none
        origin = request.headers.get("origin", request.headers.get("referer"))
        public = urlsplit(request.app.state.site.url).netloc
        is_ours = origin is None or urlsplit(origin).netloc in {request.headers.get("host"), public} - {""}
    if not is_ours:
        raise Refused(403, "This form came from another site")
    try:
        body = (await request.body()).decode()
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=10_000, errors="replace")
    except (ClientDisconnect, ValueError):  # which a text that is not UTF-8 is, too
        raise Refused(400, "This form cannot be read") from None
    # no database text may hold a NUL; browsers send line ends as CRLF
    return {key: value.replace("\0", "\ufffd").replace("\r\n", "\n") for key, value in pairs}


ServedSite = Annotated[Site, Depends(served_site)]
Posted = Annotated[Form, Depends(read_form)]


def own_form(request: Request, site: ServedSite, form: Posted) -> Form:
    """A form that the same session got from us."""
    site.form_age(request, form)
    return form


def signed_in(request: Request, site: ServedSite) -> Any:
    """The row of the annotator whose link opened the session."""
    session = request.session
    with site.database.read() as connection:
        row = connection.execute(sa.select(ANNOTATOR).where(ANNOTATOR.c.id == session.get("annotator", -1))).first()
    if row is None or not row.token_hash or row.token_hash[:BOUND] != session.get("link"):
        raise Refused(401, "Please open your invitation link")
    return row


SignedIn = Annotated[Any, Depends(signed_in)]


def at_work(site: ServedSite, annotator: SignedIn) -> Any:
    """The same, if the study is open and they have given their consent."""
    with site.database.read() as connection:
        site.check_open(connection)
    if site.settings["consent"] and annotator.consented is None:
        raise Refused(403, "Please give your consent first")
    return annotator


OwnForm = Annotated[Form, Depends(own_form)]
AtWork = Annotated[Any, Depends(at_work)]


def redirect(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


# --- joining, leaving, one's own data ---
@PAGES.get("/")
def home(request: Request, site: ServedSite) -> Response:
    if "annotator" in request.session:
        return redirect("/task")
    text = "You received a personal link from whoever runs this study. It signs you in and brings you back to "
    text += "where you left off."
    return site.page(request, "message.html", heading="Please open your invitation link", text=text)


def invited_annotator(request: Request, site: Site, token: str) -> int:
    with site.database.read() as connection:
        annotator = connection.scalar(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.token_hash == sha256(token)))
    if annotator is None:
        site.limit_sign_ins(request)
        raise Refused(404, "This invitation is not known", "Ask whoever sent it for a new link.")
    return int(annotator)


@PAGES.get("/join/{token}")
def welcome(request: Request, site: ServedSite, token: str) -> Response:
    """A page with a button, not a redirect: programs that preview links must not sign anybody in."""
    annotator = invited_annotator(request, site, token)
    with site.database.read() as connection:
        done, total = progress(connection, annotator)
    return site.page(request, "welcome.html", action="/join", fields={"invitation": token}, done=done, total=total)


@PAGES.post("/join")
def join(request: Request, site: ServedSite, form: Posted) -> Response:
    return site.sign_in(request, invited_annotator(request, site, form.get("invitation", "")))


def external_id(request: Request, site: Site, token: str, given: str) -> str:
    """Who a visitor of the public link is elsewhere, if the link is this study's."""
    with site.database.read() as connection:
        public = study_row(connection).public_hash
    if public != sha256(token):
        site.limit_sign_ins(request)
        raise Refused(404, "This link is not known", "Open the study again from where you found it.")
    if not given.strip() or len(given) > MAX_EXTERNAL_ID:
        text = "The link must end with your participant id. Open the study again from where you found it."
        raise Refused(400, "Your participant id is missing", text)
    return given.strip()


@PAGES.get("/take/{token}")
def welcome_public(request: Request, site: ServedSite, token: str) -> Response:
    query = request.query_params
    external = external_id(request, site, token, query.get("PROLIFIC_PID", query.get("id", "")))
    with site.database.read() as connection:
        annotator = connection.scalar(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.external_id == external))
        seat = annotator or connection.scalar(sa.select(ANNOTATOR.c.id).order_by(ANNOTATOR.c.id))
        done, total = progress(connection, seat or 0)
    fields, done = {"public": token, "external": external}, done if annotator else 0
    return site.page(request, "welcome.html", action="/take", fields=fields, done=done, total=total)


@PAGES.post("/take")
def take(request: Request, site: ServedSite, form: Posted) -> Response:
    """Sign in under an external id; a new one gets the next free place."""
    external = external_id(request, site, form.get("public", ""), form.get("external", ""))
    known = sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.external_id == external)
    free = sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.external_id.is_(None), ANNOTATOR.c.token_hash.is_not(None))
    with site.database.write() as connection:
        connection.execute(sa.select(STUDY.c.id).with_for_update())  # two newcomers must not get the same place
        annotator = connection.scalar(known)
        if annotator is None:
            annotator = connection.scalar(free.order_by(ANNOTATOR.c.id).limit(1))
            if annotator is None:
                raise Refused(409, "This study is full", "All places are taken. Thank you for your interest.")
            connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator).values(external_id=external))
            log(connection, "place taken", annotator=annotator)
    return site.sign_in(request, annotator)


@PAGES.post("/leave")
def leave(request: Request, _: SignedIn, __: OwnForm) -> Response:
    request.session.pop("annotator")
    return redirect("/")


@PAGES.get("/data")
def data(request: Request, site: ServedSite, annotator: SignedIn) -> Response:
    replies = sa.select(sa.func.count()).select_from(REPLY.join(ASSIGNMENT))
    with site.database.read() as connection:
        stored: dict[str, Any] = {
            "replies": connection.scalar(replies.where(ASSIGNMENT.c.annotator == annotator.id)),
            "posts": posts_of(connection, annotator.id),
            "asked": connection.scalars(sa.select(ITEM.c.content).where(ITEM.c.owner == annotator.id)).all(),
        }
    consent = site.settings["consent"]
    return site.page(request, "data.html", **stored, pseudonym=annotator.pseudonym, consent=consent)


@PAGES.post("/data/delete")
def delete(request: Request, site: ServedSite, annotator: SignedIn, form: OwnForm) -> Response:
    if form.get("sure") != "yes":
        raise Refused(422, "Tick the box first", "Nothing was deleted. It cannot be undone, so go back and confirm it.")
    delete_data(site.database, annotator.id)
    request.session.clear()
    text = "Everything you gave has been removed, and your link no longer works. Thank you for your time."
    return site.page(request, "message.html", heading="Your data is deleted", text=text)


@PAGES.post("/consent")
def consent(site: ServedSite, annotator: SignedIn, form: OwnForm) -> Response:
    if form.get("agree") != "yes":
        text = "To take part, go back and tick the box. If you prefer not to, close this page: nothing is stored."
        raise Refused(422, "Do you want to take part?", text)
    with site.database.write() as connection:
        connection.execute(sa.update(ANNOTATOR).where(ANNOTATOR.c.id == annotator.id).values(consented=time.time()))
        log(connection, "consented", annotator=annotator.id)
    return redirect("/task")


# --- the steps of an item ---
@PAGES.get("/task")
def task(request: Request, site: ServedSite, annotator: SignedIn, notice: str = "") -> Response:
    with site.database.read() as connection:
        site.check_open(connection)
        if site.settings["consent"] and annotator.consented is None:
            return site.page(request, "consent.html", text=site.settings["consent"])
        if site.kind == "collect" and len(posts_of(connection, annotator.id)) < MIN_POSTS:
            return redirect("/posts")
        now = current_step(connection, annotator.id, site.kind)
        done, total = progress(connection, annotator.id)
        if now is None and site.kind == "collect" and not total:
            return redirect("/questions")
        if now is None:
            shown = {"done": done, "total": total, "completion": site.settings.get("completion", "")}
            return site.page(request, "finished.html", place=END, notice=NOTICES.get(notice, ""), **shown)
        values = undone_reply(connection, annotator.id, now) if notice == "undone" else {}
    return item_page(request, site, annotator.pseudonym, now, values, notice=notice)


def item_page(
    request: Request,
    site: Site,
    pseudonym: str,
    now: CurrentStep,
    values: Mapping[str, Any],
    *,
    notice: str = "",
    wrong: Mapping[str, str] | None = None,
) -> Response:
    """The form of one step. Fields named after an answer's letter stand below it, the others at the end."""
    fields, answers = form_fields(site.kind, now.step, now.content), now.content["answers"]
    if site.kind == "validate":
        shown = answers[::-1] if now.flipped else answers
    else:
        shown = [answers[n] for n in shown_order(pseudonym, now.content)] if now.step == 2 else []
    texts = dict(zip(LETTERS, shown, strict=False))
    return site.page(
        request,
        f"{site.kind}.html",
        422 if wrong else 200,
        now=now,
        item=now.content,
        texts=texts,
        rate={letter: [f for f in fields if f.name.startswith(f"{letter}-")] for letter in texts},
        ask=[f for f in fields if "-" not in f.name],
        values=values,
        wrong=wrong or {},
        skips=SKIP_REASONS,
        notice=NOTICES.get(notice, ""),
    )


@PAGES.post("/task/{assignment}/{step}")
def reply(request: Request, site: ServedSite, annotator: AtWork, assignment: Id, step: Id, form: Posted) -> Response:
    with site.database.read() as connection:
        items = sa.select(ITEM.c.content).join_from(ASSIGNMENT, ITEM)
        own = items.where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator.id)
        content = connection.scalar(own)
        now = current_step(connection, annotator.id, site.kind)
    if content is None:
        raise Refused(404, "There is nothing here")
    given, wrong = check_reply(form_fields(site.kind, step, content), form)
    if not wrong:
        saved = numbered_reply(given, annotator.pseudonym, content) if site.kind == "collect" else given
        last = step >= step_count(site.kind, content)
        return save(request, site, annotator.id, (assignment, step), saved, form, last=last)
    if now is None or (now.assignment, now.step) != (assignment, step):
        return redirect("/task?notice=kept")
    return item_page(request, site, annotator.pseudonym, now, form, wrong=wrong)


@PAGES.post("/skip/{assignment}/{step}")
def skip(request: Request, site: ServedSite, annotator: AtWork, assignment: Id, step: Id, form: Posted) -> Response:
    reason = form.get("reason", "")
    if reason not in SKIP_REASONS:
        raise Refused(422, "Why skip it?", "Go back and choose a reason.")
    return save(request, site, annotator.id, (assignment, step), {"skip": reason}, form, last=True)


def save(
    request: Request,
    site: Site,
    annotator: int,
    place: tuple[int, int],
    reply: Mapping[str, Any],
    form: Form,
    *,
    last: bool,
) -> Response:
    """Store a reply to (assignment, step) and go to the next one."""
    seconds = site.form_age(request, form)
    with site.database.write() as connection:
        stored = store_reply(connection, annotator, *place, reply, last=last, seconds=seconds)
    if stored == "missing":
        raise Refused(404, "There is nothing here")
    return redirect("/task?notice=kept" if stored == "kept" else "/task")


@PAGES.post("/undo")
def undo(site: ServedSite, annotator: AtWork, form: OwnForm) -> Response:
    with site.database.write() as connection:
        now = current_step(connection, annotator.id, site.kind)
        if form.get("from") != (now.place if now else END):  # a second click, or another tab
            return redirect("/task")
        undo_reply(connection, annotator.id)
    return redirect("/task?notice=undone")


# --- collecting: posts and questions ---
def posts_of(connection: Connection, annotator: int) -> list[Any]:
    return list(connection.execute(sa.select(POST).where(POST.c.annotator == annotator).order_by(POST.c.id)).all())


def lock_annotator(connection: Connection, annotator: int) -> None:
    """A double click waits for the first one and then sees what it did."""
    connection.execute(sa.select(ANNOTATOR.c.id).where(ANNOTATOR.c.id == annotator).with_for_update())


@COLLECT.get("/posts")
def posts(request: Request, site: ServedSite, annotator: AtWork) -> Response:
    with site.database.read() as connection:
        given = posts_of(connection, annotator.id)
    return site.page(request, "posts.html", posts=given, least=MIN_POSTS, most=MAX_POSTS)


@COLLECT.post("/posts")
def add_post(site: ServedSite, annotator: AtWork, form: OwnForm) -> Response:
    text = form.get("text", "").strip()
    wrong = too_long(text) if len(text) > MAX_TEXT else ""
    if wrong or not text:
        raise Refused(422, "Go back and change your post", wrong or "Write or paste something first.")
    with site.database.write() as connection:
        lock_annotator(connection, annotator.id)
        posts = posts_of(connection, annotator.id)
        if len(posts) >= MAX_POSTS:
            raise Refused(422, f"{MAX_POSTS} posts are enough", "Go back and remove one to add another.")
        if all(post.text != text for post in posts):  # a second click adds nothing
            row = {"annotator": annotator.id, "digest": sha256(text), "text": text, "at": time.time()}
            connection.execute(sa.insert(POST).values(**row))
            log(connection, "post added", annotator=annotator.id)
    return redirect("/posts")


@COLLECT.post("/posts/{post}/remove")
def remove_post(site: ServedSite, annotator: AtWork, post: Id, _: OwnForm) -> Response:
    with site.database.write() as connection:
        connection.execute(sa.delete(POST).where(POST.c.id == post, POST.c.annotator == annotator.id))
        log(connection, "post removed", annotator=annotator.id)
    return redirect("/posts")


def offered_questions(connection: Connection, annotator: int) -> list[Any]:
    """Questions this participant has not taken, the least taken first; ties in an order that differs between them."""
    taken = sa.select(ASSIGNMENT.c.item).where(ASSIGNMENT.c.annotator == annotator)
    takers = sa.select(sa.func.count()).where(ASSIGNMENT.c.item == ITEM.c.id).scalar_subquery().label("takers")
    free = sa.select(ITEM.c.id, ITEM.c.content, takers).where(ITEM.c.owner.is_(None), ITEM.c.id.not_in(taken))
    return sorted(connection.execute(free).all(), key=lambda r: (r.takers, draw(0, "offer", annotator, r.id)))


@COLLECT.get("/questions")
def questions(request: Request, site: ServedSite, annotator: AtWork) -> Response:
    with site.database.read() as connection:
        offered, (_, taken) = offered_questions(connection, annotator.id), progress(connection, annotator.id)
    return site.page(request, "questions.html", offered=offered[:OFFERED], taken=taken)


@COLLECT.post("/questions")
def take_questions(site: ServedSite, annotator: AtWork, form: OwnForm) -> Response:
    """A question of one's own has no answers, so only step 1 is asked."""
    own = form.get("own", "").strip()
    if len(own) > MAX_TEXT:
        raise Refused(422, "Go back and shorten your question", too_long(own))
    with site.database.write() as connection:
        lock_annotator(connection, annotator.id)
        items = [row.id for row in offered_questions(connection, annotator.id) if f"pick-{row.id}" in form]
        if own:
            key, content = f"own-{secrets.token_hex(8)}", {"question": own, "answers": [], "category": ""}
            row = {"key": key, "cluster": key, "is_check": False, "owner": annotator.id, "content": content}
            items.append(connection.scalar(sa.insert(ITEM).values(**row).returning(ITEM.c.id)))
        if not items:
            raise Refused(422, "Which question?", "Go back and pick at least one, or ask one of your own.")
        _, taken = progress(connection, annotator.id)
        rows = [
            {"annotator": annotator.id, "item": item, "position": taken + n, "flipped": False}
            for n, item in enumerate(items)
        ]
        connection.execute(sa.insert(ASSIGNMENT), rows)
        log(connection, "questions taken", annotator=annotator.id, items=items)
    return redirect("/task")
