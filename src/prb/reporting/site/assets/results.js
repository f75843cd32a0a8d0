// What the downstream, study and audit pages share.
"use strict";

const results = (() => {
  const { h } = prb;

  // a table that came from Python as text: {title, columns, rows, notes}
  function textTable(t, { open = true } = {}) {
    const isText = (n) => n === 0 || t.rows.some((row) => /\p{L}/u.test(row[n]));  // numbers are aligned right
    const columns = t.columns.map((label, n) => ({ label, left: isText(n) }));
    const parts = [h("div", { class: "wide text-table" }, prb.table(columns, t.rows)), t.notes.map((note) => h("p", { class: "soft" }, note))];
    return open ? [h("h3", {}, t.title), parts] : h("details", {}, h("summary", {}, t.title), parts);
  }

  // pairs of [name, value, small print]
  function facts(entries) {
    return h("dl", { class: "facts" }, entries.filter((e) => e && e[1] !== null && e[1] !== undefined).map(([name, value, small]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, small ? h("small", {}, small) : null))));
  }

  // who graded, and how far the grades can be trusted: shown beside everything that was graded
  const trust = (text) => h("p", { class: "note" }, text);

  // a number with its interval, in its own unit
  const plain = (e, digits = 3) => (!e || e.value === null ? "–"
    : e.low === null || e.low === undefined ? prb.number(e.value, digits)
      : `${prb.number(e.value, digits)} [${prb.number(e.low, digits)}, ${prb.number(e.high, digits)}]`);

  const fixed = (e, digits = 2) => (!e || e.value === null ? "–"
    : minus(e.value.toFixed(digits) + (e.low === null || e.low === undefined ? "" : ` [${e.low.toFixed(digits)}, ${e.high.toFixed(digits)}]`)));

  // how wide a chart may be drawn, so that its letters keep their size; drawn again when a phone is turned
  const room = (most) => Math.max(280, Math.min(most, document.getElementById("main").clientWidth - 56));
  matchMedia("(max-width: 44rem)").addEventListener("change", () => dispatchEvent(new Event("hashchange")));

  // shares in percent, and the same in a cell: the value, below it its interval
  const minus = (text) => text.replaceAll("-", "−");
  const share = (e) => minus(prb.interval(e));
  const cell = (e) => (!e || e.value === null || e.low === null ? share(e)
    : [minus(prb.percent(e.value)), h("small", {}, minus(`[${prb.percent(e.low)}, ${prb.percent(e.high)}]`))]);

  // labels move to where they cover neither points, curves nor each other; only once they have a size
  function untangle(svg) {
    const boxOf = (node, grow = 0) => {
      const b = node.getBBox();
      return { x: b.x - grow, y: b.y - grow, right: b.x + b.width + grow, bottom: b.y + b.height + grow };
    };
    const over = (a, b) => Math.max(0, Math.min(a.right, b.right) - Math.max(a.x, b.x)) * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.y, b.y));
    const [, , width] = svg.getAttribute("viewBox").split(" ").map(Number), base = Number(svg.querySelector(".base").getAttribute("y1"));
    const around = (x, y) => ({ x: x - 3, right: x + 3, y: y - 3, bottom: y + 3 });
    const along = [...svg.querySelectorAll(".curve")].flatMap((line) => {
      const points = line.getAttribute("points").split(" ").map((p) => p.split(",").map(Number));
      return points.slice(1).flatMap(([x, y], n) => {
        const [x0, y0] = points[n], steps = Math.ceil(Math.hypot(x - x0, y - y0) / 10);
        return Array.from({ length: steps }, (_, k) => around(x0 + ((k + 0.5) / steps) * (x - x0), y0 + ((k + 0.5) / steps) * (y - y0)));
      });
    });
    const taken = [...[...svg.querySelectorAll(".dot")].map((dot) => boxOf(dot, 1)), ...along];
    for (const tag of svg.querySelectorAll("text.tag")) {
      const home = boxOf(tag), w = home.right - home.x;
      const moves = [0, 14, -12, 26, -24].flatMap((dy) => [0, -w - 12, -w / 2 - 6].map((dx) => ({ dx, dy: dx === -w / 2 - 6 && !dy ? -4 : dy })));
      const tries = moves.map(({ dx, dy }) => {
        const box = { x: home.x + dx, right: home.right + dx, y: home.y + dy, bottom: home.bottom + dy };
        const outside = box.x < 60 || box.right > width || box.bottom > base ? 1e4 : 0;
        return { dx, dy, box, cost: outside + taken.reduce((sum, other) => sum + over(box, other), 0) };
      });
      const best = tries.reduce((a, b) => (b.cost < a.cost - 1e-9 ? b : a));
      tag.setAttribute("transform", `translate(${best.dx} ${best.dy})`);
      taken.push(best.box);
    }
  }

  return { textTable, facts, trust, plain, fixed, room, share, cell, minus, untangle };
})();
