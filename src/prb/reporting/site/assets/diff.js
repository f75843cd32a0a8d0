// Where two answers differ, word by word: a pure function from two texts to marked pieces.
"use strict";

const diff = (() => {
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

  return { words };
})();
