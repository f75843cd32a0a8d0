// A user's history: which posts the retrieval picked for a question, which bearing ones it missed, past choices.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, interval, count, words } = prb;
  const SHOWS = { "": "all pairs", missed: "a bearing post was missed", none: "no bearing post was picked" };

  // --- which pairs ---
  function select(page) {
    const { state, pairs, names, d, view } = page, q = (state.q || "").toLowerCase();
    const test = (i) => !d.bearing || !view || !state.show || (d.bearing[i].length > 0 && (state.show === "none" ? view.found[i] === 0 : view.found[i] < d.bearing[i].length));
    const user = state.user ? names.names.indexOf(state.user) : null;
    return pairs.ids.map((_, i) => i).filter((i) => (user === null || pairs.users[i] === user) && test(i)
      && (!q || [pairs.ids[i], names.names[pairs.users[i]], pairs.heads ? pairs.heads[i] : ""].some((text) => text.toLowerCase().includes(q))));
  }

  function row(page, i, chosen) {
    const { pairs, names, d, view } = page;
    const says = !view ? "" : d.bearing && d.bearing[i].length ? `${view.found[i]} of ${d.bearing[i].length} bearing posts` : `${view.picked[i]} posts picked`;
    return h("a", { href: link({ pair: pairs.ids[i] }), "aria-current": chosen ? "true" : null, class: "row" }, h("span", { class: "head", dir: "auto" }, pairs.heads ? pairs.heads[i] : pairs.ids[i]),
      h("span", { class: "sub" }, h("span", {}, names.names[pairs.users[i]]), h("span", { class: d.bearing && view && view.found[i] < d.bearing[i].length ? "missing" : null }, says)));
  }

  // --- one history ---
  const KINDS = { hit: ["picked, bears on it", "post seen"], spare: ["picked", "post spare"], missed: ["missed", "post missed"], rest: [null, "post"] };

  function post(p, kind) {
    const [badge, style] = KINDS[kind];
    return h("li", { class: style }, badge ? h("span", { class: "badge" }, badge) : null, h("span", { class: "quiet" }, ` ${words(p[1])} `), h("span", { class: "text", dir: "auto" }, p[2]));
  }

  function posts(page, pair, chunk, i) {
    const { d, view, reader, state } = page, own = pair.said.profile && pair.said.profile.models[reader];
    const picked = new Set(own ? pair.said.profile.views[own.w || 0].ids : []), bearing = d.bearing ? new Set(d.bearing[i]) : null;
    const all = (pair.profile || []).map((n) => chunk.posts[n]), kind = (p) => (picked.has(p[0]) ? (bearing && !bearing.has(p[0]) ? "spare" : bearing ? "hit" : "spare") : bearing && bearing.has(p[0]) ? "missed" : "rest");
    const q = (state.text || "").toLowerCase(), fits = (text) => !q || text.toLowerCase().includes(q);
    const marked = all.map((p) => [p, kind(p)]), shown = marked.filter(([p]) => fits(p[2]) || fits(p[1])), short = !q && state.posts !== "all" && marked.some(([, k]) => k !== "rest") && marked.some(([, k]) => k === "rest") && all.length > 8;
    const listed = short ? shown.filter(([, k]) => k !== "rest") : shown;
    const missed = marked.filter(([, k]) => k === "missed").length;
    const said = [`${count(picked.size)} of ${count(all.length)} posts were picked${view ? ` (${view.ranker}, up to ${view.k})` : ""}`, bearing && bearing.size ? `${count(bearing.size - missed)} of ${count(bearing.size)} that bear on the question are among them` : null].filter(Boolean);
    return h("section", { class: "card", id: "posts" }, h("h3", {}, "Posts"), h("p", {}, `${said.join("; ")}.`), bearing ? null : h("p", { class: "soft" }, "The dataset does not say which posts bear on a question (field bearing_posts), so nothing can be called missed."),
      all.length ? h("ol", { class: "posts" }, listed.map(([p, k]) => post(p, k))) : h("p", { class: "soft" }, `Ids of the posts picked: ${[...picked].join(", ") || "none"}`),
      listed.length || !all.length ? null : h("p", { class: "soft" }, "No post has these words."),
      short ? h("button", { type: "button", id: "all-posts", onclick: () => go({ posts: "all" }) }, `show all ${count(all.length)} posts`) : null);
  }

  function choices(page, pair) {
    const q = (page.state.text || "").toLowerCase(), all = pair.choices || [], shown = all.filter((c) => !q || c.some((text) => text.toLowerCase().includes(q)));
    if (!all.length) return null;
    return h("section", { class: "card", id: "choices" }, h("h3", {}, `Past choices, oldest first: ${count(shown.length)}${q ? ` of ${count(all.length)}` : ""}`),
      h("ol", { class: "posts" }, shown.map(([question, chosen, rejected]) => h("li", { class: "post" }, h("b", {}, question), h("p", {}, h("span", { class: "badge" }, "preferred"), " ", h("span", { class: "text", dir: "auto" }, chosen)), h("p", { class: "soft" }, h("span", { class: "badge" }, "rejected"), " ", h("span", { class: "text", dir: "auto" }, rejected))))));
  }

  function detail(page, i, chunk) {
    const { pairs, names, found, data, reader, state } = page, pair = chunk.pairs[i % pairs.chunk], at = found.indexOf(i), user = names.names[pairs.users[i]];
    const step = (n, label) => h("a", { href: n >= 0 && n < found.length ? link({ pair: pairs.ids[found[n]] }) : null, class: "step", "aria-disabled": n < 0 || n >= found.length ? "true" : null }, label);
    const search = h("input", { type: "search", id: "text", placeholder: "words in posts and choices", "aria-label": "Search this history", oninput: () => go({ text: search.value, pair: pairs.ids[i] }, { replace: true }) });
    search.value = state.text || "";
    return [h("p", { class: "crumbs" }, h("a", { href: link({ pair: null }), class: "back" }, "← list"), step(at - 1, "k previous"), step(at + 1, "j next"), h("span", { class: "soft" }, at >= 0 ? `${at + 1} of ${count(found.length)}` : "not in this list")),
      h("h2", { id: "question", dir: "auto" }, pair.question || pairs.ids[i]),
      h("p", { class: "soft" }, `${pairs.ids[i]} · `, h("a", { href: link({ data: data.id, user, model: data.models[reader]?.name }, "users.html") }, user), " · ", h("a", { href: link({ data: data.id, pair: pairs.ids[i], model: data.models[reader]?.name, condition: "profile" }, "pairs.html") }, "answers and scores")),
      pairs.note ? h("p", { class: "note" }, pairs.note) : null,
      pair.profile ? h("p", {}, search) : null, posts(page, pair, chunk, i), choices(page, pair)];
  }

  // --- over all pairs ---
  function overall(page) {
    const { d, view, reader, data } = page;
    if (!view || !d.bearing) return null;
    const accuracy = view.accuracy[view.models.indexOf(reader)], some = d.bearing.filter((ids) => ids.length).length;
    return h("section", { class: "card", id: "overall" }, h("p", {}, h("b", {}, `${view.ranker} picked ${percent(view.recall)} % of the posts that bear on a question`), ` (mean over ${count(some)} pairs, up to ${view.k} posts). Accuracy of ${data.models[reader].name} under profile, where the retrieval found:`),
      charts.bars(Object.entries(accuracy).map(([part, e]) => ({ name: part.replace(" found", ""), lanes: [{ ...e, kind: "profile" }], text: `${interval(e)} · n ${count(e.n)}` })), { lines: [{ at: 0.5, kind: "half" }] }));
  }

  let frame = null, page = null;

  function build() {
    const made = {}, pick = (id) => (made[id] = h("select", { id, onchange: () => go({ [id]: made[id].value, ...(id === "model" ? {} : { pair: null }) }) }));
    const search = (made.q = h("input", { type: "search", id: "q", placeholder: "question, user or id", oninput: () => go({ q: search.value, pair: null }, { replace: true }) }));
    const status = h("p", { class: "soft", role: "status" }), right = h("article", { class: "detail" }), top = h("div", {}), list = explore.list((i, chosen) => row(page, i, chosen));
    made.clear = h("a", { href: "#" }, "all users");
    put("histories", top, h("div", { class: "controls" }, h("label", {}, "Retrieval of", pick("model")), h("label", { id: "show-label" }, "Show", pick("show")), h("label", {}, "Search", search), made.clear), h("div", { class: "explorer" }, h("div", { class: "side" }, status, list.node), right));
    return { made, status, right, list, top };
  }

  document.addEventListener("keydown", (event) => {
    if (prb.typing(event) || !page || !["j", "k"].includes(event.key)) return;
    const next = page.found[page.found.indexOf(page.i) + (event.key === "j" ? 1 : -1)];
    if (next !== undefined) { event.preventDefault(); go({ pair: page.pairs.ids[next] }, { replace: true }); }
  });

  prb.run(async (site, state) => {
    const data = prb.dataset(site), [d, pairs, names] = await Promise.all(["histories", "pairs", "people"].map((name) => prb.load(`${data.id}/${name}`)));
    const readers = d.views.flatMap((v) => v.models).sort((a, b) => a - b), reader = readers.find((n) => data.models[n].name === state.model) ?? readers.find((n) => !data.models[n].blind) ?? readers[0];
    const view = d.views.find((v) => v.models.includes(reader));
    page = { data, state, d, pairs, names, reader, view };
    page.found = select(page);
    const wanted = state.pair === undefined ? -1 : pairs.ids.indexOf(state.pair), wide = matchMedia("(min-width: 60rem)").matches;
    const missed = d.bearing && view ? page.found.find((n) => view.found[n] < d.bearing[n].length) : undefined;
    const i = (page.i = wanted >= 0 ? wanted : wide && state.pair === undefined ? (missed ?? page.found[0] ?? -1) : -1);
    frame = frame || build();
    const { made } = frame;
    options(made.model, readers.length ? readers.map((n) => [data.models[n].name, `${data.models[n].name} (${d.views.find((v) => v.models.includes(n)).ranker}, k ${d.views.find((v) => v.models.includes(n)).k})`]) : [["", "no model was shown posts"]], reader === undefined ? "" : data.models[reader].name);
    options(made.show, Object.entries(SHOWS), state.show || "");
    document.getElementById("show-label").hidden = !d.bearing;
    made.clear.hidden = !state.user;
    made.clear.href = link({ user: null });
    if (made.q.value !== (state.q || "")) made.q.value = state.q || "";
    put(frame.top, h("p", { class: "soft" }, data.label), overall(page));
    put(frame.status, `${count(page.found.length)} of ${count(pairs.ids.length)} pairs`, state.user ? ` of ${state.user}` : "");
    document.querySelector(".explorer").classList.toggle("open", wanted >= 0);
    frame.list.show(page.found, i);
    if (i < 0) { put(frame.right, h("p", { class: "soft" }, state.pair === undefined ? "Choose a pair." : `There is no pair ${state.pair}.`)); return; }
    const chunk = await prb.load(`${data.id}/pairs-${Math.floor(i / pairs.chunk)}`), caret = document.activeElement?.id === "text" ? document.activeElement.selectionStart : null;
    if (page.i !== i) return;
    put(frame.right, detail(page, i, chunk));
    if (caret !== null) { const box = document.getElementById("text"); box.focus({ preventScroll: true }); box.setSelectionRange(caret, caret); }
  });
})();
