"use strict";
// Outstanding bytes over time: the largest sites stacked, all others on top; also as a table.
const EDGE = { left: 76, right: 14, top: 12, bottom: 30 }, HEIGHT = 340;

// A row per moment: seconds, then the bytes of each name; "others" is the rest of the sum.
function timelineRows() {
  const { seconds, sums, held } = data.timeline;
  return seconds.map((at, i) => {
    const parts = held.map((one) => one[i][view.by]);
    const others = Math.max(0, sums[i][view.by] - parts.reduce((a, b) => a + b, 0));
    return { at, sum: sums[i][view.by], parts: [...parts, others] };
  });
}

function timelineNames() { return [...data.timeline.names, "others"]; }

function timelineColour(i) { return i === data.timeline.names.length ? GREY : PALETTE[i % PALETTE.length]; }

function drawTimeline() {
  const place = document.getElementById("view-timeline");
  if (data.timeline.seconds.length < 2 || place.hidden) return;
  const rows = timelineRows(), names = timelineNames();
  const width = Math.max(320, place.clientWidth), format = view.by ? exact : bytes;
  const x = d3.scaleLinear([rows[0].at, rows[rows.length - 1].at], [EDGE.left, width - EDGE.right]);
  const y = d3.scaleLinear([0, d3.max(rows, (row) => row.sum) || 1], [HEIGHT - EDGE.bottom, EDGE.top]);
  const svg = d3.create("svg").attr("width", width).attr("height", HEIGHT).attr("role", "img")
    .attr("aria-label", `Outstanding over time: ${format(rows[0].sum)} at first, ${format(rows[rows.length - 1].sum)} at the end`);
  const stack = d3.stack().keys(d3.range(names.length)).value((row, i) => row.parts[i]);
  const area = d3.area().x((one) => x(one.data.at)).y0((one) => y(one[0])).y1((one) => y(one[1]));
  svg.selectAll("path").data(stack(rows)).join("path").attr("d", area).attr("fill", (_, i) => timelineColour(i))
    .append("title").text((_, i) => names[i]);
  svg.append("g").attr("transform", `translate(0,${HEIGHT - EDGE.bottom})`).call(d3.axisBottom(x).ticks(8).tickFormat((at) => `${at} s`));
  svg.append("g").attr("transform", `translate(${EDGE.left},0)`).call(d3.axisLeft(y).tickValues(ticks(y)).tickFormat(format));
  place.replaceChildren(timelineLegend(names), svg.node(), timelineTable(rows, names));
}

// Round amounts: of bytes a power of two apart.
function ticks(y) {
  const most = y.domain()[1];
  if (view.by || most < 8) return y.ticks(6).filter(Number.isInteger);
  const step = 2 ** Math.ceil(Math.log2(most / 7));
  return d3.range(0, most + 1, step);
}

function timelineLegend(names) {
  const legend = element("p", null, { class: "legend" });
  names.forEach((name, i) => {
    const item = element("span", name), box = element("i");
    box.style.background = timelineColour(i);
    item.prepend(box);
    legend.append(item);
  });
  return legend;
}

function timelineTable(rows, names) {
  const details = element("details"), table = element("table"), head = element("tr"), scroll = element("div", null, { class: "scroll" });
  for (const name of ["seconds", "sum", ...names]) head.append(element("th", name, { scope: "col" }));
  table.append(head);
  for (const row of rows) {
    const line = element("tr");
    for (const value of [row.at, row.sum, ...row.parts]) line.append(element("td", exact(value), { class: "number" }));
    table.append(line);
  }
  scroll.append(table);
  details.append(element("summary", "As a table"), scroll);
  return details;
}
