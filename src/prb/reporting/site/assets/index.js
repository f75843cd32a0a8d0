// The leaderboard: the verdict, then models × conditions with intervals, control, gain, twins; by control, or as chosen.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, points, stars, interval, count, words, copy } = prb;
  const LENGTH = "length:equal length";  // shown like a slice of the rows

  function view(data, state) {
    const slices = ["all", LENGTH, ...data.categories.map((c) => `category:${c}`), ...data.tiers.map((t) => `tier:${t}`)];
    const condition = data.conditions.includes(state.condition) ? state.condition : data.shown;
    const slice = state.length ? LENGTH : state.tier ? `tier:${state.tier}` : state.category ? `category:${state.category}` : "all";
    const [key, order] = (state.sort || `${state.condition || !data.ranked || slice === LENGTH ? condition : data.ranked}.down`).split(".");
    return { condition, slice: slices.includes(slice) ? slice : "all", q: state.q || "", sort: { key, down: order !== "up" } };
  }

  const value = (estimate) => (estimate && estimate.value !== null && estimate.value !== undefined ? estimate.value : null);

  function rows(data, board, v) {
    return data.models.map((model, n) => {
      const numbers = board.slices[v.slice][n];
      return {
        n, model, numbers, letters: v.slice === "all" && v.sort.key !== data.ranked ? board.letters[v.condition][n] : "",
        rank: v.slice === "all" && v.sort.key === data.ranked ? board.ranks[n] : null,
        accuracy: numbers.accuracy,
        metrics: Object.fromEntries(data.metrics.map((m) => [m.key, m.needs.length ? numbers[m.key] : numbers[m.key][v.condition]])),
        failed: Object.values(numbers.accuracy).reduce((sum, e) => sum + e.failed, 0),
      };
    });
  }

  function columns(data, all) {
    const found = [{ key: "model", label: "model", left: true, of: (r) => r.model.name.toLowerCase(), text: (r) => r.model.name }];
    if (all.some((r) => r.letters)) found.push({ key: "group", label: "group", left: true, title: "models that share a letter do not differ significantly", of: (r) => r.letters, text: (r) => r.letters });
    if (all.some((r) => r.rank)) found.push({ key: "rank", label: "rank", left: true, title: `the ranks by ${data.ranked} that the tests leave open`, of: (r) => (r.rank ? r.rank[0] : null), text: ranks });
    const measured = data.metrics.filter((m) => all.some((r) => r.metrics[m.key])).map((m) => (
      { key: m.key, label: m.label, title: m.says, of: (r) => value(r.metrics[m.key]), text: (r) => shown(m, r.metrics[m.key]), more: m.needs.length ? (r) => bounds(r.metrics[m.key]) : null }));
    found.push(...measured.filter((m) => m.key === data.ranked));
    for (const c of data.conditions) found.push({ key: c, label: c, title: data.meanings[c], of: (r) => value(r.accuracy[c]), text: (r) => interval(r.accuracy[c]) });
    found.push(...measured.filter((m) => m.key !== data.ranked));
    if (all.some((r) => r.failed)) found.push({ key: "failed", label: "failed", of: (r) => r.failed, text: (r) => count(r.failed) });
    return found;
  }

  const ranks = (r) => (!r.rank ? "–" : r.rank[0] === r.rank[1] ? String(r.rank[0]) : `${r.rank[0]}–${r.rank[1]}`);
  const LEVEL = 0.05;
  const says = (e) => (value(e) === null || e.p_holm === null || e.p_holm === undefined ? null : e.p_holm >= LEVEL ? "○ not shown" : e.value > 0 ? "● personalizes" : "▽ reversed");
  const shown = (m, e) => (value(e) === null ? "–" : (m.unit === "points" ? points(e.value) : m.unit === "share" ? percent(e.value) : e.value.toFixed(3)) + (m.tested ? stars(e.p_holm) : ""));
  const bounds = (c) => (value(c) === null || c.low === null ? "" : `[${points(c.low)}, ${points(c.high)}]`);

  function sorted(list, cols, sort) {
    const column = cols.find((c) => c.key === sort.key) || cols[0];
    const sign = sort.down ? -1 : 1;
    return [...list].sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * sign || a.n - b.n;
    });
  }

  // floors and ceiling: what to compare a number with
  function references(data, all, condition) {
    const floors = {};  // of a floor that is in several runs, the best
    for (const r of all) {
      const at = value(r.accuracy[condition]);
      if (r.model.floor && r.model.spec !== "constant" && at !== null) floors[r.model.spec] = Math.max(at, floors[r.model.spec] ?? 0);
    }
    const lines = Object.entries(floors).map(([label, at]) => ({ at, label, kind: "floor" }));
    const best = Math.max(...all.map((r) => value(r.accuracy.oracle) ?? -1));
    if (best >= 0) lines.push({ at: best, label: "ceiling", kind: "ceiling" });
    const merged = [];
    for (const line of lines) {
      const same = merged.find((l) => l.kind === line.kind && Math.abs(l.at - line.at) < 0.004);
      if (same) same.label += `, ${line.label}`; else merged.push(line);
    }
    return merged;
  }

  // from what is shown: intervals of a few points would be specks on 0 to 100
  function range(all, lines) {
    const ends = all.flatMap((r) => Object.values(r.accuracy)).filter((e) => value(e) !== null).flatMap((e) => [e.low, e.high]);
    const from = Math.max(0, Math.floor(10 * Math.min(0.4, ...ends) - 0.01) / 10), to = Math.min(1, Math.ceil(10 * Math.max(0.6, ...ends, ...lines.map((l) => l.at)) + 0.01) / 10);
    const step = to - from > 0.6 ? 0.2 : 0.1, first = Math.ceil(from / step - 1e-9);
    return { from, to, ticks: Array.from({ length: Math.floor((to - from) / step + 1e-9) + 1 }, (_, n) => (first + n) * step).filter((t) => t <= to + 1e-9) };
  }

  function chart(data, row, v, lines, scale) {
    const lanes = data.conditions.filter((c) => row.accuracy[c]).map((c) => ({ ...row.accuracy[c], kind: c, strong: c === v.condition }));
    const said = data.conditions.map((c) => `${c} ${interval(row.accuracy[c])}`).join("; ");
    return charts.strip(lanes, { lines: [{ at: 0.5, kind: "half" }, ...lines], scale, title: row.model.name, alt: `${row.model.name}, accuracy in percent: ${said}` });
  }

  function grid(data, board, v) {
    const all = rows(data, board, v), cols = columns(data, all), lines = references(data, all, v.condition), scale = range(all, lines);
    const wanted = v.q.toLowerCase();
    const shown = sorted(all.filter((r) => r.model.name.toLowerCase().includes(wanted)), cols, v.sort);
    const at = cols.findIndex((c) => c.key === data.conditions[0]);
    const heads = [...cols];
    heads.splice(at, 0, { label: [h("span", { class: "offstage" }, "accuracy, %"), charts.axis({ scale, ticks: scale.ticks, lines })], chart: true, left: true });
    const body = shown.map((r) => heads.map((c) => (c.chart ? chart(data, r, v, lines, scale) : cell(data, c, r, v))));
    const drawn = table(heads, body, { sort: v.sort, onsort: (key) => go({ sort: `${key}.${(v.sort.key === key ? !v.sort.down : natural(key)) ? "down" : "up"}` }) });
    drawn.className = "board";
    return { drawn, cols, shown };
  }

  const natural = (key) => !["model", "group", "rank"].includes(key);  // numbers best first, names from a

  function cell(data, column, r, v) {
    if (column.key === "model") {
      return [h("a", { href: link({ data: data.id, model: r.model.name, condition: v.condition }, "model.html") }, r.model.name),
        r.model.blind ? h("span", { class: "badge", title: "never sees the user" }, "user-blind") : null,
        r.model.card ? h("small", { class: "quiet" }, [r.model.card.size, r.model.card.license, r.model.card.date && r.model.card.date.slice(0, 4)].filter(Boolean).join(" · ")) : null,
        r.model.recorded ? h("span", { class: "badge", title: "scores that were given elsewhere" }, "recorded") : null];
    }
    if (column.key === "group") return h("span", { class: "letters" }, column.text(r));
    const estimate = r.accuracy[column.key];
    const lit = column.key === v.sort.key || (column.key === v.condition && v.sort.key !== data.ranked) ? "lit" : null;
    if (!estimate) {
      return [h("span", { class: lit }, column.text(r)), column.more && column.more(r) ? h("small", { class: "quiet" }, column.more(r)) : null,
        column.key === data.ranked && !r.model.reference && says(r.metrics[column.key]) ? h("small", { class: "says" }, says(r.metrics[column.key])) : null];
    }
    return h("span", { class: lit }, percent(estimate.value),
      h("small", { class: "quiet" }, value(estimate) === null || estimate.low === null ? "" : `[${percent(estimate.low)}, ${percent(estimate.high)}]`));
  }

  // numbers of others: a table of its own, so that nothing sorts, ranks or tests them with ours
  function published(list) {
    const text = (name) => ({ label: name, left: true, wrap: true, of: (r) => r[name] });
    const heads = [{ label: "model", left: true, of: (r) => [r.model, h("span", { class: "badge" }, "published")] }, { label: "percent", of: (r) => percent(r.value) },
      text("metric"), text("condition"), { label: "rows", of: (r) => r.rows && count(r.rows) }, text("source"), text("note")].filter((c) => list.some((r) => c.of(r)));
    const body = list.map((r) => heads.map((c) => c.of(r) || "–"));
    const drawn = table(heads, body);
    drawn.className = "board published";
    return [h("h2", {}, "Published results"),
      h("p", { class: "soft" }, "As others published them on this dataset, not run here: their procedure may differ, and they take no part in ranks, intervals, tests and groups."),
      h("div", { class: "card boardcard" }, h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Published results" }, drawn))];
  }

  // --- the table as text ---
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
      onclick: (event) => { const { cols, shown } = current(); copy(format(cols.map((c) => c.label), shown.map((r) => cols.map((c) => c.text(r)))), event.currentTarget); },
    }, name));
  }

  function notes(data, v, board) {
    const said = ["Accuracy in percent with a 95 % interval clustered by user; a tie counts half, failures are left out."];
    if (v.slice === LENGTH) said.push("Length-controlled: what accuracy would be if both answers were equally long, by a logistic regression on the log length ratio within each model and condition; the interval is clustered. Gain and control are not length-controlled and not shown.");
    const { noise_ceiling: noise } = data.about;
    if (noise) said.push(`Noise ceiling: test-retest agreement is ${percent(noise.agreement)} % (${count(noise.n)} pairs of votes by one user on the same prompt and answers); accuracies are not corrected for it.`);
    else if (noise === null) said.push("Noise ceiling: unknown, since nobody voted twice on the same prompt and answers.");
    for (const m of data.metrics) {
      const there = board.slices.all.some((r) => r[m.key] && (m.needs.length || Object.keys(r[m.key]).length));
      if (there) said.push(`${m.label}${m.needs.length ? "" : ` under ${v.condition}`}: ${m.says}.`);
    }
    if (data.metrics.some((m) => m.tested)) said.push("Stars: p < .05, .01, .001 after Holm over the models. Within a category or tier contrasts have intervals but no tests.");
    if (data.ranked) said.push(`● the difference is shown, ○ not shown: by p after Holm, 5 %. Rank: the ranks by ${data.ranked} that paired tests of every two models leave open.`);
    if (data.models.length > 1 && v.sort.key !== data.ranked) said.push(v.slice === "all" ? `Group: models that share a letter do not differ significantly under ${v.condition} (paired tests of every two models, Holm, 5 %).` : "Groups are shown for all rows only.");
    if (data.models.some((m) => m.protocol === "paper")) said.push("Some runs reproduce the procedure of the paper's scripts, including its errors, for comparison with published numbers.");
    for (const m of data.models) for (const warning of m.warnings || []) said.push(`${m.name} ${warning}.`);
    said.push("Lines: floors are trivial baselines; the ceiling is the best model that is shown the true rubric.");
    return said;
  }

  function frame(data) {
    let current = {};
    const category = h("select", { id: "category", onchange: () => go({ category: category.value, tier: null, length: null }) });
    const tier = h("select", { id: "tier", onchange: () => go({ tier: tier.value, category: null, length: null }) });
    const condition = h("select", { id: "condition", onchange: () => go({ condition: condition.value, sort: null }) });
    const equal = h("input", { type: "checkbox", id: "length", onchange: () => go({ length: equal.checked ? "1" : null, tier: null, category: null }) });
    const search = h("input", { type: "search", id: "q", placeholder: "model name", oninput: () => go({ q: search.value }, { replace: true }) });
    const ranked = h("select", { id: "ranked", onchange: () => go({ sort: `${ranked.value}.down` }) });
    const body = h("div", { class: "card boardcard" }), said = h("ul", { class: "notes" }), others = h("div", {});
    const label = (text, input) => h("label", {}, text, input);
    const { headline, sentences, size } = data.verdict;
    const about = h("div", { id: "verdict" }, h("p", { class: "lead" }, h("b", {}, headline)), sentences.map((s) => h("p", {}, s)), h("p", { class: "soft" }, size),
      h("details", {}, h("summary", {}, "How to read this"), h("p", {}, "Does a reward model know whose preference it judges? Accuracy counts as personalization only to the extent that the right user's history beats no history and beats another user's history: control is accuracy with the user's own history minus accuracy with somebody else's. That a difference is not shown does not mean that there is none.")));
    const parts = [about, h("div", { class: "controls" },
      label("Ranked by", ranked), label("Condition", condition), data.categories.length ? label("Category", category) : null, data.tiers.length ? label("Tier", tier) : null,
      label("Search", search), data.missing ? null : h("label", { class: "tick", title: "accuracy at equal length of both answers" }, equal, "length-controlled"), h("span", { class: "end", role: "group", "aria-label": "Copy the table" }, h("span", { class: "quiet", "aria-hidden": "true" }, "copy"), copying(() => current),
        h("button", { type: "button", id: "permalink", title: "Copy the address of this view", onclick: (event) => copy(location.href, event.currentTarget) }, "link"))), body, said, others];

    function update(board, v) {
      options(condition, data.conditions.map((c) => [c, `${c}: ${data.meanings[c]}`]), v.condition);
      const [kind, name] = [v.slice.split(":")[0], v.slice.slice(v.slice.indexOf(":") + 1)];
      options(category, [["", "all"], ...data.categories.map((c) => [c, words(c)])], kind === "category" ? name : "");
      options(tier, [["", "all"], ...data.tiers.map((t) => [t, words(t)])], kind === "tier" ? name : "");
      equal.checked = v.slice === LENGTH;
      if (search.value !== v.q) search.value = v.q;
      current = grid(data, board, v);
      options(ranked, current.cols.filter((c) => natural(c.key)).map((c) => [c.key, data.conditions.includes(c.key) ? `accuracy, ${c.label}` : c.label]), v.sort.key);
      put(body, charts.legend(data.conditions.map((c) => ({ name: `${c}: ${data.meanings[c]}`, kind: c }))), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Leaderboard" }, current.drawn),
        current.shown.length ? null : h("p", { class: "soft" }, "No model has this in its name."));
      put(said, notes(data, v, board).map((text) => h("li", {}, text)));
      put(others, board.published ? published(board.published) : null);
    }
    return { parts, update };
  }

  let drawn = { id: null };
  prb.run(async (site, state) => {
    if (!site.datasets.length) { put("board", h("p", { class: "note" }, "There is no evaluation on pairs here. See the other pages, or the tables below.")); return; }
    const data = prb.dataset(site), board = await prb.load(`${data.id}/board`);
    if (drawn.id !== data.id) {
      drawn = { id: data.id, ...frame(data) };
      put("board", drawn.parts);
    }
    drawn.update(board, view(data, state));
  });
})();
