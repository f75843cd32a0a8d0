// The ranking without some users: a slider over what was computed when the site was built.
"use strict";

(() => {
  const { h, put, options, table, go, percent, number, count, words } = prb;
  const MODES = { random: "drawn at random", favorable: "that favor the leader most" };

  function estimate(d, found, step, mode, n) {
    if (mode === "favorable") return { value: found.favorable[step][n], low: null, high: null };
    const r = found.random[step];
    return { value: r.value[n], low: d.steps[step] ? r.low[n] : null, high: d.steps[step] ? r.high[n] : null };
  }

  function verdict(d, found, step, mode, name, unit) {
    const k = d.steps[step], leader = found.ranked[0], second = found.ranked[1];
    if (!k) return `With all ${count(d.clusters)} ${unit}, ${name(leader)} is first.`;
    if (mode === "random") {
      const share = found.random[step].first[leader];
      return `Without ${count(k)} of ${count(d.clusters)} ${unit}, drawn at random, ${name(leader)} is first in ${percent(share)} % of ${count(d.draws)} draws.`;
    }
    const values = found.favorable[step], best = Math.max(...values.filter((v) => v !== null)), stays = values[leader] === best;
    return `Without the ${count(k)} ${unit} in which ${name(leader)} is furthest ahead of ${name(second)}, ${stays ? `${name(leader)} is still first` : `${name(values.indexOf(best))} is first`}.`;
  }

  // the same for every k, so that dots move when the slider does
  function range(found) {
    const ends = [...found.random.flatMap((r) => [...r.low, ...r.high]), ...found.favorable.flat()].filter((x) => x !== null);
    return { from: Math.floor(10 * Math.min(0.4, ...ends) + 1e-9) / 10, to: Math.ceil(10 * Math.max(0.6, ...ends) - 1e-9) / 10 };
  }

  function bars(d, found, step, mode, name) {
    const values = found.models.map((_, n) => ({ n, e: estimate(d, found, step, mode, n) })).sort((a, b) => (b.e.value ?? -1) - (a.e.value ?? -1) || found.ranked.indexOf(a.n) - found.ranked.indexOf(b.n));
    const scale = range(found);
    return charts.bars(values.map(({ n, e }) => ({
      name: name(n), lanes: [{ ...e, kind: n === found.ranked[0] ? "profile" : "none" }],
      text: mode === "random" && d.steps[step] ? `${percent(e.value)} · first in ${percent(found.random[step].first[n], 0)} %` : percent(e.value),
    })), { lines: [{ at: 0.5, kind: "half" }], scale });
  }

  function curve(d, found, step, name, unit) {
    const rivals = found.ranked.slice(0, 4).filter((n) => found.random.some((r) => r.first[n] > 0));
    const series = rivals.map((n, i) => ({ name: name(n), kind: charts.series(i), points: found.random.map((r, s) => ({ x: d.steps[s], y: r.first[n] })), marks: d.steps.length < 12 }));
    return [charts.legend(rivals.map((n, i) => ({ name: name(n), kind: charts.series(i) }))), charts.plot({ series, x: { label: `${unit} left out at random`, from: 0, to: d.steps.at(-1) }, y: { label: "first, % of draws", from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], text: (v) => percent(v, 0) },
      lines: [{ from: [d.steps[step], 0], to: [d.steps[step], 1] }], width: results.room(520), height: 260, title: "How often a model is first", alt: `How often a model is first: ${rivals.map((n) => `${name(n)} ${percent(found.random.at(-1).first[n])} % of draws without ${count(d.steps.at(-1))} ${unit}`).join("; ")}` })];
  }

  function rivals(d, found, name, unit) {
    const rows = found.ranked.slice(1).map((n) => [name(n), found.overtaken[n] === null ? "never" : count(found.overtaken[n]), found.overtaken[n] === null ? "–" : percent(found.overtaken[n] / d.clusters)]);
    return h("section", { class: "card" }, h("h2", {}, "How few can overturn it?"), h("div", { class: "wide" }, table([{ label: "rival", left: true }, { label: unit }, { label: "% of all" }], rows)),
      h("p", { class: "soft" }, `The fewest ${unit} without which ${name(found.ranked[0])} is no longer ahead of the rival, over the pairs that both answered. This is the worst case, not what chance would do; 0 means they are level already.`));
  }

  function halves(found) {
    const r = found.split_half;
    return h("section", { class: "card", id: "halves" }, h("h2", {}, "Split-half rank correlation"),
      r ? [h("dl", { class: "facts" }, h("div", {}, h("dt", {}, "Spearman's ρ between halves"), h("dd", {}, number(r.value, 2), h("small", {}, `95\u00a0% of ${count(r.draws)} draws: ${number(r.low, 2)} to ${number(r.high, 2)}`)))),
        h("p", { class: "soft" }, "The clusters are split in two at random, all models are ranked on each half, and the two rankings are compared: 1 if they agree, 0 if they have nothing to do with each other. Halves are half as large as the dataset, so the ranking on all of it is somewhat more stable. Models that are equally good by construction lower it.")]
        : h("p", { class: "soft" }, "This needs three models that are not all tied."));
  }

  function frame(data, d, alone) {
    const unit = alone ? "users" : "clusters";
    const condition = h("select", { id: "condition", onchange: () => go({ condition: condition.value }) });
    const mode = h("select", { id: "mode", onchange: () => go({ mode: mode.value }) });
    const slider = h("input", { type: "range", id: "k", min: 0, max: d.steps.length - 1, step: 1, oninput: () => go({ k: String(d.steps[slider.value]) }, { replace: true }) });
    const usual = Math.max(0, d.steps.findIndex((k) => k >= d.clusters / 10));  // a tenth: with all of them there is nothing to see
    const shown = h("output", { for: "k", id: "k-shown" }), lead = h("p", { class: "lead", id: "verdict", "aria-live": "polite" }), body = h("div", {});
    const parts = [h("p", { class: "soft" }, data.label, alone ? "" : `, ${count(d.clusters)} clusters (linked users, such as twins, count as one).`),
      h("div", { class: "controls" }, h("label", {}, "Condition", condition), h("label", {}, "Left out", mode), h("label", { class: "slider" }, h("span", {}, `Without k ${unit}: `, shown), slider)), lead, body];

    function update(state) {
      const under = d.conditions[state.condition] ? state.condition : d.conditions[data.shown] ? data.shown : data.conditions.find((c) => d.conditions[c]);
      const how = MODES[state.mode] ? state.mode : "random", step = state.k === undefined ? usual : Math.max(0, d.steps.indexOf(Number(state.k)));
      options(condition, data.conditions.filter((c) => d.conditions[c]).map((c) => [c, c]), under || "");
      options(mode, Object.entries(MODES).map(([key, label]) => [key, `${unit} ${label}`]), how);
      slider.value = step;
      slider.setAttribute("aria-valuetext", `${d.steps[step]} ${unit}`);
      put(shown, String(d.steps[step]));
      if (!under) { put(lead, "This needs two models that answered something."); put(body); return; }
      const found = d.conditions[under], name = (n) => data.models[found.models[n]].name;
      put(lead, verdict(d, found, step, how, name, unit));
      const scale = range(found), on = `on a scale from ${percent(scale.from, 0)} to ${percent(scale.to, 0)} (the line is 50 %)`;
      put(body, h("section", { class: "card", "aria-label": "Accuracy of the models" }, bars(d, found, step, how, name),
        h("p", { class: "soft" }, how === "random" ? `Mean accuracy in % over draws and the range of the central 95 % of them, ${on}. This range is about leaving out, not about other users: it is no confidence interval.` : `Accuracy in % on what remains, ${on}.`)),
      h("div", { class: "cards" }, h("section", { class: "card" }, h("h2", {}, "Who is first without k?"), curve(d, found, step, name, unit)), halves(found), rivals(d, found, name, unit)));
    }
    return { parts, update };
  }

  let drawn = { id: null };
  prb.run(async (site, state) => {
    const data = prb.dataset(site), d = await prb.load(`${data.id}/stability`);
    if (drawn.id !== data.id) {
      drawn = { id: data.id, ...frame(data, d, data.about.clusters === data.about.users) };
      put("stability", drawn.parts);
    }
    drawn.update(state);
  });
})();
