// Charts as inline SVG. Colors are classes over CSS variables, so light, dark and print follow the page.
"use strict";

const charts = (() => {
  const { h } = prb;
  const pct = (x) => `${Math.round(1e4 * x) / 100}%`;

  // every chart is an image with a name and, where it says more than its name, a text that says the same
  function image(attributes, title, alt, ...children) {
    return h("svg", { role: "img", "aria-label": alt || title, ...attributes }, h("title", {}, alt || title), children);
  }

  // --- strips: one or more values with intervals on a common scale; percent coordinates, so any width fits ---
  // lanes [{value, low, high, kind}], lines [{at, kind}], scale {from, to}; kind is a CSS class
  function strip(lanes, { lines = [], scale = { from: 0, to: 1 }, lane = 10, title, alt } = {}) {
    const at = place(scale), height = Math.max(lane * lanes.length, lane) + 6;
    const drawn = lanes.map((e, n) => {
      const y = 3 + lane * (n + 0.5), known = e.value !== null && e.value !== undefined;
      if (!known) return null;
      const wide = e.low !== null && e.low !== undefined;
      return h("g", { class: e.kind || "" },
        wide ? h("rect", { class: "range", x: pct(at(e.low)), width: pct(Math.max(0.003, at(e.high) - at(e.low))), y: y - 3, height: 6, rx: 3 }) : null,
        h("circle", { class: "dot", cx: pct(at(e.value)), cy: y, r: 4.2 }));
    });
    return image({ class: "strip", width: "100%", height }, title, alt, rules(lines, at), drawn);
  }

  const rules = (lines, at) => lines.map((l) => h("line", { class: `rule ${l.kind || ""}`, x1: pct(at(l.at)), x2: pct(at(l.at)), y1: -99, y2: 199 }));
  const place = (scale) => (x) => (Math.min(Math.max(x, scale.from), scale.to) - scale.from) / (scale.to - scale.from);
  const mark = (x, y, ...shape) => h("svg", { class: "mark", "aria-hidden": "true", x: pct(x), y }, shape);  // shapes in pixels at a place in percent

  // from one value (a diamond) to another (a dot, hollow unless it is `sure` that they differ) with its interval
  function span(to, from, { scale, lines = [], sure = true, kind = "", since = "", title, alt }) {
    const at = place(scale), y = 15, known = (e) => e && exists(e.value);
    return image({ class: "strip", width: "100%", height: 2 * y }, title, alt, rules(lines, at), !known(to) ? null : h("g", { class: kind },
      known(from) ? h("line", { class: "gap", x1: pct(at(from.value)), x2: pct(at(to.value)), y1: y, y2: y }) : null,
      exists(to.low) ? h("line", { class: "within", x1: pct(at(to.low)), x2: pct(at(to.high)), y1: y, y2: y }) : null,
      known(from) ? mark(at(from.value), y, h("path", { class: `since ${since}`, d: "M0-6 6 0 0 6-6 0Z" })) : null,
      h("circle", { class: sure ? "dot" : "dot hollow", cx: pct(at(to.value)), cy: y, r: 5.5 })));
  }

  // a value to compare others with
  function reference(value, { scale, lines = [], shape, title, alt }) {
    const at = place(scale);
    return image({ class: "strip", width: "100%", height: 22 }, title, alt, rules(lines, at), mark(at(value), 11, h("path", { class: "told", d: shape === "▲" ? "M0-6 6 5-6 5Z" : "M-4-4H4V4H-4Z" })));
  }

  // the head of a column of strips: ticks, and names of its lines that do not cover each other
  function axis({ scale = { from: 0, to: 1 }, ticks = [0, 0.25, 0.5, 0.75, 1], lines = [], text = (x) => prb.percent(x, 0), inside = true } = {}) {
    const at = (x) => (x - scale.from) / (scale.to - scale.from);
    const anchor = (x) => (!inside ? "middle" : at(x) < 0.08 ? "start" : at(x) > 0.92 ? "end" : "middle");
    const rows = stack(lines.map((l) => ({ ...l, x: at(l.at) })));
    const top = 14 * rows.depth, height = top + 18;
    return h("svg", { class: "strip axis", width: "100%", height, "aria-hidden": "true" },
      rows.placed.map((l) => [
        h("line", { class: `rule ${l.kind || ""}`, x1: pct(l.x), x2: pct(l.x), y1: 14 * l.row + 12, y2: "100%" }),
        h("text", { class: `tag ${l.kind || ""}`, x: pct(l.x), y: 14 * l.row + 10, "text-anchor": anchor(l.at) }, l.label)]),
      ticks.map((x) => h("text", { class: "tick", x: pct(at(x)), y: height - 3, "text-anchor": anchor(x) }, text(x))));
  }

  // names over their lines, each in the first row where it has room (a letter is taken as 1.3 % of the width)
  function stack(lines) {
    const ends = [];
    const placed = [...lines].sort((a, b) => a.x - b.x).map((line) => {
      const half = 0.0065 * line.label.length + 0.008;
      let row = ends.findIndex((end) => line.x - half > end);
      if (row < 0) row = ends.length;
      ends[row] = line.x + half;
      return { ...line, row };
    });
    return { placed, depth: ends.length };
  }

  // --- rows of name, strip and number: accuracy by category, by tier, … ---
  function bars(rows, options = {}) {
    return h("div", { class: "bars" }, rows.map((row) => h("div", { class: "bar" },
      h("span", { class: "name" }, row.href ? h("a", { href: row.href }, row.name) : row.name),
      strip(row.lanes, { ...options, title: row.name, alt: `${row.name}: ${row.text}` }),
      h("span", { class: "num" }, row.text))));
  }

  // --- a strip of dots: one for each value, equal ones on top of each other; many become columns of their number ---
  function dots(values, { kind = "", title, alt, label = (x) => prb.percent(x, 0) } = {}) {
    const bins = 40, counts = new Array(bins + 1).fill(0);
    for (const value of values) counts[Math.round(value * bins)] += 1;
    const most = Math.max(...counts, 1), width = 640, height = 110, base = height - 20;
    const x = (n) => 8 + (n * (width - 16)) / bins, step = Math.min(8, (base - 6) / most);
    const marks = counts.map((n, bin) => {
      if (!n) return null;
      if (step >= 3) return Array.from({ length: n }, (_, k) => h("circle", { class: "dot", cx: x(bin), cy: base - step * (k + 0.5), r: Math.min(3.6, step / 2) }));
      return h("rect", { class: "dot", x: x(bin) - 5, width: 10, y: base - ((base - 6) * n) / most, height: ((base - 6) * n) / most });
    });
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((t) => h("text", { class: "tick", x: x(t * bins), y: height - 4, "text-anchor": t === 0 ? "start" : t === 1 ? "end" : "middle" }, label(t)));
    return image({ class: `plot ${kind}`, viewBox: `0 0 ${width} ${height}` }, title, alt,
      h("line", { class: "base", x1: 0, x2: width, y1: base, y2: base }), marks, ticks);
  }

  // --- a histogram: bars [{n, kind, label}] from `from` to `to` ---
  function histogram(bars, { from, to, ticks, text, label, title, alt, width = 520, height = 200 }) {
    const left = 8, right = width - 8, base = height - 40, most = Math.max(...bars.map((b) => b.n), 1), wide = (right - left) / bars.length;
    const x = (v) => left + ((right - left) * (v - from)) / (to - from);
    return image({ class: "plot", viewBox: `0 0 ${width} ${height}` }, title, alt,
      bars.map((b, n) => (b.n ? h("rect", { class: `dot ${b.kind || ""}`, x: left + n * wide + 1, width: wide - 2, y: base - ((base - 8) * b.n) / most, height: ((base - 8) * b.n) / most, rx: 1.5 }, h("title", {}, b.label)) : null)),
      h("line", { class: "base", x1: left, x2: right, y1: base, y2: base }),
      ticks.map((v) => h("text", { class: "tick", x: x(v), y: base + 16, "text-anchor": v === from ? "start" : v === to ? "end" : "middle" }, text(v))),
      h("text", { class: "label", x: width / 2, y: height - 5, "text-anchor": "middle" }, label));
  }

  // --- lines, bands and points over two axes ---
  // series [{name, kind, dash, join = true, marks = true, points: [{x, y, low, high, left, right, label, hollow}]}]
  // x, y {label, from, to, ticks, log, text}; lines [{from: [x, y], to: [x, y], kind, label}]
  function plot({ series, x, y, lines = [], title, alt, width = 640, height = 330 }) {
    const all = series.flatMap((s) => s.points);
    const xs = range(x, all.flatMap((p) => [p.x, p.left, p.right])), ys = range(y, all.flatMap((p) => [p.y, p.low, p.high]));
    const box = { left: 58, right: width - 14, top: 12, bottom: height - 44 };
    const place = (r, a, b) => (v) => a + ((b - a) * (r.turn(v) - r.turn(r.from))) / ((r.turn(r.to) - r.turn(r.from)) || 1);
    const px = place(xs, box.left, box.right), py = place(ys, box.bottom, box.top);
    return image({ class: "plot", viewBox: `0 0 ${width} ${height}` }, title, alt,
      grid(xs, ys, px, py, box, x, y),
      lines.map((l) => [h("line", { class: `rule ${l.kind || ""}`, x1: px(l.from[0]), y1: py(l.from[1]), x2: px(l.to[0]), y2: py(l.to[1]) }),
        l.label ? h("text", { class: `tag ${l.kind || ""}`, x: px(l.to[0]) - 4, y: py(l.to[1]) - 5, "text-anchor": "end" }, l.label) : null]),
      series.map((s) => curve(s, px, py)));
  }

  const exists = (v) => v !== null && v !== undefined && Number.isFinite(v);

  function range(axis_, values) {
    const found = values.filter(exists), turn = axis_.log ? (v) => Math.log(Math.max(v, 1e-12)) : (v) => v;
    let from = axis_.from ?? Math.min(...found), to = axis_.to ?? Math.max(...found);
    if (!found.length && !exists(axis_.from)) [from, to] = [0, 1];
    if (from === to) { from -= 0.5; to += 0.5; }
    if (axis_.log) return { from, to, turn, ticks: axis_.ticks || [from, to] };
    if (axis_.from === undefined) from -= 0.04 * (to - from);
    if (axis_.to === undefined) to += 0.04 * (to - from);
    return { from, to, turn, ticks: axis_.ticks || nice(from, to) };
  }

  function nice(from, to, wanted = 5) {
    const rough = (to - from) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const first = Math.ceil(from / step);
    return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, n) => Number(((first + n) * step).toPrecision(10)));
  }

  function grid(xs, ys, px, py, box, x, y) {
    const say = (axis_) => axis_.text || ((v) => prb.number(v, 4));
    return h("g", { class: "grid" },
      ys.ticks.map((v) => [h("line", { x1: box.left, x2: box.right, y1: py(v), y2: py(v) }),
        h("text", { class: "tick", x: box.left - 7, y: py(v) + 4, "text-anchor": "end" }, say(y)(v))]),
      xs.ticks.map((v) => h("text", { class: "tick", x: px(v), y: box.bottom + 17, "text-anchor": "middle" }, say(x)(v))),
      h("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      h("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 37, "text-anchor": "middle" }, x.label || ""),
      h("text", { class: "label", transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label || ""));
  }

  function curve(s, px, py) {
    const points = s.points.filter((p) => exists(p.x) && exists(p.y)), join = s.join !== false;
    const spread = points.filter((p) => exists(p.low) && exists(p.high));
    const band = join && spread.length > 1
      ? h("polygon", { class: "band", points: [...spread.map((p) => `${px(p.x)},${py(p.high)}`), ...spread.map((p) => `${px(p.x)},${py(p.low)}`).reverse()].join(" ") }) : null;
    const whiskers = join ? [] : points.map((p) => [
      exists(p.low) ? h("line", { class: "whisker", x1: px(p.x), x2: px(p.x), y1: py(p.low), y2: py(p.high) }) : null,
      exists(p.left) ? h("line", { class: "whisker", x1: px(p.left), x2: px(p.right), y1: py(p.y), y2: py(p.y) }) : null]);
    return h("g", { class: `${s.kind || ""} ${s.dash ? "dashed" : ""}` }, band, whiskers,
      join && points.length > 1 ? h("polyline", { class: "curve", points: points.map((p) => `${px(p.x)},${py(p.y)}`).join(" ") }) : null,
      s.marks === false ? null : points.map((p) => h("circle", { class: p.hollow ? "dot hollow" : "dot", cx: px(p.x), cy: py(p.y), r: p.r || 3.6 },
        h("title", {}, `${p.label || s.name}: ${prb.number(p.x)}, ${prb.number(p.y)}`))),
      points.map((p) => (p.label && p.named !== false ? h("text", { class: "tag", x: px(p.x) + 6, y: py(p.y) - 6 }, p.label) : null)));
  }

  // models in a plane of two numbers, with the front of those that no other one beats, as steps: what lies between is not had
  function frontier(all, { x, y, width, height = width < 500 ? 320 : 420, title = `${y.label} against ${x.label}`, lines = [] }) {
    const [right, up] = [x, y].map((axis_) => (axis_.better === "lower" ? -1 : 1));
    const beats = (a, b) => right * a.x >= right * b.x && up * a.y >= up * b.y && (a.x !== b.x || a.y !== b.y);
    const best = all.filter((a) => !all.some((b) => beats(b, a))), edge = [...best].sort((a, b) => right * (b.x - a.x) || up * (a.y - b.y));
    const steps = edge.flatMap((p, n) => [...(n ? [{ x: p.x, y: edge[n - 1].y }] : []), { x: p.x, y: p.y }]);
    const series_ = [{ name: "front", kind: "profile", dash: true, marks: false, points: steps },
      { name: "other models", kind: "none", join: false, points: all.filter((p) => !best.includes(p)).map((p) => ({ ...p, hollow: true })) },
      { name: "on the front", kind: "profile", join: false, points: edge.map((p) => ({ ...p, r: 5 })) }];
    const said = (axis_, v) => (axis_.text ? axis_.text(v) : prb.number(v));
    const alt = `${title}: ${all.map((p) => `${p.label} ${said(y, p.y)}, ${said(x, p.x)}${best.includes(p) ? ", on the front" : ""}`).join("; ")}`;
    return { best, node: [legend([{ name: "on the front", kind: "profile" }, { name: "other models", kind: "none" }]), plot({ series: series_, x, y, lines, width, height, title, alt })] };
  }

  // what the colors mean: entries [{name, kind, dash}]
  function legend(entries) {
    return h("ul", { class: "legend" }, entries.map((e) => h("li", { class: `${e.kind || ""} ${e.dash ? "dashed" : ""}` },
      h("i", { "aria-hidden": "true" }), e.name)));
  }

  // a color for the n-th series that has no meaning of its own
  const series = (n) => `s${n % 6}`;

  return { strip, span, reference, axis, bars, dots, histogram, plot, frontier, legend, series };
})();
