// How much of a benchmark can be solved without knowing the user.
"use strict";

(() => {
  const { h, put } = prb;
  const kind = (name) => (name.includes("blind") ? "shuffled" : name.includes("rubric") ? "profile" : "none");

  function audit(result) {
    const rows = result.rows.map((r) => ({ name: r.name, text: results.share(r), lanes: [{ ...r, kind: kind(r.name) }] }));
    const lines = [{ at: 0.5, label: "chance" }];
    return h("section", { "aria-label": `Audit: ${result.name}` }, h("h2", {}, result.dataset), h("p", {}, h("b", {}, result.verdict)),
      h("div", { class: "card" },
        charts.legend([{ name: "floors", kind: "none" }, { name: "learner that never sees the user", kind: "shuffled" }, { name: "reads the rubric", kind: "profile" }]),
        charts.bars(rows, { lines }), h("p", { class: "soft" }, "Accuracy in % with 95 % intervals by cluster, on a scale from 0 to 100; the line is chance. Learner and rubric reader are lower bounds: a better model may score higher.")),
      result.tables.map((t, n) => h("div", { class: "card" }, results.textTable(t, { open: n === 1 }))));
  }

  prb.run(async () => put("audit", (await prb.load("audit")).audit.map(audit)));
})();
