"use strict";
// Head and controls.
function drawHead() {
  fillHead(data.isDiff ? `${data.title}: compared` : data.title);
  const space = document.getElementById("total-space"), objects = document.getElementById("total-objects");
  space.textContent = bytes(data.totals[0]);
  space.title = `${exact(data.totals[0])} ${data.unit}`;
  objects.textContent = exact(data.totals[1]);
  document.getElementById("total-sites").textContent = exact(data.sites.length + data.sitesLeftOut);
  if (data.isDiff) {
    const change = data.totals[0] - data.totals[2];
    document.getElementById("total-space-label").textContent = `outstanding (${change < 0 ? "" : "+"}${bytes(change)})`;
  }
}

document.getElementById("places").hidden = !data.places.length;
document.getElementById("tab-timeline").hidden = data.timeline.seconds.length < 2;
document.getElementById("tab-peak").hidden = !data.peak.rows.length || data.isDiff;
document.getElementById("tab-churn").hidden = !data.churn.length || data.isDiff;
document.getElementById("tab-processes").hidden = !data.processes.length || data.isDiff;
const openTab = makeTabs((tab) => {
  if (tab.id === "tab-flame") drawFlame();
  if (tab.id === "tab-timeline") drawTimeline();
});

function drawAll() {
  drawFlame();
  drawTimeline();
  for (const draw of Object.values(tables)) draw();
}

for (const name of ["by", "when"]) {
  document.getElementById(name).addEventListener("change", (event) => { view[name] = Number(event.target.value); drawAll(); });
}
document.getElementById("direction").addEventListener("change", (event) => { view.direction = event.target.value; drawFlame(); });
document.getElementById("folds").addEventListener("change", (event) => { view.folds = event.target.checked; drawFlame(); });
document.getElementById("reset").addEventListener("click", () => { chart.resetZoom(); setCurrent(null); });

function search(term) {
  view.term = term.trim().toLowerCase();
  searchFlame();
  tables.sites();
  for (const name of ["modules", "peak", "churn"]) tables[name]();
}

let waiting = 0;
document.getElementById("search").addEventListener("input", (event) => {
  clearTimeout(waiting);
  waiting = setTimeout(() => search(event.target.value), 150);
});

// The stacks of one process or place: the search finds them by its name, and can be changed or emptied.
function showStacks(name) {
  document.getElementById("search").value = name;
  search(name);
  openTab("sites");
  document.getElementById("tab-sites").focus();
}
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { drawFlame(); drawTimeline(); }, 150); });

document.getElementById("by").value = String(view.by);
document.getElementById("by").options[0].text = data.unit;
document.getElementById("when-label").hidden = !data.isDiff;
// A link can open a view: #sites, #processes, #modules, #threads; #inverted.
const wanted = location.hash.slice(1);
if (wanted in data.trees) { view.direction = wanted; document.getElementById("direction").value = wanted; }
drawHead();
drawAll();
openTab(wanted);
