"use strict";
// Data of the page, as the report wrote it. Names are untrusted and only ever become textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const view = { by: data.byObjects ? 1 : 0, when: 0, direction: "inward", term: "", folds: true };
const FOLDED = -1;

// Index of the selected weight: bytes, blocks; in a comparison then those of the old result.
function column() { return view.by + view.when; }

function exact(value) { return value.toLocaleString("en-US"); }

function bytes(value) {
  if ((data.unit || "bytes") !== "bytes") return `${exact(value)} ${data.unit}`;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0, amount = Math.abs(value);
  while (amount >= 1024 && unit < units.length - 1) { amount /= 1024; unit += 1; }
  const digits = unit === 0 ? exact(amount) : amount.toFixed(amount < 10 ? 2 : 1);
  return `${value < 0 ? "−" : ""}${digits} ${units[unit]}`;
}

function share(value, whole) { return whole ? `${(100 * value / whole).toFixed(1)} %` : ""; }

function amount(weights, first) {
  if ((data.unit || "bytes") !== "bytes") return bytes(weights[first]);
  return `${bytes(weights[first])} in ${exact(weights[first + 1])} allocation${weights[first + 1] === 1 ? "" : "s"}`;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// The tree of one direction for d3: a node's value includes all nodes below it. Runs of frames of libraries and of
// interpreters are one node each, and what they call is merged.
function tree(direction) {
  const flat = data.trees[direction], nodes = [];
  flat.parent.forEach((parent, i) => {
    const isFolded = i > 0 && flat.label[i] === FOLDED, above = nodes[parent];
    const isLibrary = view.folds && i > 0 && !isFolded && data.labels[flat.label[i]][2] === 1;
    const [name, module] = i === 0 ? ["all", ""] : labelOf(flat, i);
    if (isLibrary && above.isLibrary) {
      above.names.add(name);
      nodes.push(above);
      return;
    }
    const weights = flat.weights.map((one) => one[i]), key = isLibrary ? `:${module}` : flat.label[i];
    let node = above && above.byKey.get(key);
    if (node) node.weights = node.weights.map((weight, at) => weight + weights[at]);
    else {
      node = { name, module, weights, children: [], isFolded, isLibrary, names: new Set(), byKey: new Map() };
      if (above) { above.children.push(node); above.byKey.set(key, node); }
    }
    node.names.add(name);
    nodes.push(node);
  });
  for (const node of new Set(nodes)) {
    node.value = node.weights[column()];
    if (node.isLibrary && node.names.size > 1) node.name = `⋮ ${node.module}`;
  }
  return nodes[0];
}

function labelOf(flat, i) {
  if (flat.label[i] === FOLDED) return [`(${exact(flat.folded[i])} smaller)`, ""];
  const [name, module] = data.labels[flat.label[i]];
  return [name, data.moduleNames[module]];
}

function isFound(term, ...texts) { return texts.some((text) => text.toLowerCase().includes(term)); }
