// Best-of-N, PPO, and whether a benchmark predicts them.
"use strict";

(() => {
  const { h, put } = prb, { textTable, facts, trust, plain, room, share, cell, minus } = results;
  const last = (list) => list[list.length - 1];
  const worth = (result) => last(result.headroom).value ?? -Infinity;

  // --- best-of-N ---
  function bon(run, state) {
    const order = run.results.map((r, n) => ({ ...r, kind: charts.series(n), dash: n >= 6 }));
    const leader = order.reduce((a, b) => (worth(b) > worth(a) ? b : a));
    const picked = order.find((r) => r.model === state.model) || leader;
    const q = run.queries, s = run.samples, left = q.rows - q.used;
    return h("section", { "aria-label": `Best-of-N: ${run.name}` },
      h("h2", {}, `Best of ${run.n}: ${run.name}`),
      h("p", { class: "soft" }, `${run.policy} answered ${prb.count(q.rows)} queries of ${run.dataset} ${run.n} times each, under condition ${run.condition}. All reward models picked from the same answers.`),
      trust(run.trust),
      facts([["Queries", prb.count(q.used), `${prb.count(q.clusters)} clusters${left ? `; ${left} left out` : ""}`],
        ["Random pick", prb.percent(last(run.random).value), "% of the rubric"],
        [`Oracle pick, best of ${last(run.ks)}`, prb.percent(last(run.oracle).value), "% of the rubric: the upper bound"],
        ["Most headroom", minus(prb.percent(last(leader.headroom).value)), `%, by ${leader.model}`],
        ["Distinct answers", s.distinct_of_n === null ? null : prb.number(s.distinct_of_n, 3), `of ${run.n}; ${prb.count(s.truncated)} of ${prb.count(s.drawn)} truncated`]]),
      h("div", { class: "card" }, axes(state), h("div", { class: "beside" }, curves(run, order, picked, state.x === "kl"), legend(order, picked))),
      h("div", { class: "card" }, ranking(run, order, state), notes(run)),
      contrasts(run));
  }

  function axes(state) {
    const kl = state.x === "kl";
    const choice = (name, on, value) => h("button", { type: "button", "aria-pressed": String(on), onclick: () => prb.go({ x: value }) }, name);
    return h("div", { class: "controls" }, choice("against k", !kl, null), choice("against the KL bound", kl, "kl"));
  }

  function curves(run, order, picked, kl) {
    const at = new Map(run.ks.map((k, n) => [k, kl ? run.kl_bound[n] : k]));
    const points = (curve, wide, bend) => curve.map((p) => ({
      x: at.get(p.k), y: p.value, low: wide ? p.low : null, high: wide ? p.high : null,
      ...(bend && bend.down && bend.peak === p.k ? { hollow: true, r: 6.5 } : {}), ...(bend && bend.down && p === last(curve) ? { label: "▼ below its peak" } : {}),
    }));
    const series = [
      { name: "oracle pick", kind: "oracle", dash: true, marks: false, points: points(run.oracle, false) },
      { name: "random pick", kind: "none", dash: true, marks: false, points: points(run.random, false) },
      ...order.filter((r) => r !== picked), picked].map((r) => (r.points ? r : { name: r.model, kind: r.kind, dash: r.dash, points: points(r.curve, r === picked, r.bend) }));
    const bound = (v) => { const k = run.ks.find((k_) => Math.abs(at.get(k_) - v) < 1e-9); return `${prb.number(v, 3)}${k ? ` (k ${k})` : ""}`; };
    const x = kl
      ? { label: "bound on the KL to the policy, log k − (k−1)/k, nats", ticks: spread(run.kl_bound), text: bound }
      : { label: "k of best-of-k", log: true, from: run.ks[0], to: last(run.ks), ticks: run.ks, text: String };
    const ends = order.map((r) => `${r.model} ${prb.percent(last(r.curve).value)}`).join(", ");
    const svg = charts.plot({
      series, x, y: { label: "graded score, % of the rubric", text: (v) => prb.percent(v, 1) }, width: room(736), height: Math.min(380, 200 + room(736) / 4),
      title: "Expected graded score of best-of-k",
      alt: `Expected graded score of best of ${last(run.ks)} in percent: random pick ${prb.percent(last(run.random).value)}, oracle pick ${prb.percent(last(run.oracle).value)}; ${ends}.`,
    });
    requestAnimationFrame(() => results.untangle(svg));
    return svg;
  }

  // the bounds of small k lie close together: only those that leave room for their numbers
  function spread(bounds) {
    const least = (last(bounds) - bounds[0]) / 7;
    return bounds.filter((b, n) => n === bounds.length - 1 || ((n === 0 || b - bounds[n - 1] >= least) && last(bounds) - b >= least));
  }

  function legend(order, picked) {
    const pick = (r) => h("li", { class: `${r.kind} ${r.dash ? "dashed" : ""}` }, h("button", {
      type: "button", class: "ghost", "aria-pressed": String(r === picked), title: "Show its interval", onclick: () => prb.go({ model: r.model }),
    }, h("i", { "aria-hidden": "true" }), r.model));
    return h("div", {}, h("ul", { class: "legend" },
      h("li", { class: "oracle dashed" }, h("i", { "aria-hidden": "true" }), "oracle pick"),
      h("li", { class: "none dashed" }, h("i", { "aria-hidden": "true" }), "random pick"), order.map(pick)),
    h("p", { class: "soft" }, `Band: 95 % interval of ${picked.model}; choose another model to see its interval. A ring marks a peak after which the curve falls significantly.`));
  }

  const over = (bend) => {
    if (!bend) return "–";
    if (bend.down) return [`▼ after ${bend.peak}`, h("small", {}, `falls by ${prb.percent(bend.drop)}, p ${prb.pValue(bend.p)}`)];
    return bend.drop ? ["no", h("small", {}, `peak at ${bend.peak}, not significant`)] : "no";
  };

  function ranking(run, order, state) {
    const sort = { key: state.sort || "headroom", down: state.up !== "1" };
    const value = { model: (r) => r.model, headroom: worth, bend: (r) => (r.bend ? r.bend.peak : 0), failed: (r) => last(r.curve).failed };
    run.ks.forEach((k, n) => { value[`k${k}`] = (r) => r.curve[n].value ?? -Infinity; });
    const key = value[sort.key] || worth;
    const rows = [...order].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (sort.down ? -1 : 1));
    const columns = [{ key: "model", label: "reward model", left: true },
      ...run.ks.map((k, n) => ({ key: `k${k}`, label: `best of ${k}`, title: `KL to the policy at most ${prb.number(run.kl_bound[n], 3)} nats` })),
      { key: "headroom", label: `headroom at ${last(run.ks)}, %`, title: "Share of the oracle's gain over a random pick" }, { label: "", left: true },
      { key: "bend", label: "over-optimized?", left: true }, { key: "failed", label: "failed" }];
    const ends = run.results.flatMap((r) => [last(r.headroom).low, last(r.headroom).high]).filter((v) => v !== null);
    const scale = { from: Math.min(-0.1, ...ends), to: Math.max(1, ...ends) };
    const lines = [{ at: 0, kind: "half" }, { at: 1, kind: "ceiling" }];
    const body = rows.map((r) => [r.model, ...r.curve.map(cell), cell(last(r.headroom)),
      h("span", { class: "lane" }, charts.strip([{ ...last(r.headroom), kind: r.kind }], { scale, lines, title: r.model, alt: `headroom ${share(last(r.headroom))} percent` })),
      over(r.bend), why(r)]);
    for (const [name, part] of [["random", "0"], ["oracle", "100"]]) body.push([`(${name} pick)`, ...run[name].map(cell), part, "", "–", "–"]);
    body.push(["KL bound, nats", ...run.kl_bound.map((b) => prb.number(b, 3)), "", "", "", ""]);
    return h("div", { class: "wide" }, prb.table(columns, body, {
      caption: "Expected graded score, % of the rubric, exact over all samples; 95 % intervals by cluster", sort,
      onsort: (name) => prb.go({ sort: name, up: sort.key === name && sort.down ? "1" : null }),
    }));
  }

  const why = (r) => {
    const reasons = Object.entries(r.failures).map(([reason, n]) => `${n} ${reason}`).join(", ");
    return reasons ? h("span", { title: reasons }, String(last(r.curve).failed)) : String(last(r.curve).failed);
  };

  function notes(run) {
    const failed = Object.entries(run.queries.failures).map(([reason, n]) => `${reason} (${n})`).join(", ");
    return [h("p", { class: "soft" }, `Headroom: Σ(model − random) / Σ(oracle − random) at k = ${last(run.ks)}. Over-optimized: the score falls significantly from its peak to the end (sign flips, corrected, p < .05).`),
      failed ? h("p", { class: "soft" }, `Queries left out, by reason: ${failed}.`) : null];
  }

  function contrasts(run) {
    if (!run.contrasts.length) return null;
    const rows = run.contrasts.map((c) => [`${c.model_a} − ${c.model_b}`, prb.points(c.value) + prb.stars(c.p_holm),
      c.low === null ? "–" : `[${prb.points(c.low)}, ${prb.points(c.high)}]`, prb.pValue(c.p), prb.pValue(c.p_holm), String(c.n)]);
    const columns = ["models", "points", "95 %", "p", "p (Holm)", "queries"].map((label, n) => ({ label, left: !n }));
    return h("details", {}, h("summary", {}, `${rows.length === 1 ? "The difference" : `All ${rows.length} differences`} at k = ${last(run.ks)}, paired by query`), h("div", { class: "wide" }, prb.table(columns, rows)), trust(run.trust));
  }

  // --- PPO ---
  function ppo(runs) {
    if (!runs.length) return null;
    return [h("h2", {}, "PPO"), h("p", { class: "soft" }, "Held-out prompts, one answer each, before and after training. The reward is the training objective; the grade measures how well answers follow the user's rubric. Rewards of different models are not comparable."),
      overview(runs), runs.map(training)];
  }

  function overview(runs) {
    const columns = [{ label: "run", left: true }, { label: "reward model", left: true }, { label: "steps" }, { label: "KL at the end" }, { label: "reward" }, { label: "p" }, { label: "grade, %" }, { label: "p" }, { label: "" }];
    const rows = runs.map((r) => {
      const d = (name) => (r.held_out[name] ? r.held_out[name].difference : null), reward = d("reward"), grade = d("grade");
      return [r.name, r.model, String(r.train.steps), prb.number(last(r.curves.kl), 3),
        reward ? arrow(r.held_out.reward, (v) => prb.number(v, 3)) : "–", reward ? prb.pValue(reward.p) : "–",
        grade ? arrow(r.held_out.grade, prb.percent) : "not graded", grade ? prb.pValue(grade.p) : "–", r.train.stopped ? "stopped early" : ""];
    });
    return h("div", { class: "card" }, h("div", { class: "wide" }, prb.table(columns, rows)), [...new Set(runs.map((r) => r.trust).filter(Boolean))].map(trust));
  }

  const arrow = (c, say) => `${say(c.before.value)} → ${say(c.after.value)}`;

  function training(r) {
    const t = r.train;
    return h("section", { class: "card", "aria-label": `PPO: ${r.name}` },
      h("h3", {}, r.name), h("p", { class: "soft" }, `${r.policy} against ${r.model} on ${r.dataset}, condition ${r.condition}.`),
      t.stopped ? h("p", { class: "note bad" }, `Stopped early: ${t.stopped}`) : null,
      facts([["Steps", prb.count(t.steps), `${prb.count(t.prompts)} prompts`], ["Answers", prb.count(t.samples), `${prb.count(t.failed)} without a reward, ${prb.count(t.truncated)} truncated`], ["Held-out prompts", prb.count(r.held_out.prompts)]]),
      h("div", { class: "panels" }, r.panels.map(([name, label], n) => panel(r, name, label, charts.series(n)))),
      ["reward", "grade"].filter((name) => r.held_out[name]).map((name) => change(r, name)), r.trust ? trust(r.trust) : null);
  }

  function panel(r, name, label, kind) {
    const values = r.curves[name], said = prb.number(values[0], 3) + " → " + prb.number(last(values), 3);
    return h("figure", { class: "panel" }, h("figcaption", {}, h("b", {}, label), ` ${said}`), charts.plot({
      series: [{ name: label, kind, marks: values.length === 1, points: values.map((y, n) => ({ x: r.curves.step[n], y })) }],
      x: { label: "step" }, y: { label: "" }, width: 330, height: 190, title: label, alt: `${label} over ${r.train.steps} steps: ${said}`,
    }));
  }

  // before and after on one scale; a grade is a share of the rubric, a reward has the unit of its model
  function change(r, name) {
    const c = r.held_out[name], grade = name === "grade", say = grade ? share : plain;
    const ends = [c.before, c.after].flatMap((e) => [e.low ?? e.value, e.high ?? e.value]).filter((v) => v !== null);
    if (!ends.length) return h("p", { class: "soft" }, `No held-out answer has a ${name}.`);
    const pad = (Math.max(...ends) - Math.min(...ends)) * 0.1 || 1, scale = grade ? { from: 0, to: 1 } : { from: Math.min(...ends) - pad, to: Math.max(...ends) + pad };
    const d = c.difference, by = grade ? `${prb.points(d.value)} points` : `${d.value > 0 ? "+" : ""}${prb.number(d.value, 3)}`, dropped = d.dropped ? `, ${d.dropped} dropped` : "";
    return [h("h3", {}, `${grade ? "Grade, % of the rubric" : "Reward"} on held-out prompts: ${d.value === null ? "no prompt answered" : `${by} (p ${prb.pValue(d.p)}, n ${d.n}${dropped})`}`),
      charts.bars([["before", "none"], ["after", "profile"]].map(([stage, kind]) => ({ name: stage, text: say(c[stage]), lanes: [{ ...c[stage], kind }] })), { scale })];
  }

  // --- correlation ---
  function correlation(result) {
    const several = result.models.length > 14;
    return h("section", { "aria-label": `Correlation: ${result.name}` },
      h("h2", {}, `Does the benchmark predict downstream results? ${result.name}`),
      h("div", { class: "cards" }, result.said.map((s) => h("div", { class: "card" }, h("h3", {}, `${s.set}: ${s.n}`), h("ul", {}, s.sentences.map((line) => h("li", {}, line)))))),
      result.left_out.length ? h("p", { class: "note" }, `Left out for missing scores: ${result.left_out.join(", ")}.`) : null,
      h("div", { class: "cards" }, result.downstream.flatMap((y) => result.bench.map((x) => scatter(result, x, y, several)))),
      families(result).length > 1 ? charts.legend(families(result).map((name, n) => ({ name, kind: name === "others" ? "none" : charts.series(n) }))) : null,
      result.tables.map((t, n) => h("div", { class: "card" }, textTable(t, { open: n === 0 }))));
  }

  const families = (result) => [...new Set(result.families)].sort((a, b) => (a === "others") - (b === "others") || (a < b ? -1 : 1));

  function scatter(result, x, y, several) {
    const bars = (column, n) => (column.errors ? [column.values[n] - 1.96 * column.errors[n], column.values[n] + 1.96 * column.errors[n]] : [null, null]);
    const points = result.models.map((model, n) => {
      const [left, right] = bars(x, n), [low, high] = bars(y, n);
      return { x: x.values[n], y: y.values[n], left, right, low, high, label: model, named: !several, hollow: result.constructed.includes(model), family: result.families[n] };
    });
    const claims = result.sets.filter((s) => s.correlations.length).map((s) => {
      const c = s.correlations.find((cell) => cell.bench === x.name && cell.downstream === y.name);
      return `${s.set}, n = ${s.n}: ${prb.words(c.measure)} ${minus(c.value.toFixed(2))}, p ${prb.pValue(c.p)}`;
    });
    const svg = charts.plot({
      series: families(result).map((name, n) => ({ name, kind: name === "others" ? "none" : charts.series(n), join: false, points: points.filter((p) => p.family === name) })),
      x: { label: x.name }, y: { label: y.name }, width: room(560), height: Math.min(380, 180 + room(560) / 3), title: `${x.name} against ${y.name}`, alt: `${x.name} against ${y.name} of ${result.models.length} ${result.units}. ${claims.join("; ")}.`,
    });
    requestAnimationFrame(() => results.untangle(svg));
    const first = result.sets[0]?.correlations.find((cell) => cell.bench === x.name && cell.downstream === y.name);
    return h("figure", { class: "card panel" }, h("figcaption", {}, first ? h("div", { class: "rho" }, `${first.measure === "spearman" ? "ρ" : prb.words(first.measure)} ${minus(first.value.toFixed(2))}`) : null, claims.map((c) => h("div", { class: "soft" }, c))), svg);
  }

  prb.run(async (site, state) => {
    const data = await prb.load("downstream");
    put("bon", data.bon.map((run) => bon(run, state)));
    put("ppo", ppo(data.ppo));
    put("correlation", data.correlation.map(correlation));
  });
})();
