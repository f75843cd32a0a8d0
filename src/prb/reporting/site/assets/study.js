// Human study: which claims hold, agreement, ratings, who and what was left out.
"use strict";

(() => {
  const { h, put } = prb, { facts, fixed, share } = results;
  const ASKED = { before: "Preference from the posts alone", after: "Preference with the rubric shown", difference: "What the difference is about",
    correctness: "Correctness, 1 to 5", relevance: "Relevance, 1 to 5", helpfulness: "Helpfulness, 1 to 5" };
  const COEFFICIENTS = { alpha: "Krippendorff’s α", fleiss: "Fleiss’ κ", ac1: "Gwet’s AC1" };
  const GATES = { preference: "Annotators prefer the labeled answer", parity: "Both answers are equally good", personal: "They differ in taste, not quality", agreement: "Annotators agree" };
  const CRITERIA = ["correctness", "relevance", "helpfulness"];
  const WANTED = 0.667;

  function study(s) {
    const c = s.counts;
    return h("section", { "aria-label": `Study: ${s.name}` }, h("h2", {}, s.name), h("p", { class: "soft" }, s.basis),
      h("div", { class: "cards" }, s.gates.map(gate)),
      facts([["Items", prb.count(c.items)], ["Annotators", prb.count(c.annotators), c.left_out.length ? `${c.left_out.length} left out` : null],
        ["Judgments", prb.count(c.judgements), `${prb.count(c.finished)} with the rubric shown`], ["Skipped", prb.count(c.skipped)], ["Revised", prb.count(c.revised), "first-step answers changed later"]]),
      agreement(s), preference(s), quality(s), ratings(s), annotators(s), drop(s), items(s));
  }

  function gate(g) {
    return h("div", { class: `card gate ${g.holds ? "good" : "bad"}` }, h("h3", {}, h("span", { class: "badge" }, g.holds ? "✓ holds" : "✗ not shown"), " ", GATES[g.name] || g.name), h("p", {}, g.says));
  }

  // --- agreement ---
  function agreement(s) {
    const asked = Object.entries(s.agreement), names = Object.keys(COEFFICIENTS);
    const lowest = Math.min(0, ...asked.flatMap(([, found]) => names.map((n) => found[n] && (found[n].low ?? found[n].value)).filter((v) => v !== null && v !== undefined)));
    const scale = { from: Math.max(-1, lowest), to: 1 }, lines = [{ at: 0, kind: "half" }, { at: WANTED, kind: "ceiling" }];
    const rows = asked.map(([question, found]) => ({
      name: ASKED[question] || prb.words(question), text: `α ${fixed(found.alpha)}`,
      lanes: names.filter((n) => found[n]).map((n) => ({ ...found[n], kind: charts.series(names.indexOf(n)) })),
    }));
    const table = asked.map(([question, found]) => [ASKED[question] || prb.words(question), ...names.map((n) => (found[n] ? fixed(found[n]) : "–")), String(found.alpha.n)]);
    const columns = [{ label: "asked", left: true }, ...names.map((n) => ({ label: COEFFICIENTS[n] })), { label: "units" }];
    return [h("h2", {}, "Do annotators agree?"), h("div", { class: "card" },
      charts.legend(names.map((n, k) => ({ name: COEFFICIENTS[n], kind: charts.series(k) }))),
      charts.bars(rows, { scale, lines }),
      h("p", { class: "soft" }, `95 % bootstrap intervals over questions; purple line: α ${WANTED}, the smallest value for which Krippendorff allows tentative conclusions; gray line: chance. Scale from ${prb.number(scale.from, 2)} to 1.`),
      h("details", {}, h("summary", {}, "As a table"), h("div", { class: "wide" }, prb.table(columns, table))))];
  }

  // --- what they prefer, and why the answers differ ---
  function preference(s) {
    const lines = [{ at: 0.5 }], judged = s.personal.judgements, all = Object.values(judged).reduce((a, b) => a + b, 0);
    const row = (name, e, kind) => ({ name, text: share(e), lanes: [{ ...e, kind }] });
    const why = { preference: "personal preference", quality: "quality", unclear: "can’t tell" };
    return [h("h2", {}, "Is it a matter of taste?"), h("div", { class: "card" },
      charts.bars([row("labeled answer preferred, from the posts alone", s.preference.before, "none"), row("labeled answer preferred, rubric shown", s.preference.after, "profile"), row("items a majority calls personal preference", s.personal.items, "plan")], { lines }),
      h("p", { class: "soft" }, `Share in % with 95 % intervals by cluster; “neither” counts half; the line is 50 %. Single judgments: ${Object.entries(why).map(([k, label]) => `${label} ${judged[k]}`).join(", ")}, of ${all}.`))];
  }

  // --- how good the answers are ---
  function quality(s) {
    const q = s.quality, m = q.margin, there = CRITERIA.filter((c) => q[c]);
    const means = there.filter((c) => q[c].means.chosen !== null).map((c) => ({
      name: prb.words(c), text: `${prb.number(q[c].means.chosen, 3)} and ${prb.number(q[c].means.rejected, 3)}`,
      lanes: [["chosen", "profile"], ["rejected", "shuffled"]].map(([a, kind]) => ({ value: q[c].means[a], low: null, kind })),
    }));
    const signed = there.filter((c) => q[c].parity).map((c) => {
      const p = q[c].parity;
      return { name: prb.words(c), text: p.p === null ? "too few" : fixed({ value: p.mean, low: p.low, high: p.high }), lanes: [{ value: p.mean, low: p.low, high: p.high, kind: p.equivalent ? "good" : "bad" }] };
    });
    const sizes = there.filter((c) => q[c].mirror_size).map((c) => {
      const e = q[c].mirror_size;
      return { name: prb.words(c), text: fixed(e), lanes: [{ ...e, kind: e.high !== null && e.high < m ? "good" : "bad" }] };
    });
    const part = (title, rows, options, note) => (rows.length ? h("div", { class: "card" }, h("h3", {}, title), charts.bars(rows, options), h("p", { class: "soft" }, note)) : null);
    return [h("h2", {}, "Are both answers good?"), h("div", { class: "cards" },
      part("Mean rating of the labeled and the other answer", means, { scale: { from: 1, to: 5 } }, "Scale 1 to 5; blue: labeled answer, orange: other answer."),
      part("Difference of the two answers", signed, { scale: { from: -2 * m, to: 2 * m }, lines: [{ at: -m }, { at: 0, kind: "half" }, { at: m }] }, `Rows without a mirror twin; the 90 % interval must lie between the lines, ±${m} points.`),
      part("Size of the difference, mirrored questions", sizes, { scale: { from: 0, to: 2 * m }, lines: [{ at: m }] }, `Signed differences of twins cancel, so their mean size is shown; the interval must end below the line, ${m} points.`))];
  }

  // --- distribution of ratings: five steps side by side, from pale (1) to full (5) ---
  function ratings(s) {
    const rows = Object.entries(s.ratings).flatMap(([criterion, by]) => [["chosen", "profile", "labeled"], ["rejected", "shuffled", "other"]].map(([a, kind, said]) => ({ name: `${prb.words(criterion)}, ${said} answer`, kind, counts: by[a] })));
    return [h("h2", {}, "Distribution of ratings"), h("div", { class: "card" }, h("div", { class: "bars" }, rows.map(spread)),
      h("p", { class: "soft" }, "Share of ratings 1 (pale, left) to 5 (full, right); blue: labeled answer, orange: other answer. Ratings changed after the rubric was shown are left out."))];
  }

  function spread(row) {
    const all = row.counts.reduce((a, b) => a + b, 0), said = row.counts.map((n, k) => `${k + 1}: ${n}`).join(", ");
    let at = 0;
    const parts = row.counts.map((n, k) => {
      const from = at, part = all ? n / all : 0;
      at += part;
      const place = (x) => `${100 * x}%`;
      return part ? [h("rect", { class: "dot", x: place(from), width: place(part), y: 1, height: 20, "fill-opacity": 0.15 + 0.2 * k }),
        part > 0.06 ? h("text", { class: k > 2 ? "on" : "off", x: place(from + part / 2), y: 15, "text-anchor": "middle" }, String(k + 1)) : null] : null;
    });
    return h("div", { class: "bar" }, h("span", { class: "name" }, row.name),
      h("svg", { role: "img", class: row.kind, width: "100%", height: 22, "aria-label": `${row.name}: ${said}` }, h("title", {}, `${row.name}: ${said}`), parts),
      h("span", { class: "num" }, all ? `mean ${prb.number(row.counts.reduce((sum, n, k) => sum + n * (k + 1), 0) / all, 3)}, n ${all}` : "–"));
  }

  // --- who and what was left out ---
  function annotators(s) {
    const rows = [...s.annotators].sort((a, b) => a.reliability - b.reliability).map((p) => [p.annotator, String(p.judgements), p.reliability.toFixed(2), prb.percent(p.with_label), p.checks[1] ? `${p.checks[0]} of ${p.checks[1]}` : "–"]);
    const out = s.counts.left_out;
    return [h("h2", {}, "Annotators"),
      out.length ? h("p", { class: "note bad" }, `Left out for failed attention checks: ${out.join(", ")}. None of their judgments counts.`) : h("p", { class: "soft" }, "No annotator was left out: all passed their attention checks."),
      h("div", { class: "card wide" }, prb.table([{ label: "annotator", left: true }, { label: "judgments" }, { label: "reliability", title: "Dawid-Skene: estimated share of right answers" }, { label: "agree with the label, %" }, { label: "checks passed" }], rows))];
  }

  function drop(s) {
    const rows = s.items.filter((i) => i.reasons.length).map((d) => [d.item, d.reasons.join("; "), String(d.n)]);
    return [h("h2", {}, "Items that annotators do not confirm"),
      rows.length ? h("div", { class: "card wide" }, prb.table([{ label: "item", left: true }, { label: "reasons", left: true }, { label: "judgments" }], rows)) : h("p", { class: "soft" }, "None.")];
  }

  // --- item by item ---
  function items(s) {
    const votes = (v) => `${v.chosen} : ${v.rejected}${v.neither ? ` : ${v.neither}` : ""}`;
    const rows = s.items.map((i) => [i.item, String(i.n), votes(i.before), votes(i.after), Object.entries(i.difference).map(([k, n]) => `${k} ${n}`).join(", "), `${prb.number(i.means.chosen, 2)} : ${prb.number(i.means.rejected, 2)}`, i.reasons.join("; ")]);
    const columns = ["item", "judgments", "posts alone", "rubric shown", "difference", "mean rating", "reasons to drop it"].map((label, n) => ({ label, left: [0, 4, 6].includes(n) }));
    return h("details", {}, h("summary", {}, `All ${rows.length} items`), h("p", { class: "soft" }, "Votes and ratings: labeled answer : other answer (: neither)."), h("div", { class: "wide" }, prb.table(columns, rows)));
  }

  prb.run(async () => put("study", (await prb.load("study")).agreement.map(study)));
})();
