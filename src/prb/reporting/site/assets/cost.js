// Accuracy or control against what a pair costs: money, tokens or seconds.
"use strict";

(() => {
  const { h, put, options, table, go, link, percent, points, number, count } = prb;
  const UNITS = {
    money: { name: "money", label: "US dollars per pair", text: (x) => `$ ${number(x, 2)}` },
    tokens: { name: "tokens", label: "tokens per pair", text: (x) => count(Number(x.toPrecision(3))) },
    seconds: { name: "time", label: "time per pair", text: (x) => (x < 1e-3 ? `${number(1e6 * x, 2)} µs` : x < 1 ? `${number(1e3 * x, 2)} ms` : `${number(x, 3)} s`) },
  };
  const QUALITIES = { accuracy: { label: "accuracy, %", text: percent, tick: (v) => percent(v).replace(/\.0$/, "") }, control: { label: "control, points", text: points, tick: (v) => points(v).replace(/\.0$/, "") } };

  function powers(values) {
    const [low, high] = [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
    return Array.from({ length: high - low + 1 }, (_, n) => 10 ** (low + n));
  }

  function chart(all, quality, unit) {
    const q = QUALITIES[quality], u = UNITS[unit], xs = all.map((p) => p.x), log = Math.max(...xs) > 20 * Math.min(...xs), ticks = powers(xs);
    const x = log ? { label: `${u.label} (log scale)`, log, from: ticks[0], to: ticks.at(-1), ticks } : { label: u.label, from: 0, to: 1.12 * Math.max(...xs) };
    return charts.frontier(all, { x: { ...x, text: u.text, better: "lower" }, y: { label: q.label, text: q.tick }, lines: quality === "accuracy" ? [] : [{ from: [x.from, 0], to: [x.to, 0] }], width: results.room(1180), title: `${q.label} against ${u.label}` });
  }

  function listing(all, best, data, quality, unit, condition) {
    const rows = [...all].sort((a, b) => b.y - a.y || a.x - b.x).map((p) => [h("a", { href: link({ data: data.id, model: p.label, condition }, "model.html") }, p.label),
      QUALITIES[quality].text(p.y), p.low === null ? "–" : `${QUALITIES[quality].text(p.low)} to ${QUALITIES[quality].text(p.high)}`, UNITS[unit].text(p.x), best.includes(p) ? "✓" : ""]);
    return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Cost and quality" },
      table([{ label: "model", left: true }, { label: QUALITIES[quality].label }, { label: "95 %" }, { label: UNITS[unit].label }, { label: "on the front" }], rows));
  }

  prb.run(async (site, state) => {
    const data = prb.dataset(site), [board, costs] = await Promise.all([prb.load(`${data.id}/board`), prb.load(`${data.id}/cost`)]), numbers = board.slices.all;
    const qualities = Object.keys(QUALITIES).filter((q) => q === "accuracy" || numbers.some((r) => r.control && r.control.value !== null));
    const quality = qualities.includes(state.quality) ? state.quality : qualities.at(-1);
    const condition = quality === "control" ? "profile" : data.conditions.includes(state.condition) ? state.condition : data.shown;
    const units = Object.keys(UNITS).filter((u) => costs.some((c) => c[condition] && c[condition][u])), unit = units.includes(state.unit) ? state.unit : units[0];
    const found = data.models.map((m, n) => { const e = quality === "control" ? numbers[n].control : numbers[n].accuracy[condition]; return { label: m.name, asked: Boolean(e), y: e ? e.value : null, low: e ? e.low : null, high: e ? e.high : null, x: costs[n][condition] && costs[n][condition][unit] }; });
    const all = found.filter((p) => p.x && p.y !== null), left = found.filter((p) => p.asked && !all.includes(p)), drawn = all.length ? chart(all, quality, unit) : null;
    const select = (id, choices, value, key = id) => { const s = h("select", { id, onchange: () => go({ [key]: s.value }) }); options(s, choices, value); return s; };
    put("cost", h("p", { class: "soft" }, data.label), h("div", { class: "controls" },
      h("label", {}, "Quality", select("quality", qualities.map((q) => [q, q]), quality)),
      units.length ? h("label", {}, "Cost", select("unit", units.map((u) => [u, UNITS[u].name]), unit)) : null,
      quality === "control" ? null : h("label", {}, "Condition", select("condition", data.conditions.map((c) => [c, c]), condition))),
    drawn ? [h("section", { class: "card roomy", "aria-label": "Chart" }, drawn.node), h("section", { class: "card" }, listing(all, drawn.best, data, quality, unit, condition))]
      : h("p", { class: "note" }, `No cost was recorded under ${condition}.`),
    left.length && unit ? h("p", { class: "soft", id: "left" }, `Not drawn, since no ${UNITS[unit].name} was recorded or nothing was answered: ${left.map((p) => p.label).join(", ")}.`) : null,
    h("ul", { class: "notes" }, [`Cost is what was measured under ${condition}, divided by its pairs; it holds only what this run had to compute. A text scored once and reused counts once, and what comes from the cache costs nothing.`,
      "Bars are 95 % intervals. A front of estimates is an estimate: neighbors whose intervals overlap may trade places.",
      "Time depends on the machine and on what ran at once; compare it within a run."].map((text) => h("li", {}, text))));
    const svg = document.querySelector("#cost svg");
    if (svg) results.untangle(svg);
  });
})();
