"use strict";
// Keyboard control of the flame graph: one frame is current; the container keeps the focus and names it to screen readers.
let current = null;

function frames() { return d3.select("#flame").selectAll("g.frame"); }

function rootFrame() {
  let root = null;
  frames().each((d) => { if (d.depth === 0) root = d; });
  return root;
}

function setCurrent(d) {
  current = d;
  const place = document.getElementById("flame");
  frames().classed("current", (one) => one === d).attr("id", (one) => `frame-${one.id}`).attr("role", "treeitem")
    .attr("aria-level", (one) => one.depth + 1).attr("aria-label", (one) => describe(one));
  if (d) place.setAttribute("aria-activedescendant", `frame-${d.id}`);
  else place.removeAttribute("aria-activedescendant");
}

function shown(d) { return d && d.value > 0; }

// Neighbours are those of the same caller, in the order they are drawn.
function neighbour(d, step) {
  const row = d.parent ? d.parent.children.filter(shown) : [d];
  return row[row.indexOf(d) + step];
}

const MOVES = {
  ArrowDown: (d) => (d.children || []).find(shown),
  ArrowUp: (d) => d.parent,
  ArrowRight: (d) => neighbour(d, 1),
  ArrowLeft: (d) => neighbour(d, -1),
  Home: () => rootFrame(),
};

document.getElementById("flame").addEventListener("keydown", (event) => {
  const d = current || rootFrame();
  if (event.key in MOVES) {
    const next = current ? MOVES[event.key](d) : d;
    if (next) {
      setCurrent(next);
      document.getElementById("details").textContent = describe(next);
    }
  } else if (event.key === "Enter" || event.key === " ") {
    chart.zoomTo(d);
  } else if (event.key === "Escape") {
    chart.resetZoom();
    setCurrent(null);
  } else {
    return;
  }
  event.preventDefault();
});
