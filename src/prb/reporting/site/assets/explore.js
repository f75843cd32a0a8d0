// Which pairs, in which order: filters over the compact columns, and a list that only draws what is in sight.
"use strict";

const explore = (() => {
  const { h } = prb;
  const ROW = 60, AROUND = 8;

  const SHOWS = [
    ["", "all pairs"], ["wrong", "wrong"], ["disagree", "models disagree"], ["flips", "flips with another user's posts"],
    ["gained", "right only with the profile"], ["lost", "right only without the profile"], ["beats", "right where the other is not"],
    ["behind", "not right where the other is"], ["failed", "failed"],
  ];
  const NEEDS = { flips: ["profile", "shuffled"], gained: ["none", "profile"], lost: ["none", "profile"] };

  // the conditions whose columns a view needs
  function needed(state, condition) {
    return [...new Set([condition, ...(NEEDS[state.show] || [])])];
  }

  function possible(data, state) {
    return SHOWS.filter(([key]) => (NEEDS[key] || []).every((c) => data.conditions.includes(c)) && (!["beats", "behind"].includes(key) || (state.model && state.other)));
  }

  // is it this pair? lists: condition → {credit}; models: those that count
  function tester(state, condition, lists, models, other) {
    const credit = (c, n) => lists[c].credit[n];
    const here = models.filter((n) => credit(condition, n) !== undefined).map((n) => credit(condition, n));
    const both = (a, b, test) => {
      const columns = models.filter((n) => credit(a, n) && credit(b, n)).map((n) => [credit(a, n), credit(b, n)]);
      return (i) => columns.some(([x, y]) => test(x[i], y[i]));
    };
    const versus = (test) => { const [x, y] = [here[0], credit(condition, other)]; return (i) => x && y && y[i] !== "-" && test(x[i], y[i]); };
    switch (state.show) {
      case "wrong": return (i) => here.length > 0 && here.every((column) => column[i] === "0");
      case "disagree": return (i) => here.some((column) => column[i] === "1") && here.some((column) => column[i] === "0");
      case "flips": return both("profile", "shuffled", (x, y) => x !== y && x !== "-" && y !== "-");
      case "gained": return both("none", "profile", (x, y) => x !== "1" && x !== "-" && y === "1");
      case "lost": return both("none", "profile", (x, y) => x === "1" && y !== "1" && y !== "-");
      case "beats": return versus((x, y) => x === "1" && y !== "1");
      case "behind": return versus((x, y) => x !== "1" && x !== "-" && y === "1");
      case "failed": return (i) => here.some((column) => column[i] === "-");
      default: return () => true;
    }
  }

  function select(state, condition, pairs, users, lists, models, other) {
    const test = tester(state, condition, lists, models, other);
    const category = state.category ? pairs.categories.indexOf(state.category) : null, tier = state.tier ? pairs.tiers.indexOf(state.tier) : null;
    const user = state.user ? users.names.indexOf(state.user) : null, q = (state.q || "").toLowerCase();
    const found = [];
    for (let i = 0; i < pairs.ids.length; i += 1) {
      if (category !== null && pairs.category[i] !== category) continue;
      if (tier !== null && pairs.tier[i] !== tier) continue;
      if (user !== null && pairs.users[i] !== user) continue;
      if (q && !(pairs.ids[i].toLowerCase().includes(q) || users.names[pairs.users[i]].toLowerCase().includes(q) || (pairs.heads && pairs.heads[i].toLowerCase().includes(q)))) continue;
      if (test(i)) found.push(i);
    }
    return ordered(found, state, condition, lists, models);
  }

  function ordered(found, state, condition, lists, models) {
    const { credit, margin } = lists[condition];
    if (state.order === "hard") {
      const right = (i) => models.reduce((sum, n) => sum + (credit[n] ? (credit[n][i] === "1" ? 2 : credit[n][i] === "h" ? 1 : 0) : 0), 0);
      const keyed = found.map((i) => [right(i), i]);
      return keyed.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, i]) => i);
    }
    if (!state.order && models.length > 1) {  // where they are split most evenly there is most to see
      const columns = models.map((n) => credit[n]).filter(Boolean), times = (i, letter) => columns.filter((column) => column[i] === letter).length;
      const split = new Map(found.map((i) => [i, Math.min(times(i, "1"), times(i, "0"))]));
      return [...found].sort((a, b) => split.get(b) - split.get(a) || a - b);
    }
    if (state.order === "margin" && models.length === 1 && margin[models[0]]) {
      const own = margin[models[0]];
      return [...found].sort((a, b) => (own[a] ?? Infinity) - (own[b] ?? Infinity) || a - b);
    }
    return found;
  }

  // a list of any length: only the rows in sight are elements
  function list(draw) {
    const inner = h("ol", { class: "virtual" }), outer = h("div", { class: "list", tabindex: 0, role: "region", "aria-label": "Pairs" }, inner);
    let items = [], wanted = null, queued = false;
    function paint() {
      queued = false;
      const first = Math.max(0, Math.floor(outer.scrollTop / ROW) - AROUND), last = Math.min(items.length, Math.ceil((outer.scrollTop + outer.clientHeight) / ROW) + AROUND);
      const rows = [];
      for (let n = first; n < last; n += 1) {
        const row = h("li", { "aria-setsize": items.length, "aria-posinset": n + 1 }, draw(items[n], items[n] === wanted));
        row.style.top = `${n * ROW}px`;
        rows.push(row);
      }
      inner.replaceChildren(...rows);
    }
    const later = () => { if (!queued) { queued = true; requestAnimationFrame(paint); } };
    outer.addEventListener("scroll", later, { passive: true });
    new ResizeObserver(later).observe(outer);
    return {
      node: outer,
      show(found, chosen) {
        if (found !== items) { items = found; outer.scrollTop = Math.min(outer.scrollTop, found.length * ROW); }
        wanted = chosen;
        const inside = inner.contains(document.activeElement);
        inner.style.height = `${items.length * ROW}px`;
        const at = items.indexOf(chosen);
        if (at >= 0 && (at * ROW < outer.scrollTop || (at + 1) * ROW > outer.scrollTop + outer.clientHeight)) outer.scrollTop = Math.max(0, at * ROW - outer.clientHeight / 2 + ROW);
        paint();
        if (inside) inner.querySelector("[aria-current]")?.focus({ preventScroll: true });
      },
    };
  }

  return { needed, possible, select, list };
})();
