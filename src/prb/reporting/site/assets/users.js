// Who is served badly: every user's accuracy, the worst tenth, groups, and one user's pairs.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, interval, count, words, number } = prb;
  const MANY = 400, LINES = [{ at: 0.5, kind: "half" }];
  const MARK = { 1: ["✓", "right"], 0: ["✗", "wrong"], h: ["½", "tie"], "-": ["–", "failed"] };

  function distribution(found, names, tenth, condition) {
    const all = found.user.map((user, n) => ({ x: n + 1, y: found.value[n], low: found.low[n], high: found.high[n], label: names.names[user], named: false, r: found.user.length > 120 ? 1.6 : 3 }));
    const about = `Accuracy for ${count(all.length)} users, mean ${percent(found.mean)}, worst tenth ${percent(found.worst_decile)}`;
    if (all.length > MANY) return charts.dots(found.value, { kind: condition, title: "Accuracy for every user", alt: about });
    return charts.plot({ series: [{ name: "worst tenth", kind: "bad", join: false, points: all.slice(0, tenth) }, { name: "other users", kind: condition, join: false, points: all.slice(tenth) }],
      x: { label: "users, worst first", ticks: [], from: 0, to: all.length + 1 }, y: { label: "accuracy, %", from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], text: (v) => percent(v, 0) },
      lines: [{ from: [0, found.mean], to: [all.length + 1, found.mean], label: "mean" }], width: results.room(1180), height: 300, title: "Accuracy for every user", alt: about });
  }

  function summary(found) {
    const more = found.by_chance === null ? "" : `expected from chance alone: ${percent(found.by_chance)}`;
    return h("dl", { class: "facts" }, [["users", count(found.n), "with an answered pair"], ["mean over users, %", percent(found.mean), ""], ["standard deviation, points", percent(found.spread), more], ["worst tenth, %", percent(found.worst_decile), "mean of its users"]]
      .map(([name, value, small]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, small ? h("small", {}, small) : null))));
  }

  function ranking(found, names, wanted, q, tenth, href) {
    const rows = found.user.map((user, n) => ({ user, n })).filter(({ user }) => names.names[user].toLowerCase().includes(q));
    const shown = q ? rows.slice(0, 50) : rows.slice(0, Math.max(tenth, 5));
    const body = shown.map(({ user, n }) => {
      const cells = [h("a", { href: href(user), "aria-current": names.names[user] === wanted ? "true" : null }, names.names[user]), percent(found.value[n]), `${percent(found.low[n])} to ${percent(found.high[n])}`, count(found.rows[n])];
      if (names.names[user] === wanted) cells.attributes = { class: "picked" };
      return cells;
    });
    return h("section", { class: "card", id: "worst" }, h("h2", {}, q ? `Users with “${q}”: ${count(rows.length)}` : `Served worst: ${count(shown.length)} of ${count(found.user.length)}`),
      shown.length ? h("div", { class: "wide" }, table([{ label: "user", left: true }, { label: "accuracy, %" }, { label: "95 %" }, { label: "pairs" }], body)) : h("p", { class: "soft" }, "No user has this in their name."),
      h("p", { class: "soft" }, "The worst of many are partly unlucky: their intervals say how much further questions of theirs may change."));
  }

  function groups(found, data, page) {
    const parts = Object.entries(found.groups).map(([name, labels]) => [h("h3", {}, `By ${words(name)}`),
      Object.keys(labels).length ? charts.bars(Object.entries(labels).map(([label, e]) => ({ name: words(label), lanes: [{ ...e, kind: page.condition }], text: `${interval(e)} · n ${count(e.n)}` })), { lines: LINES }) : null,
      page.small[name] ? h("p", { class: "soft" }, `${count(page.small[name])} groups with fewer than ${page.min} users are not shown.`) : null]);
    return h("section", { class: "card", id: "groups" }, h("h2", {}, "Groups of users"), h("p", { class: "soft" }, parts.length ? `Groups of at least ${page.min} users, worst first.` : data.missing ? `Unknown. ${data.missing}` : `The rows of this dataset name no groups of users (field groups). Groups of at least ${page.min} users would be compared here.`), parts);
  }

  function drilldown(page, user) {
    const { data, names, pairs, list, model, condition } = page, n = names.names.indexOf(user);
    if (n < 0) return h("section", { class: "card", id: "user" }, h("h2", {}, user), h("p", { class: "soft" }, "There is no such user."));
    const view = { data: data.id, condition, model: data.models[model].name };
    const rows = pairs.ids.map((_, i) => i).filter((i) => pairs.users[i] === n).map((i) => {
      const [sign, meaning] = MARK[list.credit[model][i]];
      return [h("a", { href: link({ ...view, user, pair: pairs.ids[i] }, "pairs.html") }, pairs.heads ? pairs.heads[i] : pairs.ids[i]), h("span", { class: `mark m${list.credit[model][i] === "-" ? "x" : list.credit[model][i]}`, role: "img", "aria-label": meaning, title: meaning }, sign),
        number(list.margin[model][i])];
    });
    return h("section", { class: "card", id: "user" }, h("h2", { tabindex: -1 }, `Pairs of ${user}`), h("div", { class: "wide" }, table([{ label: "question", left: true, wrap: true }, { label: "verdict", left: true }, { label: "margin" }], rows)),
      h("p", { class: "soft" }, h("a", { href: link({ user: null }) }, "close")));
  }

  let last = null;
  prb.run(async (site, state) => {
    const data = prb.dataset(site), condition = data.conditions.includes(state.condition) ? state.condition : data.shown;
    const [d, names, pairs, list] = await Promise.all([`users-${condition}`, "people", "pairs", `list-${condition}`].map((name) => prb.load(`${data.id}/${name}`)));
    const asked = data.models.map((m, n) => n).filter((n) => d.models[n]), ranked = [...asked].sort((a, b) => (b === data.leader) - (a === data.leader) || Boolean(data.models[a].reference) - Boolean(data.models[b].reference) || (d.models[b].mean ?? -1) - (d.models[a].mean ?? -1));
    const best = ranked.find((n) => d.models[n].spread > 0) ?? ranked[0];  // where all users are served alike there is nothing to see
    const picked = asked.find((n) => data.models[n].name === state.model), model = picked ?? best, found = d.models[model], q = (state.q || "").toLowerCase();
    const select = (id, choices, value) => { const s = h("select", { id, onchange: () => go({ [id]: s.value }) }); options(s, choices, value); return s; };
    const search = h("input", { type: "search", id: "q", placeholder: "user", oninput: () => go({ q: search.value }, { replace: true }) });
    search.value = state.q || "";
    const at = document.activeElement?.id === "q" ? document.activeElement.selectionStart : null;
    const tenth = Math.max(1, Math.floor(found.user.length / 10)), single = names.pairs.every((n) => n === 1);
    const page = { data, names, pairs, list, model, condition, small: d.small_groups, min: d.min_users };
    put("users", h("p", { class: "soft" }, data.label), h("div", { class: "controls" }, h("label", {}, "Model", select("model", asked.map((n) => [data.models[n].name, data.models[n].name]), data.models[model].name)),
      h("label", {}, "Condition", select("condition", data.conditions.map((c) => [c, c]), condition)), h("label", {}, "Search", search)),
    found.n ? [summary(found), h("section", { class: "card roomy", "aria-label": "Distribution" }, charts.legend([{ name: "worst tenth", kind: "bad" }, { name: "other users", kind: condition }]), distribution(found, names, tenth, condition),
      h("p", { class: "soft" }, single ? "Every user has one pair, so each is right or wrong and an interval says little." : found.user.length > MANY ? "Number of users by accuracy." : "One dot per user. Bars are Wilson's 95 % intervals over the user's own pairs.", " Far more spread than chance alone gives means that some users are served worse than others, not just unluckier.")),
    h("div", { class: "two loose" }, ranking(found, names, state.user, q, tenth, (user) => link({ user: names.names[user] })), state.user ? drilldown(page, state.user) : groups(found, data, page)), state.user ? groups(found, data, page) : null] : h("p", { class: "note" }, "No pair was answered."));
    if (at !== null) { search.focus({ preventScroll: true }); search.setSelectionRange(at, at); }
    if (state.user && last && state.user !== last.user) document.querySelector("#user h2")?.focus();
    last = state;
  });
})();
