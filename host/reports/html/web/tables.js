"use strict";
// The tables of stacks, modules and threads.
function weightColumns(of) {
  const found = [
    { title: data.unit, isNumber: true, key: (row) => of(row)[view.when], cell: (row) => exact(of(row)[view.when]) },
    { title: "allocations", isNumber: true, key: (row) => of(row)[view.when + 1], cell: (row) => exact(of(row)[view.when + 1]) },
    { title: "share", isNumber: true, key: (row) => of(row)[column()], cell: (row) => meter(of(row)[column()]) },
  ];
  if (data.isDiff) found.unshift({ title: "change", isNumber: true, key: (row) => difference(of(row)), cell: (row) => changeCell(of(row)) });
  return found;
}

function difference(weights) { return weights[view.by] - weights[view.by + 2]; }

function changeCell(weights) {
  const change = difference(weights);
  return element("span", `${change > 0 ? "+" : change < 0 ? "−" : ""}${exact(Math.abs(change))}`,
    { class: change > 0 ? "more" : change < 0 ? "less" : "" });
}

function meter(value) {
  const box = element("div"), bar = element("div", null, { class: "meter" }), fill = element("div");
  const whole = data.totals[column()];
  fill.style.width = `${whole ? Math.min(100, 100 * value / whole) : 0}%`;
  bar.append(fill);
  box.append(element("span", share(value, whole)), bar);
  return box;
}

function moduleText(name) { return Object.hasOwn(data.packages, name) ? `${name} · ${data.packages[name]}` : name; }

function processesOf(site) {
  const of = site.processes || [];
  return of.length > 1 ? `${of[0]} and ${exact(of.length - 1)} more` : of[0] || "";
}

const GROWTH_COLUMN = { title: "growth", isNumber: true, key: (site) => site.growth ? site.growth[0] : 0,
  cell: (site) => site.growth ? site.growth[1] : "" };
const SITE_COLUMNS = [
  ...(data.sites.some((site) => site.growth) && !data.isDiff ? [GROWTH_COLUMN] : []),
  { title: "allocated in", class: "name", key: (site) => site.where, cell: stackCell },
  { title: "line", class: "place", key: (site) => site.source, cell: (site) => site.source },
  { title: "module", key: (site) => site.module, cell: (site) => moduleText(site.module) },
  { title: "oldest, s", isNumber: true, key: (site) => site.oldest, cell: (site) => site.oldest.toFixed(1) },
  ...(data.sites.some((site) => site.ages) ? [{ title: "ages", class: "ages", key: (site) => site.ages || "", cell: (site) => site.ages || "" }] : []),
  ...(data.processes.length ? [{ title: "process", class: "place", key: (site) => (site.processes || [""])[0], cell: processesOf }] : []),
  { title: "id", key: (site) => site.id, cell: (site) => site.id },
];
const PAST_COLUMNS = [
  { title: data.unit, isNumber: true, key: (site) => site.space, cell: (site) => exact(site.space) },
  { title: "allocated in", class: "name", key: (site) => site.where, cell: stackCell },
  { title: "module", key: (site) => site.module, cell: (site) => moduleText(site.module) },
  { title: "id", key: (site) => site.id, cell: (site) => site.id },
];
const CHURN_COLUMN = { title: "allocations", isNumber: true, key: (site) => site.objects, cell: (site) => exact(site.objects) };

function isFoundSite(site) {
  return !view.term || isFound(view.term, site.where, site.module, site.id, ...site.stack);
}

function foundSites() {
  return data.sites.filter((site) => !view.term ||
    isFound(view.term, site.where, site.module, site.source, site.id, ...(site.processes || []), ...site.stack));
}

function processCell(row) {
  const button = element("button", row[0], { type: "button" });
  button.addEventListener("click", () => showStacks(row[0]));
  return button;
}

function processesCaption() {
  const left = data.processesLeftOut ? ` The ${exact(data.processesLeftOut)} that hold least are left out.` : "";
  return `A name shows the stacks of its process.${left}`;
}

function sitesCaption(rows) {
  const left = data.sitesLeftOut ? ` The ${exact(data.sitesLeftOut)} smallest are only in the sums.` : "";
  return `${exact(rows.length)} of ${exact(data.sites.length)} stacks. A name opens its stack, innermost function first.${left}`;
}

function placeCell(place) {
  if (!place.objects) return place.name;
  const button = element("button", place.name, { type: "button" });
  button.addEventListener("click", () => showStacks(place.function || place.source));
  return button;
}

const PLACE_COLUMNS = [
  ...(data.places.some((place) => place.growth) ? [{ title: "growth", isNumber: true, key: (place) => place.rate, cell: (place) => place.growth }] : []),
  { title: "held", isNumber: true, key: (place) => place.space, cell: (place) => place.held },
  { title: "blocks", isNumber: true, class: "wide", key: (place) => place.objects, cell: (place) => exact(place.objects) },
  { title: "share", isNumber: true, class: "wide", key: (place) => place.share, cell: (place) => place.share ? share(place.share, 1) : "" },
  { title: "function", class: "name", key: (place) => place.name, cell: placeCell },
  { title: "line", class: "place", key: (place) => place.source, cell: (place) => element("span", place.source.split("/").slice(-2).join("/"), { title: place.source }) },
];

function placesCaption() {
  const isGrowth = data.places.some((place) => place.rate);
  return `Places of the program, ${isGrowth ? "the fastest" : "the largest"} first. A name shows its stacks.`;
}

const tables = {
  places: makeTable(document.getElementById("places"), placesCaption, () => PLACE_COLUMNS, () => data.places, null),
  sites: makeTable(document.getElementById("view-sites"), sitesCaption,
    () => [...weightColumns((site) => site.weights), ...SITE_COLUMNS], foundSites, 0),
  processes: makeTable(document.getElementById("view-processes"), processesCaption,
    () => [{ title: data.unit, isNumber: true, key: (row) => row[2], cell: (row) => exact(row[2]) },
      { title: "allocations", isNumber: true, key: (row) => row[3], cell: (row) => exact(row[3]) },
      { title: "complete stacks", isNumber: true, key: (row) => row[4] / row[2], cell: (row) => share(row[4], row[2]) },
      { title: "process", class: "place", key: (row) => row[0], cell: processCell },
      { title: "largest site", key: (row) => row[5], cell: (row) => row[5] }],
    () => data.processes, 0),
  modules: makeTable(document.getElementById("view-modules"),
    () => "By the module of the program's own innermost function; “through”: of all stacks that pass through the module.",
    () => [...weightColumns((row) => row[1]), { title: "module", class: "name", key: (row) => row[0], cell: (row) => moduleText(row[0]) },
      { title: `${data.unit} through`, isNumber: true, key: (row) => row[2][view.when], cell: (row) => exact(row[2][view.when]) },
      { title: "allocations through", isNumber: true, key: (row) => row[2][view.when + 1], cell: (row) => exact(row[2][view.when + 1]) }],
    () => data.modules.filter((row) => !view.term || isFound(view.term, row[0])), 0),
  threads: makeTable(document.getElementById("view-threads"),
    (rows) => rows.length ? "By the thread that allocated." : "Not known: the report was written without threads.",
    () => [{ title: data.unit, isNumber: true, key: (row) => row[2], cell: (row) => exact(row[2]) },
      { title: "allocations", isNumber: true, key: (row) => row[3], cell: (row) => exact(row[3]) },
      { title: "process", isNumber: true, key: (row) => row[0], cell: (row) => String(row[0]) },
      { title: "thread", isNumber: true, key: (row) => row[1], cell: (row) => String(row[1]) }],
    () => data.threads, 0),
  peak: makeTable(document.getElementById("view-peak"), () => data.peak.caption,
    () => PAST_COLUMNS, () => data.peak.rows.filter(isFoundSite), 0),
  churn: makeTable(document.getElementById("view-churn"), () => "Allocated and given back, by stack.",
    () => [CHURN_COLUMN, ...PAST_COLUMNS], () => data.churn.filter(isFoundSite), 0),
};
