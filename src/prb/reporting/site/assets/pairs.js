// The pair explorer: a list on the left, one pair with all outcomes on the right.
"use strict";

(() => {
  const { h, put, options, table, go, link, number, count, words } = prb;
  const MARK = { 1: ["✓", "right"], 0: ["✗", "wrong"], h: ["½", "tie"], "-": ["–", "failed"] };
  const mark = (credit) => h("span", { class: `mark m${credit === "-" ? "x" : credit}`, title: MARK[credit][1] }, MARK[credit][0]);

  // --- the list ---
  function row(page, i, chosen) {
    const { data, pairs, users, condition, models, lists } = page;
    const columns = models.map((n) => lists[condition].credit[n]).filter(Boolean), right = columns.filter((c) => c[i] === "1").length;
    return h("a", { href: link({ pair: pairs.ids[i] }), "aria-current": chosen ? "true" : null, class: "row" },
      h("span", { class: "head", dir: "auto" }, pairs.heads ? pairs.heads[i] : pairs.ids[i]),
      h("span", { class: "sub" }, h("span", {}, pairs.heads ? `${pairs.ids[i]} · ` : "", users.names[pairs.users[i]], pairs.tier[i] >= 0 ? ` · ${words(pairs.tiers[pairs.tier[i]])}` : ""),
        h("span", { class: "squares", role: "img", "aria-label": `${right} of ${columns.length} models right` }, columns.map((c) => h("i", { class: `m${c[i] === "-" ? "x" : c[i]}` })))));
  }

  // --- one pair ---
  const WAYS = { rendered: "Markdown", differences: "differences", raw: "raw" };

  function answers(pair, state) {
    const both = pair.chosen + pair.rejected, way = WAYS[state.text] ? state.text : texts.isMarkdown(both) ? "rendered" : "differences";
    const found = way === "differences" ? texts.words(pair.chosen, pair.rejected) : null;
    const body = (side, plain) => texts.clamped(plain.length, { class: way === "rendered" ? "rendered" : "text" },
      found ? found[side].map(([piece, differs]) => (differs ? h("mark", {}, piece) : piece)) : way === "rendered" ? texts.markdown(plain) : plain);
    const how = !found ? "" : found.how === "order" ? `${Math.round(100 * found.shared)} % of the words are the same and in the same order; the others are marked.`
      : "The texts have little in common: words that are only in one answer are underlined.";
    const [right, wrong] = pair.rubric.length ? ["follows this user's rubric", "breaks it"] : ["this user prefers it", "this user does not"];
    return [h("div", { class: found && found.how === "words" ? "two thin" : "two" },
      h("section", { class: "answer chosen" }, h("h3", {}, "Chosen ", h("span", { class: "badge" }, right)), body("left", pair.chosen)),
      h("section", { class: "answer rejected" }, h("h3", {}, "Rejected ", h("span", { class: "badge" }, wrong)), body("right", pair.rejected))),
    h("p", { class: "ways soft", role: "group", "aria-label": "How answers are shown" }, Object.entries(WAYS).map(([key, label]) => h("button", { type: "button", "data-way": key, "aria-pressed": String(key === way), onclick: () => go({ text: key }, { replace: true }) }, label)), how)];
  }

  // what the models say of this pair, in sight however long the answers are
  function standing(page, i) {
    const { data, condition, lists, models } = page, credit = lists[condition].credit, asked = models.filter((n) => credit[n]);
    const right = asked.filter((n) => credit[n][i] === "1").length;
    const shown = asked.length > 8 ? null : asked.map((n) => h("span", {}, mark(credit[n][i]), ` ${data.models[n].name}`));
    return h("p", { class: "standing" }, h("b", {}, `${right} of ${asked.length} right, ${condition}`), shown);
  }

  // earlier turns, further answers and past choices: only where the dataset has them
  function turns(pair) {
    return (pair.context || []).map(([role, text]) => h("p", { class: "soft turn" }, h("b", {}, `${role}: `), h("span", { class: "text", dir: "auto" }, text)));
  }

  function others(pair) {
    if (!pair.others) return null;
    return h("div", { class: "two" }, pair.others.map(([right, text]) => h("section", { class: right ? "answer chosen" : "answer rejected" },
      h("h3", {}, right ? "Also right" : "Also wrong"), texts.clamped(text.length, { class: "text" }, text))));
  }

  function choices(pair) {
    if (!pair.choices) return null;
    return h("details", { class: "card", id: "choices" }, h("summary", {}, `Past choices of the user, oldest first: ${pair.choices.length}`),
      h("ol", { class: "posts" }, pair.choices.map(([question, chosen, rejected]) => h("li", { class: "post" }, h("b", {}, question),
        h("p", {}, h("span", { class: "badge" }, "preferred"), " ", h("span", { class: "text", dir: "auto" }, chosen)),
        h("p", { class: "soft" }, h("span", { class: "badge" }, "rejected"), " ", h("span", { class: "text", dir: "auto" }, rejected))))));
  }

  function rubric(pair) {
    if (!pair.rubric.length && !pair.narrative) return null;
    return h("details", { class: "card", id: "rubric" }, h("summary", {}, "Rubric: what this user wants (hidden from models, except under oracle)"),
      h("ul", {}, pair.rubric.map(([aspect, evidence, reason]) => h("li", {}, h("b", {}, aspect), reason ? ` ${reason}` : "", evidence ? h("span", { class: "soft" }, ` “${evidence}”`) : null))),
      pair.narrative ? h("p", { class: "soft" }, pair.narrative) : null);
  }

  function post(p, seen) {
    return h("li", { class: seen ? "post seen" : "post" }, seen ? h("span", { class: "badge" }, "shown") : null, h("span", { class: "quiet" }, ` ${words(p[1])} `), h("span", { class: "text", dir: "auto" }, p[2]));
  }

  function posts(page, pair, chunk, reader) {
    const { condition, state, data } = page, said = pair.said[condition], own = said && said.models[reader];
    const view = own ? said.views[own.w || 0] : { ids: [], plan: [] };
    const shown = new Set(view.ids), lent = view.lent ? view.lent.map((n) => chunk.posts[n]) : null;
    const all = (pair.profile || []).map((n) => chunk.posts[n]), mine = lent ? new Set() : shown;
    const few = all.filter((p) => mine.has(p[0])), short = state.posts !== "all" && (lent ? true : few.length > 0) && all.length > few.length;
    const whom = `${data.models[reader].name} under ${condition}`;
    return h("section", { class: "card" }, h("h3", {}, "The user's posts"),
      view.plan.length ? [h("p", {}, `Inferred from the posts and shown to ${whom}:`), h("ul", {}, view.plan.map((line) => h("li", {}, line)))] : null,
      lent ? [h("p", {}, `${whom} was shown ${count(view.ids.length)} ${view.ids.length === 1 ? "post" : "posts"} of another user${view.donor ? `, ${view.donor}:` : "."}`), lent.length ? h("ol", { class: "posts" }, lent.map((p) => post(p, true))) : null]
        : h("p", { class: "soft" }, shown.size ? `${shown.size} of ${all.length || "?"} posts were shown to ${whom}; they are marked.` : `${whom} was shown no posts.`),
      all.length ? [lent ? h("p", { class: "soft" }, `The user's own ${all.length} posts, not shown:`) : null,
        h("ol", { class: "posts" }, (short && !lent ? few : short ? [] : all).map((p) => post(p, mine.has(p[0])))),
        short ? h("button", { type: "button", onclick: () => go({ posts: "all" }) }, `show all ${all.length} posts`) : null]
        : shown.size ? h("p", { class: "soft" }, `Ids of the posts shown: ${view.ids.join(", ")}`) : null);
  }

  function scores(page, pair, i) {
    const { data, condition, lists } = page;
    const heads = [{ label: "model", left: true }, ...data.conditions.map((c) => ({ label: c })), { label: `${condition}: chosen, rejected`, wrap: true }];
    const rows = data.models.map((model, n) => {
      const cells = data.conditions.map((c) => {
        const own = pair.said[c] && pair.said[c].models[n];
        if (!own) return "";
        const letter = lists[c] ? lists[c].credit[n][i] : own.f ? "-" : own.m > 0 ? "1" : own.m < 0 ? "0" : "h";
        return h("span", {}, mark(letter), " ", own.f ? h("span", { class: "offstage" }, own.f.split(": ")[0]) : signed(own.m || 0));
      });
      const own = (pair.said[condition] && pair.said[condition].models[n]) || {};
      const tail = own.v ? verdicts(own.v) : [0, 1].map((n) => number((own.s || [])[n], 4));
      const made = [h("a", { href: link({ model: model.name }) }, model.name), ...cells, tail.join(", ")];
      if (model.name === page.state.model) made.attributes = { class: "picked" };
      return made;
    });
    const reasons = new Map();  // why a cell is empty, and for whom
    for (const c of data.conditions) data.models.forEach((model, n) => { const f = pair.said[c]?.models[n]?.f; if (f) { const key = `${c}: ${f.split(": ")[0]}`; reasons.set(key, [...(reasons.get(key) || []), model.name]); } });
    return h("section", { class: "card" }, h("h3", {}, "Scores of the models"),
      h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Scores" }, table(heads, rows)), h("p", { class: "soft" }, "Margin: score of the chosen answer minus score of the rejected one, on each model's own scale; for comparers credit − ½. ✓ right, ✗ wrong, ½ tie, – without an outcome."), [...reasons].map(([why, who]) => h("p", { class: "soft" }, `– ${why} (${who.join(", ")}).`)));
  }

  const signed = (m) => (m > 0 ? `+${number(m)}` : number(m));
  const SAYS = { first: ["chosen", "rejected"], second: ["rejected", "chosen"], tie: ["tie", "tie"] };
  const verdicts = (v) => [0, 1].filter((order) => v[order]).map((order) => `${["chosen", "rejected"][order]} first: ${SAYS[v[order]][order]}`);

  function spoken(page, pair) {
    const { data, condition, state } = page, said = pair.said[condition];
    if (!said) return null;
    const found = data.models.map((model, n) => ({ model, own: said.models[n] })).filter(({ own }) => own && (own.t || own.f));
    if (!found.length) return null;
    return h("section", { class: "card" }, h("h3", {}, `Replies of the models, ${condition}`), found.map(({ model, own }) => h("details", { open: model.name === state.model },
      h("summary", {}, model.name, own.f ? h("span", { class: "soft" }, ` failed: ${own.f}`) : null),
      (own.t || []).map((text, n) => h("blockquote", {}, texts.clamped(text.length, { class: "text" }, (own.t.length > 1 ? `${n + 1}. ` : "") + text))))));
  }

  function detail(page, i, chunk) {
    const { data, pairs, users, found, state } = page, pair = chunk.pairs[i % pairs.chunk];
    const at = found.indexOf(i), twin = pairs.twin[i], reader = page.reader;
    const step = (n, label) => h("a", { href: n >= 0 && n < found.length ? link({ pair: pairs.ids[found[n]] }) : null, class: "step", "aria-disabled": n < 0 || n >= found.length ? "true" : null }, label);
    return [
      h("p", { class: "crumbs" }, h("a", { href: link({ pair: null }), class: "back" }, "← list"), step(at - 1, "k previous"), step(at + 1, "j next"),
        h("span", { class: "soft" }, at >= 0 ? `${at + 1} of ${count(found.length)}` : "not in this list")),
      turns(pair),
      h("h2", { id: "question", tabindex: -1, dir: "auto" }, pair.question || pairs.ids[i]),
      h("p", { class: "soft" }, `${pairs.ids[i]} · `, h("a", { href: link({ user: users.names[pairs.users[i]], pair: pairs.ids[i] }) }, users.names[pairs.users[i]]),
        pairs.category[i] >= 0 ? ` · ${words(pairs.categories[pairs.category[i]])}` : "", pairs.tier[i] >= 0 ? ` · ${words(pairs.tiers[pairs.tier[i]])}` : "",
        twin >= 0 ? [" · ", h("a", { href: link({ pair: pairs.ids[twin] }) }, "same question, other user")] : null),
      pairs.note ? h("p", { class: "note" }, pairs.note) : null,
      standing(page, i), pair.question ? [answers(pair, state), others(pair)] : null,
      scores(page, pair, i), spoken(page, pair), pair.question ? rubric(pair) : null, choices(pair), posts(page, pair, chunk, reader)];
  }

  // --- the page ---
  function controls() {
    const made = {};
    // another condition or model shows the same pair; another filter starts a new list
    const select = (id, { stay = false } = {}) => (made[id] = h("select", { id, onchange: () => go(stay ? { [id]: made[id].value } : { [id]: made[id].value, pair: null }) }));
    const search = (made.q = h("input", { type: "search", id: "q", placeholder: "question, user or id", oninput: () => go({ q: search.value, pair: null }, { replace: true }) }));
    const blind = (made.blind = h("input", { type: "checkbox", id: "blind", onchange: () => go({ blind: blind.checked ? "1" : null }) }));
    const label = (text, input, id) => h("label", { id }, text, input);
    made.node = h("div", { class: "controls" }, label("Show", select("show")), label("Condition", select("condition", { stay: true })), label("Model", select("model", { stay: true })),
      label("Other", select("other"), "other-label"), label("Category", select("category"), "category-label"), label("Tier", select("tier"), "tier-label"), label("User", select("user"), "user-label"), label("Order", select("order")), label("Search", search),
      h("label", { class: "tick", title: "models that never see the user, or are shown the rubric" }, blind, "count models for comparison"));
    return made;
  }

  function fill(c, page) {
    const { data, pairs, state, condition } = page, hide = (id, hidden) => { c.node.querySelector(`#${id}-label`).hidden = hidden; };
    options(c.show, explore.possible(data, state).map(([key, label]) => [key, !key ? label : state.model || key === "disagree" ? label : `${key === "wrong" ? "all models" : "any model"} ${label}`]), state.show || "");
    options(c.condition, data.conditions.map((x) => [x, x]), condition);
    options(c.model, [["", "all models"], ...data.models.map((m) => [m.name, m.name])], state.model || "");
    options(c.other, [["", "–"], ...data.models.map((m) => [m.name, m.name])], state.other || "");
    options(c.category, [["", "all"], ...pairs.categories.map((x) => [x, words(x)])], state.category || "");
    options(c.tier, [["", "all"], ...pairs.tiers.map((x) => [x, words(x)])], state.tier || "");
    options(c.user, state.user ? [[state.user, state.user], ["", "all users"]] : [["", "all users"]], state.user || "");
    options(c.order, [["", state.model ? "dataset order" : "models disagree first"], ...(state.model ? [] : [["dataset", "dataset order"]]), ["hard", "fewest models right first"], ...(state.model ? [["margin", "smallest margin first"]] : [])], state.order || "");
    hide("other", !state.model); hide("category", !pairs.categories.length); hide("tier", !pairs.tiers.length); hide("user", !state.user);
    c.blind.checked = state.blind === "1";
    c.blind.parentNode.hidden = Boolean(state.model) || !data.models.some(apart);
    if (c.q.value !== (state.q || "")) c.q.value = state.q || "";
  }

  const apart = (m) => m.blind || m.reference;
  let frame = null, page = null, last = { key: "", found: [] };

  function build() {
    const c = controls(), status = h("p", { class: "soft", role: "status" }), right = h("article", { class: "detail" });
    const list = explore.list((i, chosen) => row(page, i, chosen));
    put("pairs", h("h1", {}, "Pairs"), c.node, h("div", { class: "explorer" }, h("div", { class: "side" }, status, list.node), right));
    return { c, status, right, list };
  }

  function keys(event) {
    if (prb.typing(event) || !page || !["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) return;
    if (event.key.startsWith("Arrow") && !event.target.closest(".side")) return;
    const down = event.key === "j" || event.key === "ArrowDown", at = page.found.indexOf(page.i), next = page.found[at < 0 ? 0 : at + (down ? 1 : -1)];
    if (next === undefined) return;
    event.preventDefault();
    go({ pair: page.pairs.ids[next] }, { replace: true });
  }

  document.addEventListener("keydown", keys);
  prb.run(async (site, state) => {
    const data = prb.dataset(site), condition = data.conditions.includes(state.condition) ? state.condition : data.shown;
    const [pairs, users] = await Promise.all([prb.load(`${data.id}/pairs`), prb.load(`${data.id}/people`)]);
    const lists = Object.fromEntries(await Promise.all(explore.needed(state, condition).map(async (c) => [c, await prb.load(`${data.id}/list-${c}`)])));
    const focus = data.models.findIndex((m) => m.name === state.model), other = data.models.findIndex((m) => m.name === state.other);
    const models = focus >= 0 ? [focus] : data.models.map((m, n) => (apart(m) && state.blind !== "1" && !data.models.every(apart) ? -1 : n)).filter((n) => n >= 0);
    const asked = data.models.map((m, n) => (m.conditions.includes(condition) ? n : -1)).filter((n) => n >= 0);
    const { pair, text, posts: _, ...filters } = state, key = JSON.stringify([data.id, filters]);
    if (last.key !== key) last = { key, found: explore.select(state, condition, pairs, users, lists, models, other) };
    const wanted = pair === undefined ? -1 : pairs.ids.indexOf(pair);
    const wide = matchMedia("(min-width: 60rem)").matches, i = wanted >= 0 ? wanted : wide && pair === undefined ? (last.found[0] ?? -1) : -1;
    page = { data, state, condition, pairs, users, lists, models, found: last.found, i, reader: focus >= 0 ? focus : asked.find((n) => !apart(data.models[n]) && data.models[n].source === "live") ?? asked[0] };
    frame = frame || build();
    fill(frame.c, page);
    put(frame.status, `${count(last.found.length)} of ${count(pairs.ids.length)} pairs`, pairs.note ? ` · ${pairs.note}` : "");
    document.querySelector(".explorer").classList.toggle("open", wanted >= 0);
    frame.list.show(last.found, i);
    if (i < 0) { put(frame.right, h("p", { class: "soft" }, pair === undefined ? "Choose a pair." : `There is no pair ${pair}.`)); return; }
    const chunk = await prb.load(`${data.id}/pairs-${Math.floor(i / pairs.chunk)}`);
    if (page.i === i) { put(frame.right, detail(page, i, chunk)); frame.right.scrollTop = frame.shown === i ? frame.right.scrollTop : 0; frame.shown = i; }
  });
})();
