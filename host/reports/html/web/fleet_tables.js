"use strict";
// Tables of stacks, versions, kinds of devices and recordings.
function whole(value) { return exact(Math.round(value)); }

function small(value) { return value < 0.001 ? value.toExponential(1) : value.toFixed(3); }

function signed(value) {
  return element("span", `${value > 0 ? "+" : value < 0 ? "−" : ""}${whole(Math.abs(value))}`, { class: value > 0 ? "more" : value < 0 ? "less" : "" });
}

function numeric(title, of, text = whole) { return { title, isNumber: true, key: of, cell: (row) => text(of(row)) }; }

function text(title, of, kind = "") { return { title, class: kind, key: of, cell: of }; }

function shareCell(part, all) {
  const box = element("div"), bar = element("div", null, { class: "meter" }), fill = element("div");
  fill.style.width = `${all ? 100 * part / all : 0}%`;
  bar.append(fill);
  box.append(element("span", `${exact(part)} of ${exact(all)}`), bar);
  return box;
}

function isFoundStack(row) { return !view.term || isFound(view.term, row.where, row.module, row.id, row.versions || "", ...row.stack); }

function whereCell(row) {
  const box = stackCell(row);
  if (row.callers.length) box.insertBefore(element("span", ` ← ${row.callers.join(" ← ")}`, { class: "quiet" }), box.children[1]);
  return box;
}

const WHERE = { title: "allocated in", class: "name", key: (row) => row.where, cell: whereCell };
const MODULE = text("module", (row) => row.module);
const ID = text("id", (row) => row.id);

const SITE_COLUMNS = [
  numeric("mean bytes", (row) => row.mean),
  { title: "shown by", isNumber: true, key: (row) => row.share, cell: (row) => shareCell(row.recordings, data.counted) },
  numeric("p50", (row) => row.ranks[0]), numeric("p90", (row) => row.ranks[1]), numeric("p99", (row) => row.ranks[2]),
  { title: "p50 … p90 … p99", key: (row) => row.ranks[2], cell: range },
  numeric("mean blocks", (row) => row.objects, (value) => value.toFixed(1)),
  WHERE, MODULE, text("versions", (row) => row.versions), ID,
];
const VERSION_COLUMNS = [
  text("version", (row) => row[0]), numeric("recordings", (row) => row[1]),
  numeric("mean bytes outstanding", (row) => row[2]), numeric("median duration, s", (row) => row[3], (value) => value.toFixed(1)),
];
const CHANGE_COLUMNS = [
  { title: "mean bytes", isNumber: true, key: (row) => row.means[1] - row.means[0], cell: (row) => signed(row.means[1] - row.means[0]) },
  text("between", (row) => `${row.between[0]} → ${row.between[1]}`),
  numeric("before", (row) => row.means[0]), numeric("after", (row) => row.means[1]),
  { title: "shown before", isNumber: true, key: (row) => row.shown[0] / row.shown[1], cell: (row) => shareCell(row.shown[0], row.shown[1]) },
  { title: "shown after", isNumber: true, key: (row) => row.shown[2] / row.shown[3], cell: (row) => shareCell(row.shown[2], row.shown[3]) },
  numeric("q", (row) => row.q, small), WHERE, MODULE, ID,
];
const DEVICE_COLUMNS = [
  numeric("mean bytes", (row) => row.mean), text("only on", (row) => `${row.dimension} ${row.value}`),
  { title: "shown by", isNumber: true, key: (row) => row.recordings / row.of, cell: (row) => shareCell(row.recordings, row.of) },
  numeric("p", (row) => row.p, small), WHERE, MODULE, ID,
];
const RECORDING_COLUMNS = [
  { title: "state", key: (row) => row.state, cell: (row) => element("span", row.state, { class: row.state }) },
  text("recording", (row) => row.source, "source"), text("why", (row) => row.reason, "source"),
  text("version", (row) => row.version), text("device", (row) => row.device), text("ABI", (row) => row.abi),
  numeric("API level", (row) => row.api, (value) => value ? String(value) : ""), numeric("seconds", (row) => row.seconds, (value) => value.toFixed(1)),
  numeric("bytes outstanding", (row) => row.space), numeric("without a stack", (row) => row.without),
  { title: "complete stacks", isNumber: true, key: (row) => row.stacks[1] ? row.stacks[0] / row.stacks[1] : 0,
    cell: (row) => row.stacks[1] ? shareCell(row.stacks[0], row.stacks[1]) : "" },
  text("lost", (row) => Object.entries(row.lost).map(([cause, count]) => `${cause} ${exact(count)}`).join(", ")),
];

function most(rows, all, what) { return all > rows ? ` ${exact(all - rows)} more ${what} are in the sums and in --format json only.` : ""; }

function found(rows) { return rows.filter(isFoundStack); }

function foundRecordings() {
  return data.recordings.filter((row) => !view.term || isFound(view.term, row.source, row.reason, row.version, row.device, row.abi, row.state));
}

function place(name) { return document.getElementById(`table-${name}`); }

const tables = {
  sites: makeTable(place("sites"), (rows) => `${exact(rows.length)} of ${exact(data.sites.length)} stacks, bytes per recording;`
    + ` a recording that does not show one holds 0. A name opens its stack.${most(data.sites.length, data.sites.length + data.sitesLeftOut[0], "stacks")}`,
    () => SITE_COLUMNS, () => found(data.sites), 0),
  versions: makeTable(place("versions"), () => "Versions, in their order.", () => VERSION_COLUMNS, () => data.versions, null),
  changes: makeTable(place("changes"), (rows) => `${exact(rows.length)} changes from a version to the next. q: how many of those that are`
    + ` at least as sure may be none (Mann–Whitney, Benjamini–Hochberg).${most(data.changes.length, data.changesInAll, "changes")}`,
    () => CHANGE_COLUMNS, () => found(data.changes), 0),
  devices: makeTable(place("devices"), (rows) => rows.length ? "What one ABI or API level shows and no other. p: how likely that is by chance."
    : "No stack is on one kind of device only, as far as chance leaves that to be said.", () => DEVICE_COLUMNS, () => found(data.onlyOn), 0),
  recordings: makeTable(place("recordings"), (rows) => `${exact(rows.length)} recordings.${most(data.recordings.length, data.recordingsInAll, "recordings")}`,
    () => RECORDING_COLUMNS, foundRecordings, null),
};
