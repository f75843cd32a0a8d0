// Runs of other verbs, as the tables their commands print.
"use strict";

(() => {
  const { h, put } = prb;
  const section = (kind) => (result) => h("section", { "aria-label": `${kind}: ${result.name}` }, h("h2", {}, `${kind}: ${result.name}`),
    result.tables.map((t) => h("div", { class: "card" }, results.textTable(t))));
  prb.run(async () => put("other", Object.entries(await prb.load("other")).map(([kind, found]) => found.map(section(kind)))));
})();
