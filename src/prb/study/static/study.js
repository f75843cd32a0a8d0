// Everything works without this file. It adds keys, drafts that survive a reload, one click instead of two.
"use strict";
const work = document.getElementById("work");
const rows = work ? [...work.querySelectorAll("fieldset.ask, .ask.written, .line:has([required])")] : [];
const boxes = (row) => [...row.querySelectorAll("input[type=radio]")];
const answered = (row) => Boolean(row.querySelector("input:checked") || row.querySelector("textarea")?.value.trim());
const open = () => rows.filter((row) => !answered(row) && row.querySelector("[required]"));
let at = -1;

// a mark and its message go as soon as there is an answer
function settle(row) {
  row.classList.remove("missing");
  row.querySelector(".wrong")?.remove();
  if (!rows.some((other) => other.classList.contains("missing"))) document.querySelector(".notice.alert")?.remove();
}

function mark(row) {
  row.classList.add("missing");
  if (row.querySelector(".wrong")) return;
  const message = Object.assign(document.createElement("p"), { className: "wrong", textContent: row.querySelector("textarea") ? "Please write something here" : row.matches(".line") ? "Please tick this first" : "Please choose" });
  message.setAttribute("role", "alert");
  row.append(message);
}

function move(to, focus = true) {
  if (!rows.length) return;
  at = Math.max(0, Math.min(rows.length - 1, to));
  rows.forEach((row, n) => row.classList.toggle("now", n === at));
  const target = boxes(rows[at]).find((box) => box.checked) || rows[at].querySelector("input, textarea");
  if (focus) target.focus({ preventScroll: true });
  rows[at].scrollIntoView({ block: "nearest" });
}

function next() {
  const later = rows.findIndex((row, n) => n > at && !answered(row));
  const any = later >= 0 ? later : rows.findIndex((row) => !answered(row));
  if (any >= 0) move(any);
  else work.querySelector("button.main").focus();
}

function pick(key) {
  const here = rows[at] ? [rows[at]] : [];
  for (const row of [...here, ...rows.filter((r) => !answered(r))]) {
    const box = boxes(row).find((b) => b.dataset.key === key);
    if (!box) continue;
    box.checked = true;
    at = rows.indexOf(row);
    settle(row);
    keep();
    next();
    return true;
  }
  const tick = work?.querySelector(`input[type=checkbox][data-key="${key}"]`);
  if (tick) tick.checked = !tick.checked;
  return Boolean(tick);
}

function toggle(id) {
  const box = document.getElementById(id);
  if (!box) return;
  box.open = !box.open;
  if (box.open) { box.scrollIntoView({ block: "nearest" }); (box.querySelector("input[type=radio]") || box.querySelector("summary")).focus(); }
}

document.addEventListener("keydown", (event) => {
  const target = event.target;
  const writing = target.matches("textarea, input[type=password]");
  const form = target.form || work;
  if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); return; }
  if (writing && event.key === "Escape") { target.blur(); return; }
  if (writing || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  const inside = target.closest("#skip");
  if (key === "escape") { document.querySelectorAll(".tools details[open]").forEach((d) => { d.open = false; }); move(at); }
  else if (key === "enter") {
    if (target.matches("button, a, summary")) return;
    event.preventDefault();
    const onward = document.querySelector("[data-go]");
    if (inside) inside.querySelector("form").requestSubmit();
    else if (onward) onward.click();
    else work?.requestSubmit();
  } else if (inside) return;
  else if (key === "arrowdown" || key === "j") { event.preventDefault(); move(at + 1); }
  else if (key === "arrowup" || key === "k") { event.preventDefault(); move(at - 1); }
  else if (key === "u") document.getElementById("undo")?.requestSubmit();
  else if (key === "s") { event.preventDefault(); toggle("skip"); }
  else if (key === "?") toggle("keys");
  else if (pick(key)) event.preventDefault();
});

// a draft lives in this tab only, until the next page shows that it was saved: a submit may fail
const draft = work?.dataset.draft && `draft-${work.dataset.draft}`;
if (draft || document.querySelector("[data-saved]")) {
  Object.keys(sessionStorage).filter((key) => key.startsWith("draft-") && key !== draft).forEach((key) => sessionStorage.removeItem(key));
}
function keep() {
  if (draft) sessionStorage.setItem(draft, JSON.stringify([...new FormData(work)].filter(([name]) => name !== "token")));
}
if (draft) {
  for (const [name, value] of JSON.parse(sessionStorage.getItem(draft) || "[]")) {
    const field = work.elements[name];
    if (field?.type === "checkbox") field.checked = true;
    else if (field && !field.value) field.value = value;
  }
}
if (work) {
  work.noValidate = true;  // every missing answer is marked at once, in the same way by key and by click
  work.addEventListener("input", (event) => {
    keep();
    const row = rows.find((each) => each.contains(event.target));
    if (!row) return;
    if (answered(row)) settle(row);
    if (event.target.type === "radio") { at = rows.indexOf(row); rows.forEach((each) => each.classList.toggle("now", each === row)); }
  });
}

document.addEventListener("submit", (event) => {
  if (event.target === work && open().length) {
    event.preventDefault();
    open().forEach(mark);
    move(rows.indexOf(open()[0]));
    return;
  }
  const button = event.target.querySelector("button");
  if (button.getAttribute("aria-busy") === "true") { event.preventDefault(); return; }
  button.setAttribute("aria-busy", "true");
});
addEventListener("pageshow", () => document.querySelectorAll("[aria-busy]").forEach((b) => b.removeAttribute("aria-busy")));

const missing = rows.findIndex((row) => row.classList.contains("missing"));
if (missing >= 0) move(missing);
else if (rows.length) { at = Math.max(0, rows.findIndex((row) => !answered(row))); rows[at].classList.add("now"); rows[at].querySelector("textarea[required]")?.focus(); }
// a link to one item of a long list opens it
if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.setAttribute("open", "");
