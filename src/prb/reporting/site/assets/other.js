// Runs of other verbs, as the tables their commands print.
"use strict";

(() => {
  const { h, put } = prb;
  const section = (result) => h("section", { "aria-label": `${result.kind}: ${result.name}` }, h("h2", {}, `${result.kind}: ${result.name}`),
    result.tables.map((t) => h("div", { class: "card" }, results.textTable(t))));
  prb.run(async () => put("other", (await prb.load("other")).map(section)));
})();
