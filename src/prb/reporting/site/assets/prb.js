// What all pages share: data files, the state in the URL, making elements, numbers as text, the top bar.
"use strict";

const prb = (() => {
  // --- data: every file under data/ is one call prb.data(name, value); scripts load from disk where fetch may not ---
  const known = new Map(), waiting = new Map();

  function data(name, value) {
    known.set(name, value);
    if (waiting.has(name)) waiting.get(name).done(value);
  }

  function load(name) {
    if (known.has(name)) return Promise.resolve(known.get(name));
    if (waiting.has(name)) return waiting.get(name).promise;
    const entry = {};
    entry.promise = new Promise((resolve, reject) => {
      entry.done = resolve;
      const script = document.createElement("script");
      script.src = `data/${name.split("/").map(encodeURIComponent).join("/")}.js`;
      script.onload = () => known.has(name) || reject(new Error(`data/${name}.js holds no ${name}`));
      script.onerror = () => { waiting.delete(name); reject(new Error(`data/${name}.js is missing`)); };
      document.head.append(script);
    });
    waiting.set(name, entry);
    return entry.promise;
  }

  // --- the view lives in the hash, so that a link to it works from disk and the back button does what it says ---
  const listeners = [];

  function state() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  }

  function link(changes, page = "") {
    const params = new URLSearchParams(page ? {} : location.hash.slice(1));
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") params.delete(key); else params.set(key, value);
    }
    return `${page}#${params}`;
  }

  function go(changes, { replace = false } = {}) {
    const target = link(changes);
    if (target === (location.hash || "#")) return;
    if (!replace) { location.hash = target; return; }
    try { history.replaceState(null, "", target); } catch { location.replace(target); }
    listeners.forEach((listener) => listener(state()));
  }

  // --- elements: text is text, never markup ---
  const SVG = new Set(["svg", "g", "line", "rect", "circle", "path", "polyline", "polygon", "text", "title", "desc"]);

  // control characters and marks that turn the direction of text are shown by their code, so that nothing hides or moves
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
  const visible = (text) => text.replace(HIDDEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

  function contents(children) {
    const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
    return shown.map((child) => (typeof child === "string" ? visible(child) : child));
  }

  function h(tag, attributes = {}, ...children) {
    const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...contents(children));
    return node;
  }

  function put(where, ...children) {
    const node = typeof where === "string" ? document.getElementById(where) : where;
    node.replaceChildren(...contents(children));
    return node;
  }

  function options(select, choices, value) {
    put(select, choices.map(([key, label]) => h("option", { value: key, selected: key === value }, label)));
    select.value = value;
  }

  // a table whose heads are buttons where `sort` names them: columns [{key, label, title, left, wrap}]
  function table(columns, rows, { caption, sort, onsort } = {}) {
    const head = columns.map((c) => h("th", {
      scope: "col", class: c.left ? "left" : null, title: c.title,
      "aria-sort": sort && sort.key === c.key ? (sort.down ? "descending" : "ascending") : null,
    }, onsort && c.key ? h("button", { type: "button", "data-sort": c.key, onclick: () => onsort(c.key) }, c.label) : c.label));
    const body = rows.map((cells) => h("tr", cells.attributes || {}, cells.map((cell, n) => h(n ? "td" : "th", {
      scope: n ? null : "row", class: columns[n].wrap ? "wrap" : columns[n].left ? "left" : null, "data-label": typeof columns[n].label === "string" ? columns[n].label : null,
    }, cell))));
    return h("table", {}, caption ? h("caption", {}, caption) : null, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  }

  // --- numbers as text; shares are 0..1 in the data and shown in percent ---
  const none = "–";
  const known_ = (x) => x !== null && x !== undefined && Number.isFinite(x);
  const percent = (x, digits = 1) => (known_(x) ? (100 * x).toFixed(digits) : none);
  const points = (x) => (known_(x) ? `${x < 0 ? "−" : "+"}${Math.abs(100 * x).toFixed(1)}` : none);
  const number = (x, digits = 3) => (known_(x) ? String(Number(x.toPrecision(digits))).replace("-", "−") : none);
  const stars = (p) => (!known_(p) ? "" : p < 0.001 ? "***" : p < 0.01 ? "**" : p < 0.05 ? "*" : "");
  const pValue = (p) => (!known_(p) ? none : p < 0.001 ? "< 0.001" : p.toFixed(3));
  const count = (n) => (known_(n) ? n.toLocaleString("en") : none);
  const interval = (e) => (!e || !known_(e.value) ? none
    : known_(e.low) ? `${percent(e.value)} [${percent(e.low)}, ${percent(e.high)}]` : percent(e.value));
  const words = (label) => String(label).replaceAll("_", " ");

  // --- copying: works from disk, where the clipboard API may be refused ---
  async function copy(text, button) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { class: "offstage", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    const label = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = done ? "copied" : "not allowed";
    setTimeout(() => { button.textContent = label; }, 1200);
  }

  // --- the page ---
  function themes() {
    const root = document.documentElement;
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("prb-theme", root.dataset.theme); } catch { /* kept for this page only */ }
    });
  }

  // what had the focus has it again, if the page was drawn anew around it
  function keepFocus() {
    const active = document.activeElement, sort = active && active.dataset && active.dataset.sort;
    const name = sort ? `[data-sort="${CSS.escape(sort)}"]` : active && active.id ? `#${CSS.escape(active.id)}` : null;
    return () => { if (name && !document.contains(active)) document.querySelector(name)?.focus({ preventScroll: true }); };
  }

  function keys() {
    document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
    document.addEventListener("keydown", (event) => {
      const search = document.querySelector("input[type=search]");
      if (event.key === "/" && search && !typing(event)) { event.preventDefault(); search.focus(); }
    });
  }

  const typing = (event) => event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey;

  // the dataset of the view: by `data=` in the hash, else the first; the top bar's links stay on it
  function dataset(site) {
    return site.datasets.find((d) => d.id === state().data) || site.datasets[0];
  }

  function chooser(site) {
    const label = document.getElementById("dataset-choice"), select = document.getElementById("dataset");
    if (site.datasets.length < 2) return;
    label.hidden = false;
    select.addEventListener("change", () => { location.hash = `data=${select.value}`; });
    const show = () => {
      const id = dataset(site).id;
      options(select, site.datasets.map((d) => [d.id, d.label]), id);
      for (const a of document.querySelectorAll(".top nav a, a.brand")) a.href = a.getAttribute("href").split("#")[0] + `#data=${id}`;
    };
    listeners.push(show);
    show();
  }

  // run(draw): draw(site, state) now and whenever the hash changes; what goes wrong is said on the page
  async function run(draw) {
    const main = document.getElementById("main");
    const once = async () => {
      const refocus = keepFocus();
      try {
        await draw(await load("site"), state());
        refocus();
        document.body.dataset.ready = "yes";
      } catch (error) {
        main.prepend(h("p", { class: "note bad", role: "alert" }, `This page cannot be shown: ${error.message}`));
        throw error;
      }
    };
    let last = Promise.resolve();
    const drawn = () => { last = last.catch(() => {}).then(once); return last; };  // one after the other: the latest view stays
    document.querySelector("nav [aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });  // on a phone the bar scrolls
    themes();
    keys();
    chooser(await load("site"));
    listeners.push(drawn);
    addEventListener("hashchange", () => listeners.forEach((listener) => listener(state())));
    await drawn();
  }

  return { data, load, link, go, h, put, options, table, percent, points, number, stars, pValue, count, interval, words, copy, dataset, typing, run };
})();
