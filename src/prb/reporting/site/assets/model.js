// One model: where it is right, for which users, its biases and calibration, failures and cost.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, points, stars, interval, count, number, pValue, words } = prb;
  const LINES = [{ at: 0.5, kind: "half" }];

  const card = (title, ...children) => h("section", { class: "card" }, h("h2", {}, title), children);
  const soft = (text) => h("p", { class: "soft" }, text);

  function facts(entries) {
    return h("dl", { class: "facts" }, entries.filter(Boolean).map(([name, value, more, says]) => h("div", { title: says }, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null))));
  }

  function bounds(e, text = percent) {
    return e && e.low !== null && e.low !== undefined ? `95\u00a0%: ${text(e.low)} to ${text(e.high)}` : "";
  }

  const say = (m) => (m.unit === "points" ? points : m.unit === "share" ? percent : number);

  function head(d, condition, metrics) {
    const r = d.conditions[condition], change = Object.fromEntries(d.contrasts.map((c) => [c.kind, c]));
    const fact = (m) => {
      const measured = m.needs.length ? change[m.key] : r[m.key], e = typeof measured === "number" ? { value: measured } : measured;
      if (!e || e.value === null) return null;
      const about = m.unit === "points" && m.needs.length ? `${m.needs.join(" − ")}; ${bounds(e, points)}` : m.reference || bounds(e, say(m));
      return [m.label, say(m)(e.value) + stars(e.p_holm), about, m.says];
    };
    return facts([
      [`accuracy, ${condition}`, percent(r.accuracy.value), `${bounds(r.accuracy)}${r.accuracy.ties ? `; ${count(r.accuracy.ties)} ties` : ""}`],
      ...metrics.filter((m) => m.needs.length).map(fact),
      ...metrics.filter((m) => !m.needs.length && m.key !== "accuracy").map(fact),
      r.accuracy.failed > 0 && ["failed", count(r.accuracy.failed), `of ${count(r.accuracy.n + r.accuracy.failed)}`],
    ]);
  }

  function estimates(found, condition, href) {
    return charts.bars(Object.entries(found).map(([name, e]) => ({
      name: words(name), lanes: [{ ...e, kind: condition }], text: `${interval(e)} · n ${count(e.n)}`, href: href && href(name),
    })), { lines: LINES });
  }

  function conditions(d) {
    const rows = Object.entries(d.conditions).map(([c, r]) => ({ name: c, lanes: [{ ...r.accuracy, kind: c }], text: interval(r.accuracy) }));
    return card("By condition", charts.bars(rows, { lines: LINES }), soft("Accuracy in %, on a scale from 0 to 100; the gray line is 50 %."));
  }

  function groups(d, condition, explore, data) {
    const r = d.conditions[condition], found = [];
    if (Object.keys(r.by_category).length) found.push(card("By category", estimates(r.by_category, condition, (name) => explore({ category: name }))));
    if (Object.keys(r.by_tier).length) found.push(card("By tier", estimates(r.by_tier, condition, (name) => explore({ tier: name })), data.conditions.includes("oracle") ? soft("How directly the posts state what the rubric asks for.") : null));
    for (const [name, group] of Object.entries(r.by_group)) {
      found.push(card(`By ${words(name)}`, estimates(group.groups, condition), group.gap === null ? null : soft(`Best to worst: ${percent(group.gap)} points; worst: ${group.worst}.`)));
    }
    return found;
  }

  const keyed = (bins) => Object.fromEntries(bins.map((b) => [b.label, b]));

  function history(d, condition, missing) {
    const bins = d.conditions[condition].by_history;
    if (!bins) return card("By length of the history", soft(`Unknown. ${missing}`));
    const said = bins.length > 1 ? "Number of posts the user has written." : `All users have ${bins[0].label} posts, so the effect of length cannot be estimated.`;
    return card("By length of the history", estimates(keyed(bins), condition), soft(said));
  }

  function users(d, names, condition, explore) {
    const means = d.conditions[condition].people, known = means.map((m, n) => ({ mean: m, n })).filter((p) => p.mean !== null);
    if (!known.length) return card("By user", soft("No pair was answered."));
    const spread = d.conditions[condition].users, single = names.pairs.every((n) => n === 1);
    const worst = [...known].sort((a, b) => a.mean - b.mean || names.pairs[b.n] - names.pairs[a.n]).slice(0, 8);
    const rows = worst.map((p) => [h("a", { href: explore({ user: names.names[p.n] }) }, names.names[p.n]), percent(p.mean), count(names.pairs[p.n])]);
    return card("By user",
      charts.dots(known.map((p) => p.mean), { kind: condition, title: "Accuracy for every user", alt: `Accuracy for ${count(known.length)} users, mean ${percent(spread.mean)}, worst tenth ${percent(spread.worst_decile)}` }),
      soft(`${single ? "Every user has one pair, so each is right or wrong. " : "One dot per user. "}Mean ${percent(spread.mean)}, standard deviation ${percent(spread.spread)}, worst tenth ${percent(spread.worst_decile)}.`),
      single ? null : [h("h3", {}, "Lowest accuracy"), h("div", { class: "wide" }, table([{ label: "user", left: true }, { label: "accuracy, %" }, { label: "pairs" }], rows)), h("p", {}, h("a", { href: explore({}, "users.html") }, "all users, with intervals"))]);
  }

  function length(d, condition) {
    const bias = d.conditions[condition].biases.length;
    if (!bias) return card("Length", soft("Nothing was answered."));
    const rows = { "chosen is longer": bias.chosen_longer, "chosen is shorter": bias.chosen_shorter };
    const equal = bias.accuracy_at_equal_length;
    return card("Length", estimates(rows, condition),
      soft(equal === null ? "Accuracy at equal length cannot be estimated." : `Estimated accuracy at equal length: ${percent(equal)} % (logistic regression on the log length ratio; slope ${number(bias.slope, 2)} per standard deviation, positive if it prefers longer answers).`));
  }

  function position(d, condition) {
    const bias = d.conditions[condition].biases.position;
    if (!bias) return card("Position", soft("It scores each answer on its own, or was asked in one order only, so it has no position bias."));
    return card("Position", facts([["same answer in both orders", `${percent(bias.consistency)} %`, `${count(bias.n)} pairs`],
      ["first answer preferred", bias.first_share === null ? "–" : `${percent(bias.first_share)} %`, "50 without bias"]]));
  }

  function calibration(d, condition) {
    const found = d.conditions[condition].biases.calibration;
    if (!found) return card("Calibration", soft("There are no margins to calibrate, or fewer than five users."));
    const most = Math.max(...found.curve.map((b) => b.n));
    const points_ = found.curve.map((b) => ({ x: b.confidence, y: b.accuracy, r: 2.5 + 6 * Math.sqrt(b.n / most), label: `${count(b.n)} pairs`, named: false }));
    return card("Calibration", charts.plot({
      series: [{ name: "bins", kind: condition, points: points_ }], lines: [{ from: [0.5, 0.5], to: [1, 1] }], width: results.room(520), height: 280,
      x: { label: "confidence σ(|margin| / T), %", from: 0.5, to: 1, ticks: [0.5, 0.6, 0.7, 0.8, 0.9, 1], text: (v) => percent(v, 0) },
      y: { label: "right, %", from: Math.min(0.3, ...points_.map((p) => p.y)), to: 1, text: (v) => percent(v, 0) },
      title: "Calibration curve", alt: `Calibration: ${found.curve.map((b) => `confidence ${percent(b.confidence, 0)}, right ${percent(b.accuracy, 0)}, ${b.n} pairs`).join("; ")}`,
    }), soft(`Expected calibration error ${percent(found.ece)} points, Brier score ${number(found.brier)}. T is fitted on other users; the area of a dot is its number of pairs. A calibrated model is on the dashed line.`));
  }

  function margins(d, condition) {
    const { margins: found, by_margin: bins } = d.conditions[condition];
    if (!found) return card("Margins", soft("There are no margins, or all are zero."));
    const { counts, reach, scale, zeros } = found, step = (2 * reach) / counts.length, at = (n) => -reach + n * step, right = counts.slice(counts.length / 2).reduce((a, b) => a + b, 0);
    const total = counts.reduce((a, b) => a + b, 0) + zeros, all = bins.reduce((sum, b) => sum + b.n, 0);
    let below = 0;
    const curve = bins.map((b) => ({ x: (below += b.n) / all, y: b.value, low: b.low, high: b.high, named: false, label: `|margin| ${number(b.from / scale, 2)} to ${number(b.to / scale, 2)}, ${count(b.n)} pairs` }));
    return card("Margins",
      charts.histogram(counts.map((n, k) => ({ n, kind: at(k) < -1e-9 ? "bad" : "good", label: `${number(at(k), 3)} to ${number(at(k + 1), 3)}: ${count(n)} pairs` })), {
        from: -reach, to: reach, ticks: [-reach, -1, 0, 1, reach], width: results.room(520), text: (v) => (Math.abs(v) === reach ? (v < 0 ? `≤ −${reach}` : `≥ ${reach}`) : number(v)), label: "margin, in typical margins (median size)",
        title: "Histogram of margins", alt: `Histogram of margins: ${count(right)} of ${count(total)} prefer the chosen answer, ${count(total - right - zeros)} the rejected one, ${count(zeros)} are zero` }),
      soft(`A positive margin prefers the chosen answer. A typical margin of this model is ${number(scale)} on its own scale.${zeros ? ` ${count(zeros)} margins are exactly zero.` : ""}`),
      bins.length > 1 ? [h("h3", {}, "Right by size of the margin"), charts.plot({ series: [{ name: "right", kind: condition, points: curve }], lines: [{ from: [0, 0.5], to: [1, 0.5] }], width: results.room(520), height: 240,
        x: { label: "pairs by |margin|, smallest first, %", from: 0, to: 1.02, ticks: [0.1, 0.3, 0.5, 0.7, 0.9], text: (v) => percent(v, 0) }, y: { label: "right, %", from: Math.min(0.3, ...curve.map((p) => p.low ?? p.y)), to: 1, text: (v) => percent(v, 0) },
        title: "How often it is right, by size of the margin", alt: `How often it is right, by size of the margin, smallest first: ${bins.map((b) => `${percent(b.value, 0)} % of ${count(b.n)}`).join("; ")}` }),
      soft("Deciles of |margin| with 95 % intervals; equal margins stay together. If margins mean anything, the curve rises.")] : soft("All margins have the same size, so size says nothing about being right."));
  }

  function failures(d, condition, explore, ids) {
    const reasons = d.conditions[condition].reasons;
    if (!reasons.length) return card("Failures", soft("None under this condition."));
    const rows = reasons.map((r) => [r.reason, count(r.n), r.pairs.map((p, n) => [n ? ", " : "", h("a", { href: explore({ pair: ids[p] }) }, ids[p])])]);
    return card("Failures", h("div", { class: "wide" }, table([{ label: "reason", left: true }, { label: "pairs" }, { label: "examples", left: true }], rows)), soft("Failures are not scored; they are counted separately."));
  }

  function cost(d) {
    const rows = Object.entries(d.conditions).map(([c, r]) => {
      const x = r.cost;
      return [c, count(x.outcomes), `${number(x.seconds)} s`, x.seconds > 0 ? `${number((1000 * x.seconds) / x.outcomes)} ms` : "–", x.tokens ? count(x.tokens) : "–", x.money ? `$ ${number(x.money)}` : "–", count(r.cut_posts)];
    });
    return card("Cost", h("div", { class: "wide" }, table([{ label: "condition", left: true }, { label: "pairs" }, { label: "time" }, { label: "per pair" }, { label: "tokens" }, { label: "money" }, { label: "posts cut" }], rows)),
      soft("Sums over outcomes: a text that was scored once and reused counts once. – where nothing was recorded."));
  }

  function contrasts(d, data) {
    const found = d.contrasts.filter((c) => data.metrics.some((m) => m.key === c.kind));
    if (!found.length) return null;
    const metric = (c) => data.metrics.find((m) => m.key === c.kind);
    const named = (m) => m.label + ({ points: ", points", share: ", %" }[m.unit] || "");
    const rows = found.map((c) => [named(metric(c)), say(metric(c))(c.value) + stars(c.p_holm), c.low === null ? "–" : `${say(metric(c))(c.low)} to ${say(metric(c))(c.high)}`, pValue(c.p), pValue(c.p_holm), c.smallest_detectable === null ? "–" : percent(c.smallest_detectable), c.n ? count(c.n) + (c.dropped ? `, ${count(c.dropped)} dropped` : "") : "–"]);
    return card("Effect of the user's history", h("div", { class: "wide" }, table([{ label: "contrast", left: true }, { label: "value" }, { label: "95 %" }, { label: "p" }, { label: "p (Holm)" }, { label: "detectable" }, { label: "pairs" }], rows)),
      soft(`${data.metrics.filter((m) => found.some((c) => c.kind === m.key)).map((m) => `${m.label}: ${m.says}.`).join(" ")} Detectable: the smallest difference, in points, that this many pairs detect with 80 % power. Holm over the models of the run.`));
  }

  prb.run(async (site, state) => {
    const data = prb.dataset(site), asked = data.models.findIndex((m) => m.name === state.model), n = asked < 0 ? data.leader : asked, model = data.models[n];
    const [d, names, pairs] = await Promise.all([prb.load(`${data.id}/model-${n}`), prb.load(`${data.id}/people`), prb.load(`${data.id}/pairs`)]);
    const condition = d.conditions[state.condition] ? state.condition : d.conditions[data.shown] ? data.shown : Object.keys(d.conditions)[0];
    const explore = (wanted, page = "pairs.html") => link({ data: data.id, condition, model: model.name, ...wanted }, page);
    const choose = h("select", { id: "model-choice", onchange: () => go({ model: choose.value }) });
    const under = h("select", { id: "condition", onchange: () => go({ condition: under.value }) });
    options(choose, data.models.map((m) => [m.name, m.name]), model.name);
    options(under, Object.keys(d.conditions).map((c) => [c, c]), condition);
    document.title = `${model.name} · ${site.title}`;
    put("model", h("h1", {}, model.name),
      h("p", { class: "soft" }, `${data.label}. Run ${model.run}; ${[model.source, model.seen].filter(Boolean).join(", ")}${model.source === "live" && !model.blind ? `, up to ${model.k} picked by ${model.ranker}` : ""}${model.protocol === "paper" ? "; procedure of the paper's scripts" : ""}. `,),
      h("div", { class: "controls" }, h("label", {}, "Model", choose), h("label", {}, "Condition", under),
        h("span", { class: "end" }, h("a", { href: explore({ show: "wrong" }) }, "pairs it gets wrong"), h("a", { href: link({ data: data.id, a: model.name, condition }, "compare.html") }, "compare with another model"))),
      head(d, condition, [...data.metrics, ...data.others]),
      h("div", { class: "cards" }, conditions(d), contrasts(d, data), groups(d, condition, explore, data), history(d, condition, data.missing), users(d, names, condition, explore),
        margins(d, condition), calibration(d, condition), length(d, condition), position(d, condition), failures(d, condition, explore, pairs.ids), cost(d)));
  });
})();
