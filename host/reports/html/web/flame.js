"use strict";
// The flame graph: d3-flame-graph draws and zooms; colours by module, of a comparison by growth.
const PALETTE = ["#f2b279", "#9cc7e8", "#b7d98b", "#e3b5d6", "#f3d66b", "#a9b8ee", "#8fd3c1", "#f0a6a0", "#d3c59b", "#c6b3f0"];
const GREY = "#c9ced6", FOUND = "#ff5fd2";
let chart = null;

const colours = new Map();
data.modules.forEach(([name], i) => colours.set(name, PALETTE[i % PALETTE.length]));

function colour(d) {
  if (d.highlight) return FOUND;
  if (data.isDiff) return growthColour(d.data.weights);
  if (d.depth === 0 || d.data.isFolded || !d.data.module) return GREY;
  return colours.get(d.data.module) || GREY;
}

// White: as before. Red: grown, up to all of it; blue: shrunk.
function growthColour(weights) {
  const before = weights[view.by + 2], after = weights[view.by];
  const change = (after - before) / Math.max(before, after, 1);
  const pale = Math.round(236 * (1 - 0.75 * Math.abs(change)));
  return change > 0 ? `rgb(247,${pale},${pale})` : change < 0 ? `rgb(${pale},${pale + 12},250)` : "#eceff3";
}

function describe(d) {
  const weights = d.data.weights, whole = data.totals[column()];
  const place = d.data.module ? ` [${d.data.module}]` : "", many = d.data.names.size;
  let text = `${d.data.isLibrary && many > 1 ? `${exact(many)} functions of libraries` : d.data.name}${place}: ${amount(weights, view.when)}, ${share(weights[column()], whole)} of all`;
  if (data.isDiff) text += ` (${amount(weights, 2)} → ${amount(weights, 0)})`;
  return text;
}

function drawFlame() {
  const place = document.getElementById("flame");
  place.replaceChildren();
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches || navigator.webdriver;
  chart = flamegraph.default()
    .width(Math.max(300, place.clientWidth - 2))
    .cellHeight(20)
    .inverted(true)
    .minFrameSize(1)
    .transitionDuration(still ? 0 : 250)
    .resetHeightOnZoom(true)
    .sort((a, b) => b.value - a.value)
    .setColorMapper((d) => colour(d))
    .setLabelHandler(describe)
    .setDetailsHandler((text) => { document.getElementById("details").textContent = text || describeRoot(); })
    .setSearchMatch((d, term) => term !== "" && isFound(term, d.data.module, d.data.name, ...d.data.names))
    .setSearchHandler((results, sum) => showFound(sum))
    .onClick((d) => setCurrent(d));
  d3.select(place).datum(tree(view.direction)).call(chart);
  settle();
  setCurrent(null);
  if (view.term) chart.search(view.term);
  document.getElementById("details").textContent = describeRoot();
  drawLegend();
}

// No animation at first: printing and screenshots need the finished graph.
function settle() {
  frames().each(function (d) {
    const frame = d3.select(this);
    frame.select("rect").interrupt().attr("width", this.getAttribute("width"));
    frame.select("foreignObject div").interrupt().text(d.data.name);
  });
}

function describeRoot() {
  const root = data.trees[view.direction].weights.map((one) => one[0]);
  return `all: ${amount(root, view.when)}`;
}

function showFound(sum) {
  const text = view.by ? exact(sum) : bytes(sum);
  document.getElementById("found").textContent = view.term ? `${text}, ${share(sum, data.totals[column()])}` : "";
}

function searchFlame() {
  if (view.term) chart.search(view.term);
  else { chart.clear(); showFound(0); }
}

function drawLegend() {
  const legend = document.getElementById("legend");
  const rows = data.isDiff
    ? [["rgb(247,59,59)", "grown"], ["#eceff3", "as before"], ["rgb(59,71,250)", "shrunk"]]
    : data.modules.slice(0, 8).filter(([name]) => colours.has(name)).map(([name]) => [colours.get(name), name]);
  legend.replaceChildren(...rows.map(([fill, text]) => {
    const item = element("span", text), box = element("i");
    box.style.background = fill;
    item.prepend(box);
    return item;
  }));
}
