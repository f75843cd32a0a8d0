// Two models on the same pairs: the paired test as it was made in Python, and the pairs on which the verdicts differ.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, points, stars, interval, count, pValue, words } = prb;
  const LEVEL = 0.05, SHOWN = 12, MOST = 16;

  // the test of two models is stored once; seen from the other side its signs are reversed
  function duel(tests, a, b) {
    const found = tests.find((t) => (t.a === a && t.b === b) || (t.a === b && t.b === a));
    if (!found || found.a === a) return found;
    const minus = (x) => (x === null ? null : -x);
    return { ...found, a, b, value: minus(found.value), low: minus(found.high), high: minus(found.low), accuracy_a: found.accuracy_b, accuracy_b: found.accuracy_a,
      table: found.table.map((_, i) => found.table.map((row) => row[i])) };
  }

  function sentence(t, a, b, condition) {
    if (!t || t.value === null) return `Under ${condition} there is no pair that both models answered.`;
    const size = `${percent(Math.abs(t.value))} points${t.low === null ? "" : ` (95\u00a0%: ${points(t.low)} to ${points(t.high)})`}`;
    const limit = t.smallest_detectable === null ? "" : ` With ${count(t.n)} pairs, the smallest detectable difference is about ${percent(t.smallest_detectable)} points.`;
    if (t.value === 0) return `Under ${condition} both models have the same accuracy.${limit}`;
    if (t.p === null) return `Under ${condition} the models differ by ${size}, which cannot be tested: all pairs are in one cluster.`;
    const [more, less] = t.value > 0 ? [a, b] : [b, a], p = `${t.test === "mcnemar-midp" ? "McNemar's mid-p" : "sign-flip p"} ${pValue(t.p)}, ${pValue(t.p_holm)} after Holm`;
    return t.p_holm < LEVEL ? `Under ${condition} ${more} is significantly better than ${less}, by ${size} (${p}).`
      : `Under ${condition} ${more} is ahead of ${less} by ${size}, which is not significant (${p}).${limit}`;
  }

  function crosstab(t, a, b) {
    const kinds = ["right", "tie", "wrong"], used = kinds.map((_, n) => n).filter((n) => n !== 1 || t.table[1].some(Boolean) || t.table.some((row) => row[1]));
    const rows = used.map((i) => [`${a} ${kinds[i]}`, ...used.map((j) => h("span", { class: i === j ? "quiet" : "lit" }, count(t.table[i][j])))]);
    return h("section", { class: "card" }, h("h2", {}, "Pair by pair"), h("div", { class: "wide" }, table([{ label: "verdicts", left: true }, ...used.map((j) => ({ label: `${b} ${kinds[j]}` }))], rows)),
      h("p", { class: "soft" }, `${count(t.n)} pairs that both models answered${t.dropped ? `; ${count(t.dropped)} where one failed are left out` : ""}. The verdict differs on ${percent(t.changed_sides)} %.`));
  }

  function everywhere(data, tests, a, b) {
    const rows = data.conditions.map((c) => [c, duel(tests[c], a, b)]).filter(([, t]) => t).map(([c, t]) => [c, percent(t.accuracy_a), percent(t.accuracy_b), points(t.value) + stars(t.p_holm),
      t.low === null ? "–" : `${points(t.low)} to ${points(t.high)}`, pValue(t.p), pValue(t.p_holm), percent(t.changed_sides), count(t.n), count(t.dropped)]);
    const heads = ["condition", "A, %", "B, %", "A − B, points", "95 %", "p", "p (Holm)", "verdicts that differ, %", "pairs", "dropped"].map((label, n) => ({ label, left: n === 0 }));
    return h("section", { class: "card" }, h("h2", {}, "Under every condition"), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Paired tests" }, table(heads, rows)),
      h("p", { class: "soft" }, "Sign-flip permutation over clusters (McNemar's mid-p where every cluster is one tie-free pair); Holm over all pairs of models under the condition."));
  }

  function parts(data, board, a, b, condition) {
    const rows = Object.entries(board.slices).map(([name, models]) => ({ name, x: models[a].accuracy[condition], y: models[b].accuracy[condition] })).filter((r) => r.x && r.y);
    if (rows.length < 2) return null;
    return h("section", { class: "card" }, h("h2", {}, "By category and tier"), charts.legend([{ name: data.models[a].name, kind: "s0" }, { name: data.models[b].name, kind: "s1" }]),
      charts.bars(rows.map((r) => ({ name: r.name === "all" ? "all pairs" : words(r.name.slice(r.name.indexOf(":") + 1)), lanes: [{ ...r.x, kind: "s0" }, { ...r.y, kind: "s1" }], text: `${percent(r.x.value)} · ${percent(r.y.value)}` })), { lines: [{ at: 0.5, kind: "half" }] }),
      h("p", { class: "soft" }, "Accuracy in %, on a scale from 0 to 100, each with its own 95 % interval. Overlapping intervals do not mean equal models: use the paired test."));
  }

  function changed(data, pairs, users, list, a, b, condition) {
    const [x, y] = [list.credit[a], list.credit[b]], names = [data.models[a].name, data.models[b].name];
    const side = (who, u, v, model, other) => {
      const found = pairs.ids.map((_, i) => i).filter((i) => u[i] === "1" && v[i] !== "1" && v[i] !== "-");
      const view = { data: data.id, condition, model, other, show: "beats" };
      return h("section", { class: "card" }, h("h3", {}, `Only ${who} is right: ${count(found.length)}`),
        h("ul", { class: "plain" }, found.slice(0, SHOWN).map((i) => h("li", {}, h("a", { href: link({ ...view, pair: pairs.ids[i] }, "pairs.html") }, pairs.heads ? pairs.heads[i] : pairs.ids[i]), h("span", { class: "soft" }, ` ${users.names[pairs.users[i]]}`)))),
        found.length ? h("p", {}, h("a", { href: link(view, "pairs.html") }, `all ${count(found.length)} in the pair explorer`)) : null);
    };
    return h("div", { class: "two loose", id: "changed" }, side(names[0], x, y, names[0], names[1]), side(names[1], y, x, names[1], names[0]));
  }

  // every two models: row minus column; a dot where the corrected test shows a difference
  function matrix(data, tests, ranked, condition, chosen) {
    const shown = [...new Set([...chosen, ...ranked])].sort((a, b) => ranked.indexOf(a) - ranked.indexOf(b)).filter((n, at) => at < MOST || chosen.includes(n));
    const heads = [{ label: "row − column, points", left: true }, ...shown.map((n, at) => ({ label: String(at + 1), title: data.models[n].name }))];
    const rows = shown.map((a, at) => [`${at + 1} ${data.models[a].name}`, ...shown.map((b) => {
      const t = a === b ? null : duel(tests, a, b);
      if (!t || t.value === null) return "";
      const sure = t.p_holm !== null && t.p_holm < LEVEL;
      return h("a", { href: link({ a: data.models[a].name, b: data.models[b].name }), class: sure ? (t.value > 0 ? "ahead" : "after") : "level", title: `p ${pValue(t.p_holm)}, corrected` }, `${sure ? "●" : ""}${points(t.value)}`);
    })]);
    const drawn = table(heads, rows);
    drawn.className = "matrix";
    return h("section", { class: "card" }, h("h2", {}, `Every two models, ${condition}`), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Every two models" }, drawn),
      h("p", { class: "soft" }, `● the difference is significant (Holm over all pairs of models, 5 %).${shown.length < data.models.length ? ` The ${shown.length} best of ${data.models.length} models.` : ""}`));
  }

  prb.run(async (site, state) => {
    const data = prb.dataset(site);
    if (data.models.length < 2) { put("compare", h("h1", {}, "Two models"), h("p", {}, "There is only one model. Evaluate another one on the same rows and pass both runs to prb report.")); return; }
    const [board, tests, pairs, users] = await Promise.all(["board", "tests", "pairs", "people"].map((name) => prb.load(`${data.id}/${name}`)));
    const condition = data.conditions.includes(state.condition) ? state.condition : data.shown;
    const sign = data.metrics.some((m) => m.key === data.ranked && m.better === "lower") ? -1 : 1;
    const worth = (n) => { const e = data.ranked ? board.slices.all[n][data.ranked] : board.slices.all[n].accuracy[condition]; return e && e.value !== null ? sign * e.value : -2; };
    const ranked = data.models.map((_, n) => n).sort((m, n) => Boolean(data.models[m].reference) - Boolean(data.models[n].reference) || worth(n) - worth(m) || m - n);
    const find = (name, fallback) => { const n = data.models.findIndex((m) => m.name === name); return n >= 0 ? n : fallback; };
    const a = find(state.a, ranked.find((n) => n !== find(state.b, -1))), b = find(state.b, ranked.find((n) => n !== a));
    const list = await prb.load(`${data.id}/list-${condition}`), t = duel(tests[condition], a, b), names = [data.models[a].name, data.models[b].name];
    const choose = (id, key, value) => { const s = h("select", { id, onchange: () => go({ [key]: s.value }) }); options(s, data.models.map((m) => [m.name, m.name]), value); return s; };
    const under = h("select", { id: "condition", onchange: () => go({ condition: under.value }) });
    options(under, data.conditions.map((c) => [c, c]), condition);
    put("compare", h("h1", {}, "Two models"), h("p", { class: "soft" }, data.label),
      h("div", { class: "controls" }, h("label", {}, "A", choose("a", "a", names[0])), h("label", {}, "B", choose("b", "b", names[1])), h("label", {}, "Condition", under),
        h("button", { type: "button", id: "swap", onclick: () => go({ a: names[1], b: names[0] }) }, "⇄ swap")),
      a === b ? h("p", {}, "Choose two different models.") : [
        h("p", { class: "lead", id: "verdict" }, sentence(t, ...names, condition)),
        h("div", { class: "cards" }, t && t.value !== null ? crosstab(t, ...names) : null, parts(data, board, a, b, condition)),
        everywhere(data, tests, a, b), data.models.length > 2 ? matrix(data, tests[condition], ranked, condition, [a, b]) : null,
        list.credit[a] && list.credit[b] ? [h("h2", {}, `Pairs on which the verdicts differ, ${condition}`), changed(data, pairs, users, list, a, b, condition)] : null]);
  });
})();
