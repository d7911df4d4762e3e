"use strict";
// Tables. A column: title, cell(row), key(row) to sort by; isNumber aligns right.
// sorted: the number of the column that it is sorted by at first; null: the rows come in their own order.
function makeTable(place, caption, columns, rows, sorted) {
  const state = { key: sorted, descending: true };
  function draw() {
    const table = element("table"), head = element("tr"), body = element("tbody");
    table.append(element("caption", caption(rows())), element("thead"), body);
    table.querySelector("thead").append(head);
    columns().forEach((one, i) => head.append(header(one, i)));
    for (const row of ordered()) body.append(line(row));
    const scroll = element("div", null, { class: "scroll" });
    scroll.append(table);
    place.replaceChildren(scroll);
  }
  function ordered() {
    if (state.key === null) return rows();
    const key = columns()[state.key].key;
    return [...rows()].sort((a, b) => compare(key(a), key(b)) * (state.descending ? -1 : 1));
  }
  function header(one, i) {
    const cell = element("th", null, { scope: "col" }), button = element("button", one.title, { type: "button" });
    cell.className = classOf(one);
    if (i === state.key) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    button.addEventListener("click", () => {
      state.descending = i === state.key ? !state.descending : Boolean(one.isNumber);
      state.key = i;
      draw();
      place.querySelectorAll("th button")[i].focus();
    });
    cell.append(button);
    return cell;
  }
  function line(row) {
    const made = element("tr");
    for (const one of columns()) {
      const cell = one.cell(row), td = element("td", typeof cell === "string" ? cell : null);
      td.className = classOf(one);
      if (typeof cell !== "string") td.append(cell);
      made.append(td);
    }
    return made;
  }
  return draw;
}

function classOf(column) { return [column.isNumber && "number", column.class].filter(Boolean).join(" "); }

function compare(a, b) { return typeof a === "number" ? a - b : String(a).localeCompare(String(b)); }

function stackCell(site) {
  const box = element("div"), button = element("button", site.where, { type: "button", "aria-expanded": "false" });
  const list = element("ol", null, { class: "stack", start: "0", hidden: "" });
  button.addEventListener("click", () => {
    if (!list.childElementCount) for (const frame of site.stack) list.append(element("li", frame));
    list.hidden = !list.hidden;
    button.setAttribute("aria-expanded", String(!list.hidden));
  });
  box.append(button);
  const tags = [site.kind !== "user" && site.kind, site.change !== "unchanged" && site.change,
    site.end !== "ROOT" && "partial stack", site.approximate && "approximate",
    site.leaks, site.suppressed && `suppressed by ${site.suppressed}`, site.stderr && `± ${exact(site.stderr)} bytes`];
  for (const tag of tags) if (tag) box.append(element("span", tag, { class: "tag" }));
  box.append(list);
  return box;
}
