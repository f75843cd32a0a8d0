// The leaderboard: what the tests show, a line per model from another user's history to the user's own, then all numbers.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, points, stars, pValue, interval, count, words, copy } = prb;
  const LENGTH = "length:equal length";  // shown like a slice of the rows
  const LEVEL = 0.05, FIRST = 25;
  const SHORT = { profile: "own", shuffled: "other's" };
  const IN_NUMBERS = ["condition", "category", "tier", "length", "sort"];

  const value = (estimate) => (estimate && estimate.value !== null && estimate.value !== undefined ? estimate.value : null);
  const bounds = (e, say) => (value(e) === null || e.low === null || e.low === undefined ? "" : `[${say(e.low)}, ${say(e.high)}]`);
  const say = (m) => (m.unit === "points" ? points : m.unit === "share" ? percent : (x) => x.toFixed(3));
  const shown = (m, e) => (value(e) === null ? "–" : say(m)(e.value) + (m.tested ? stars(e.p_holm) : ""));
  const range = (r) => (!r ? "–" : r[0] === r[1] ? String(r[0]) : `${r[0]}–${r[1]}`);

  // --- the first screen ---
  // what models can be ranked by: metrics, and accuracy under a condition, which is drawn without a second mark
  function ways(data, board) {
    const measured = data.metrics.filter((m) => board.slices.all.some((r) => value(number(r, m, data.shown)) !== null));
    const accuracy = data.conditions.map((c) => ({ key: c, label: `accuracy, ${c}`, says: data.meanings[c], unit: "share", better: "higher", tested: false, needs: [c] }));
    return [...measured.filter((m) => m.key === data.ranked), ...measured.filter((m) => m.key !== data.ranked), ...accuracy];
  }

  function number(row, m, condition) {
    return row.accuracy[m.key] || (m.needs.length ? row[m.key] : row[m.key] && row[m.key][condition]);
  }

  function says(m, e) {
    if (!m.tested || value(e) === null || e.p_holm === null || e.p_holm === undefined) return null;
    if (e.p_holm >= LEVEL) return ["○", "not shown", "unsure"];
    const effect = (m.better === "lower" ? -1 : 1) * (e.value - (m.unit === "share" ? 0.5 : 0));  // a share is tested against a half
    return effect > 0 ? ["●", m.key === "control" ? "personalizes" : "shown", "sure"] : ["▽", "reversed", "reversed"];
  }

  function standings(data, board, m, q) {
    const [to, from] = m.needs.length ? m.needs : [data.shown];
    const rows = data.models.map((model, n) => {
      const own = board.slices.all[n], e = number(own, m, data.shown);
      return { model, e, rank: board.ranks[m.key] ? board.ranks[m.key][n] : null, to: own.accuracy[to], from: from && own.accuracy[from], oracle: own.accuracy.oracle,
        failed: Object.values(own.accuracy).reduce((sum, a) => sum + a.failed, 0) };
    });
    const sign = m.better === "lower" ? 1 : -1, worth = (r) => (value(r.e) === null ? Infinity : sign * r.e.value);
    const listed = rows.filter((r) => !r.model.reference && r.model.name.toLowerCase().includes(q.toLowerCase())).sort((a, b) => worth(a) - worth(b));
    return { listed, references: rows.filter((r) => r.model.reference) };
  }

  // models that stand below the others, those with the same number together
  function compared(references) {
    const found = [];
    for (const { model, to, oracle } of references) {
      const e = model.reference === "user-blind" ? to : oracle;
      if (value(e) === null) continue;
      const same = found.find((f) => f.kind === model.reference && percent(f.at) === percent(e.value));
      if (same) same.models.push(model); else found.push({ kind: model.reference, at: e.value, models: [model] });
    }
    return found;
  }

  function scaleOf(data, { listed, references }) {
    const ends = listed.flatMap((r) => [r.to, r.from]).filter((e) => value(e) !== null).flatMap((e) => [e.low ?? e.value, e.high ?? e.value, e.value]);
    const marks = compared(references).map((f) => f.at), chance = data.about.chance ?? 0.5;
    const from = Math.max(0, Math.floor(10 * Math.min(chance - 0.1, ...ends, ...marks) + 1e-9) / 10), to = Math.min(1, Math.ceil(10 * Math.max(chance + 0.1, ...ends, ...marks) - 1e-9) / 10);
    const ticks = Array.from({ length: Math.round(10 * (to - from)) + 1 }, (_, n) => from + n / 10);
    return { from, to, ticks, lines: [{ at: chance, kind: "half", label: "chance" }] };
  }

  function about(r) {
    return [r.model.source, r.model.seen, r.failed ? `${count(r.failed)} failed` : null].filter(Boolean).join(" · ");
  }

  function chart(data, board, m, state) {
    const all = standings(data, board, m, state.q || ""), scale = scaleOf(data, all), lines = scale.lines;
    const list = state.all === "1" ? all.listed : all.listed.slice(0, FIRST), two = m.needs.length === 2;
    const pointed = data.metrics.some((own) => own.key === m.key), verdicts = all.listed.some((r) => says(m, r.e));
    const heads = [{ label: "rank", left: true, title: "the ranks that paired tests of every two models leave open" }, { label: "model", left: true },
      { label: [h("span", { class: "offstage" }, "accuracy, %"), charts.axis({ scale, ticks: scale.ticks, lines, inside: false })], left: true },
      { label: two ? `${m.needs.map((c) => SHORT[c] || c).reverse().join(" → ")}, %` : `accuracy, ${m.needs[0] || data.shown}, %` },
      pointed ? { label: `${m.label}${{ points: ", points", share: ", %" }[m.unit] || ""}`, title: m.says } : null, verdicts ? { label: "verdict", left: true } : null].filter(Boolean);
    const rows = list.map((r) => {
      const verdict = says(m, r.e), text = two ? `${percent(value(r.from))} → ${percent(value(r.to))}` : percent(value(r.to));
      const said = [`${r.model.name}, accuracy in percent:`, two ? `${m.needs[1]} ${interval(r.from)},` : "", `${m.needs[0] || data.shown} ${interval(r.to)}`].join(" ");
      return [range(r.rank),
        [h("a", { href: link({ data: data.id, model: r.model.name, condition: m.needs[0] || data.shown }, "model.html") }, r.model.name), h("small", { class: "quiet" }, about(r))],
        charts.span(r.to, r.from, { scale, lines, sure: !verdict || verdict[2] !== "unsure", kind: m.needs[0] || data.shown, since: m.needs[1], title: r.model.name, alt: said }),
        h("span", { class: "num" }, text),
        ...(pointed ? [[h("b", {}, value(r.e) === null ? "–" : say(m)(r.e.value)), h("small", { class: "quiet" }, ` ${bounds(r.e, (x) => say(m)(x).replace("+", ""))}`)]] : []),
        ...(verdicts ? [verdict ? [h("span", { class: `says ${verdict[2]}` }, h("i", { "aria-hidden": "true" }, verdict[0]), ` ${verdict[1]}`), verdict[2] === "unsure" ? h("small", { class: "quiet" }, ` p ${pValue(r.e.p_holm)}, corrected`) : null] : "–"] : [])];
    });
    for (const f of compared(all.references)) {
      const name = f.models.map((model) => model.name).join(", "), rubric = f.kind !== "user-blind";
      const row = ["–", [name, h("small", { class: "quiet" }, rubric ? "for comparison: shown the rubric" : "for comparison: user-blind")],
        charts.reference(f.at, { scale, lines, shape: rubric ? "▲" : "■", title: name, alt: `${name}, ${f.kind}: ${percent(f.at)} %` }), h("span", { class: "num" }, percent(f.at)), ...heads.slice(4).map(() => "")];
      row.attributes = { class: "reference" };
      rows.push(row);
    }
    const drawn = table(heads, rows);
    drawn.className = "first";
    const hidden = all.listed.length - list.length;
    const key = [two ? ["◇", `${data.meanings[m.needs[1]]} (${m.needs[1]})`] : null, ["●", `${data.meanings[m.needs[0] || data.shown]} (${m.needs[0] || data.shown})`], verdicts ? ["○", "the same, difference not shown"] : null, ["━", "95 % interval"]];
    return [h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Ranking" }, drawn), list.length ? null : h("p", { class: "soft" }, "No model has this in its name."),
      h("p", { class: "key" }, key.filter(Boolean).map(([mark, text]) => h("span", {}, h("b", { "aria-hidden": "true" }, mark), ` ${text}`))),
      hidden > 0 ? h("p", {}, h("button", { type: "button", id: "all", onclick: () => go({ all: "1" }) }, `show all ${count(all.listed.length)} models`)) : null];
  }

  // --- all numbers ---
  function view(data, state) {
    const slices = ["all", LENGTH, ...data.categories.map((c) => `category:${c}`), ...data.tiers.map((t) => `tier:${t}`)];
    const condition = data.conditions.includes(state.condition) ? state.condition : data.shown;
    const slice = state.length ? LENGTH : state.tier ? `tier:${state.tier}` : state.category ? `category:${state.category}` : "all";
    const usual = state.condition || !data.ranked || slice === LENGTH ? condition : data.ranked, lower = data.metrics.some((m) => m.key === usual && m.better === "lower");
    const [key, order] = (state.sort || `${usual}.${lower ? "up" : "down"}`).split(".");
    return { condition, slice: slices.includes(slice) ? slice : "all", q: state.q || "", sort: { key, down: order !== "up" } };
  }

  function columns(data, board, all, v) {
    const found = [{ key: "model", label: "model", left: true, of: (r) => r.model.name.toLowerCase(), text: (r) => r.model.name }];
    const ranks = v.slice === "all" && board.ranks[v.sort.key];
    if (ranks) found.push({ key: "rank", label: "rank", left: true, title: `the ranks by ${v.sort.key} that the tests leave open`, of: (r) => (ranks[r.n] ? ranks[r.n][0] : null), text: (r) => range(ranks[r.n]) });
    const metric = (m) => ({ key: m.key, label: m.label, title: m.says, of: (r) => value(r.metrics[m.key]), text: (r) => shown(m, r.metrics[m.key]), more: (r) => (m.needs.length ? bounds(r.metrics[m.key], say(m)) : "") });
    const measured = data.metrics.filter((m) => all.some((r) => r.metrics[m.key])).map(metric);
    found.push(...measured.filter((m) => m.key === data.ranked));
    for (const c of data.conditions) found.push({ key: c, label: c, title: data.meanings[c], of: (r) => value(r.numbers.accuracy[c]), text: (r) => interval(r.numbers.accuracy[c]), short: (r) => percent(value(r.numbers.accuracy[c])), more: (r) => bounds(r.numbers.accuracy[c], percent) });
    found.push(...measured.filter((m) => m.key !== data.ranked));
    if (all.some((r) => r.failed)) found.push({ key: "failed", label: "failed", of: (r) => r.failed, text: (r) => count(r.failed) });
    return found;
  }

  function sorted(list, cols, sort) {
    const column = cols.find((c) => c.key === sort.key) || cols[0];
    const sign = sort.down ? -1 : 1;
    return [...list].sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * sign || a.n - b.n;
    });
  }

  function grid(data, board, v) {
    const all = data.models.map((model, n) => {
      const numbers = board.slices[v.slice][n];
      return { n, model, numbers, metrics: Object.fromEntries(data.metrics.map((m) => [m.key, number(numbers, m, v.condition)])), failed: Object.values(numbers.accuracy).reduce((sum, e) => sum + e.failed, 0) };
    });
    const cols = columns(data, board, all, v), list = sorted(all.filter((r) => r.model.name.toLowerCase().includes(v.q.toLowerCase())), cols, v.sort);
    const cell = (c, r) => (c.key === "model" ? [h("a", { href: link({ data: data.id, model: r.model.name, condition: v.condition }, "model.html") }, r.model.name), r.model.reference ? h("small", { class: "quiet" }, r.model.reference) : null]
      : [h("span", { class: c.key === v.sort.key ? "lit" : null }, (c.short || c.text)(r)), c.more && c.more(r) ? h("small", { class: "quiet" }, c.more(r)) : null]);
    const natural = (key) => !["model", "rank"].includes(key);  // numbers best first, names from a
    const drawn = table(cols, list.map((r) => cols.map((c) => cell(c, r))), { sort: v.sort, onsort: (key) => go({ sort: `${key}.${(v.sort.key === key ? !v.sort.down : natural(key)) ? "down" : "up"}` }) });
    drawn.className = "board";
    return { drawn, cols, list };
  }

  // the table as text
  const escapes = { "\\": "\\textbackslash{}", "%": "\\%", _: "\\_", "&": "\\&", $: "\\$", "#": "\\#", "{": "\\{", "}": "\\}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const tex = (s) => s.replace(/[\\%_&$#{}~^]/g, (c) => escapes[c]).replaceAll("−", "$-$").replaceAll("–", "--");
  const inert = (c) => (/^[=+\-@\t\r\n＝＋－＠]/.test(c) && !/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(c) ? `'${c}` : c); // as `inert` in format.py
  const FORMATS = {
    Markdown: (head, body) => [head, head.map((_, n) => (n ? "---:" : "---")), ...body.map((r) => r.map((c) => c.replace(/[|*\\]/g, "\\$&")))].map((r) => `| ${r.join(" | ")} |`).join("\n") + "\n",
    LaTeX: (head, body) => [`\\begin{tabular}{l${"r".repeat(head.length - 1)}}`, "\\toprule", `${head.map(tex).join(" & ")} \\\\`, "\\midrule", ...body.map((r) => `${r.map(tex).join(" & ")} \\\\`), "\\bottomrule", "\\end{tabular}"].join("\n") + "\n",
    CSV: (head, body) => [head, ...body].map((r) => r.map(inert).map((c) => (/[",\n\r]/.test(c) ? `"${c.replaceAll('"', '""')}"` : c)).join(",")).join("\n") + "\n",
  };

  function copying(current) {
    return Object.entries(FORMATS).map(([name, format]) => h("button", {
      type: "button", title: `Copy the table as shown, as ${name}`, "data-copy": name,
      onclick: (event) => { const { cols, list } = current(); copy(format(cols.map((c) => c.label), list.map((r) => cols.map((c) => c.text(r)))), event.currentTarget); },
    }, name));
  }

  function notes(data, v, board) {
    const said = ["Accuracy in percent with a 95 % interval clustered by user; a tie counts half, failures are left out."];
    if (v.slice === LENGTH) said.push("Length-controlled: what accuracy would be if both answers were equally long, by a logistic regression on the log length ratio within each model and condition; the interval is clustered. Gain and control are not length-controlled and not shown.");
    const { noise_ceiling: noise } = data.about;
    if (noise) said.push(`Noise ceiling: test-retest agreement is ${percent(noise.agreement)} % (${count(noise.n)} pairs of votes by one user on the same prompt and answers); accuracies are not corrected for it.`);
    else if (noise === null) said.push("Noise ceiling: unknown, since nobody voted twice on the same prompt and answers.");
    for (const m of data.metrics) {
      if (board.slices.all.some((r) => value(number(r, m, v.condition)) !== null)) said.push(`${m.label}${m.needs.length ? "" : ` under ${v.condition}`}: ${m.says}.`);
    }
    if (data.metrics.some((m) => m.tested)) said.push("Stars: p < .05, .01, .001 after Holm over the models. Within a category or tier there are intervals but no tests.");
    if (data.models.length > 1 && v.slice === "all") said.push("Rank: the ranks that paired tests of every two models leave open (Holm, 5 %), without the models for comparison.");
    if (data.models.some((m) => m.protocol === "paper")) said.push("Some runs reproduce the procedure of the paper's scripts, including its errors, for comparison with published numbers.");
    return said;
  }

  function frame(data) {
    let current = {};
    const category = h("select", { id: "category", onchange: () => go({ category: category.value, tier: null, length: null }) });
    const tier = h("select", { id: "tier", onchange: () => go({ tier: tier.value, category: null, length: null }) });
    const condition = h("select", { id: "condition", onchange: () => go({ condition: condition.value, sort: null }) });
    const equal = h("input", { type: "checkbox", id: "length", onchange: () => go({ length: equal.checked ? "1" : null, tier: null, category: null }) });
    const search = h("input", { type: "search", id: "q", placeholder: "model name", oninput: () => go({ q: search.value }, { replace: true }) });
    const ranked = h("select", { id: "ranked", onchange: () => go({ by: ranked.value }) });
    const first = h("div", { class: "card" }), body = h("div", {}), said = h("ul", { class: "notes" });
    const label = (text, input) => h("label", {}, text, input);
    const { sentences, size } = data.verdict, warnings = data.models.flatMap((m) => (m.warnings || []).map((text) => `${m.name} ${text}.`));
    const link_ = h("button", { type: "button", id: "permalink", title: "Copy the address of this view", onclick: (event) => copy(location.href, event.currentTarget) }, "link");
    const toggle = (event) => { event.preventDefault(); go(numbers.open ? Object.fromEntries(["numbers", ...IN_NUMBERS].map((key) => [key, null])) : { numbers: "1" }, { replace: true }); };
    const numbers = h("details", { id: "numbers", class: "card" }, h("summary", { onclick: toggle }, "All numbers"),
      h("div", { class: "controls" }, label("Condition", condition), data.categories.length ? label("Category", category) : null, data.tiers.length ? label("Tier", tier) : null,
        data.missing ? null : h("label", { class: "tick", title: "accuracy at equal length of both answers" }, equal, "length-controlled"),
        h("span", { class: "end", role: "group", "aria-label": "Copy the table" }, h("span", { class: "quiet", "aria-hidden": "true" }, "copy"), copying(() => current), link_)), body, said);
    const parts = [h("div", { id: "verdict" }, sentences.map((s) => h("p", { class: "lead" }, s)), h("p", { class: "soft" }, size), warnings.map((text) => h("p", { class: "note" }, text))),
    h("div", { class: "reading" }, h("details", { id: "how" }, h("summary", {}, "How to read this"),
        h("p", {}, "Both answers of a pair are good; one follows what this user wants, the other does not. A reward model knows whose preference it judges only if it is right more often with the user's own history (●) than with somebody else's (◇): the difference is its control. A user-blind model has a control of 0, however accurate it is."),
        h("p", {}, "“Not shown” means that this test could not tell the difference from chance, not that there is none. Ranks such as 2–4 are all the places that the tests leave open. Models for comparison never see the user, or are shown the rubric: what they reach is a reference, neither a floor nor a ceiling.")),
      h("div", { class: "controls" }, label("Ranked by", ranked), label("Search", search))), first, numbers];

    function update(board, state) {
      const v = view(data, state), all = ways(data, board), m = all.find((w) => w.key === state.by) || all.find((w) => w.key === (data.ranked || data.shown));
      options(ranked, all.map((w) => [w.key, w.label]), m.key);
      options(condition, data.conditions.map((c) => [c, `${c}: ${data.meanings[c]}`]), v.condition);
      const [kind, name] = [v.slice.split(":")[0], v.slice.slice(v.slice.indexOf(":") + 1)];
      options(category, [["", "all"], ...data.categories.map((c) => [c, words(c)])], kind === "category" ? name : "");
      options(tier, [["", "all"], ...data.tiers.map((t) => [t, words(t)])], kind === "tier" ? name : "");
      equal.checked = v.slice === LENGTH;
      if (search.value !== v.q) search.value = v.q;
      put(first, chart(data, board, m, state));
      numbers.open = Boolean(state.numbers || IN_NUMBERS.some((key) => state[key]));
      current = grid(data, board, v);
      put(body, h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "All numbers" }, current.drawn));
      put(said, notes(data, v, board).map((text) => h("li", {}, text)));
    }
    return { parts, update };
  }

  let drawn = { id: null };
  prb.run(async (site, state) => {
    if (!site.datasets.length) {
      const pages = [...document.querySelectorAll("nav a:not([aria-current])")].map((a) => h("li", {}, h("a", { href: a.getAttribute("href") }, a.textContent)));
      put("board", h("p", { class: "note" }, "There is no evaluation on pairs here."), pages.length ? h("ul", {}, pages) : null);
      return;
    }
    const data = prb.dataset(site), board = await prb.load(`${data.id}/board`);
    if (drawn.id !== data.id) {
      drawn = { id: data.id, ...frame(data) };
      put("headline", data.verdict.headline);
      put("board", drawn.parts);
    }
    drawn.update(board, state);
  });
})();
