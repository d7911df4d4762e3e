"use strict";
// The page of many recordings: head, tabs, search.
function put(name, text) { document.getElementById(name).textContent = text; }

fillHead(`${data.title ? `${data.title}: ` : ""}${exact(data.counted)} recordings`);
put("counted", exact(data.counted));
put("mean-space", bytes(data.meanSpace));
document.getElementById("mean-space").title = `${exact(data.meanSpace)} bytes`;
put("total-sites", exact(data.sites.length + data.sitesLeftOut[0]));
put("total-changes", exact(data.changesInAll));
put("not-well", exact(data.states.broken + data.states.incomplete + data.states.duplicate));

// A click on a dot opens its row.
function choose(site) {
  for (const row of document.querySelectorAll("#table-sites tbody tr")) {
    const isIt = row.lastElementChild.textContent === site.id;
    row.classList.toggle("chosen", isIt);
    if (!isIt) continue;
    const name = row.querySelector("td.name button");
    if (name.getAttribute("aria-expanded") === "false") name.click();
    row.scrollIntoView({ block: "center" });
    name.focus();
  }
}

function drawAll() {
  drawPrevalence(choose);
  for (const draw of Object.values(tables)) draw();
}

const openTab = makeTabs((tab) => { if (tab.id === "tab-sites") drawPrevalence(choose); });
let waiting = 0;
document.getElementById("search").addEventListener("input", (event) => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { view.term = event.target.value.trim().toLowerCase(); drawAll(); }, 150);
});
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawPrevalence(choose), 150); });
drawAll();
openTab(location.hash.slice(1));
