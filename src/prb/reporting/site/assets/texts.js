// Answers to read: where two differ, word by word, and Markdown as elements. Text stays text: nothing in it becomes HTML.
"use strict";

const texts = (() => {
  const { h } = prb;

  // --- Markdown: what answers use of it. Links are shown with their address, never followed ---
  const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*|\[[^\]\n]+\]\([^)\s]+\))/;
  const BLOCK = /^(```|~~~|#{1,6} |\s*([-*+]|\d+[.)]) |> ?|\|)/m;
  const isMarkdown = (text) => BLOCK.test(text) || INLINE.test(text);

  function inline(text) {
    return text.split(INLINE).map((part, n) => {
      if (n % 2 === 0) return part;
      if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
      if (part.startsWith("**")) return h("b", {}, part.slice(2, -2));
      if (part.startsWith("*")) return h("i", {}, part.slice(1, -1));
      return part.replace(/^\[(.*)\]\((.*)\)$/, "$1 ($2)");
    });
  }

  function markdown(text) {
    const lines = text.split("\n"), made = [];
    const take = (test) => { const some = []; while (lines.length && test(lines[0])) some.push(lines.shift()); return some; };
    const item = /^\s*([-*+]|\d+[.)]) +/;
    while (lines.length) {
      const line = lines[0], fence = line.match(/^\s*(```|~~~)/);
      if (!line.trim()) lines.shift();
      else if (fence) {
        lines.shift();
        made.push(h("pre", { tabindex: 0 }, h("code", {}, take((l) => !l.trim().startsWith(fence[1])).join("\n"))));
        lines.shift();
      } else if (/^#{1,6} /.test(line)) made.push(h("p", { class: "heading" }, inline(lines.shift().replace(/^#+ /, ""))));
      else if (item.test(line)) {
        const items = take((l) => item.test(l) || (/^\s+\S/.test(l) && l.trim()));
        made.push(h(/^\s*\d/.test(line) ? "ol" : "ul", { start: (line.match(/^\s*(\d+)/) || [])[1] }, items.map((l) => h("li", { class: /^\s{2,}/.test(l) ? "deeper" : null }, inline(l.replace(item, "").trim())))));
      } else if (line.startsWith(">")) made.push(h("blockquote", {}, inline(take((l) => l.startsWith(">")).map((l) => l.replace(/^> ?/, "")).join("\n"))));
      else if (line.startsWith("|")) made.push(h("pre", { tabindex: 0 }, take((l) => l.startsWith("|")).join("\n")));
      else made.push(h("p", {}, inline(take((l) => l.trim() && !BLOCK.test(l)).join("\n") || lines.shift())));
    }
    return made;
  }

  // long texts show their beginning; a button shows the rest
  const LONG = 1600;
  function clamped(length, attributes, ...children) {
    const body = h("div", { dir: "auto", ...attributes }, children);
    if (length <= LONG) return body;
    body.classList.add("clamp");
    const more = h("button", { type: "button", class: "more", "aria-expanded": "false", onclick: () => { const open = body.classList.toggle("clamp"); more.textContent = open ? "show all" : "show less"; more.setAttribute("aria-expanded", String(!open)); } }, "show all");
    return [body, more];
  }

  // --- where two answers differ ---
  const MOST = 4e6, STEM = 5;
  const cut = (text) => text.match(/\s+|[\p{L}\p{N}'’]+|[^\s\p{L}\p{N}]/gu) || [];
  const blank = (token) => /^\s+$/.test(token);
  const fold = (token) => token.toLowerCase();

  // [[text, differs], …] for each side, the share of words in common order, and how the marks were found
  function words(a, b) {
    const left = cut(a), right = cut(b);
    const x = left.filter((t) => !blank(t)).map(fold), y = right.filter((t) => !blank(t)).map(fold);
    const common = x.length * y.length <= MOST ? longest(x, y) : null;
    const shared = common ? (2 * common.length) / Math.max(1, x.length + y.length) : 0;
    if (shared >= 0.5) {
      return { shared, how: "order", left: pieces(left, new Set(common.map(([i]) => i))), right: pieces(right, new Set(common.map(([, j]) => j))) };
    }
    // two texts of their own: then a word of some length is marked that the other does not have, in no form of it
    const stem = (t) => t.slice(0, STEM), [inX, inY] = [new Set(x.map(stem)), new Set(y.map(stem))];
    const kept = (list, other) => new Set(list.map((t, i) => (t.length < STEM || other.has(stem(t)) ? i : -1)));
    return { shared, how: "words", left: pieces(left, kept(x, inY)), right: pieces(right, kept(y, inX)) };
  }

  // positions of a longest common subsequence
  function longest(x, y) {
    const width = y.length + 1, best = new Uint16Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i -= 1) {
      for (let j = y.length - 1; j >= 0; j -= 1) {
        best[i * width + j] = x[i] === y[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      }
    }
    const found = [];
    for (let i = 0, j = 0; i < x.length && j < y.length;) {
      if (x[i] === y[j]) { found.push([i, j]); i += 1; j += 1; } else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1; else j += 1;
    }
    return found;
  }

  // neighbors of one kind are joined; a space between two marked words is marked as well
  function pieces(tokens, kept) {
    const runs = [];
    let word = 0, waiting = "";
    for (const token of tokens) {
      if (blank(token)) { waiting += token; continue; }
      const differs = !kept.has(word), last = runs[runs.length - 1];
      word += 1;
      if (last && last[1] === differs) last[0] += waiting + token;
      else {
        if (waiting) { if (last && !last[1]) last[0] += waiting; else if (differs || !last) runs.push([waiting, false]); else { runs.push([waiting + token, false]); waiting = ""; continue; } }
        runs.push([token, differs]);
      }
      waiting = "";
    }
    if (waiting) runs.push([waiting, false]);
    return runs;
  }

  return { words, markdown, isMarkdown, clamped };
})();
