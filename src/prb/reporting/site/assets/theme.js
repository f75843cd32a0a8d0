// Before the first paint, so that a chosen theme does not flash.
"use strict";
try {
  const chosen = localStorage.getItem("prb-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a browser may keep no storage for files on disk: then the system's choice stands */ }
