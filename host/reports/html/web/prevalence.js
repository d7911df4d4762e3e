"use strict";
// Stacks by the share of recordings that show them and by their mean bytes, and a stack's bytes over recordings.
const PLOT = { height: 300, left: 84, right: 22, top: 14, bottom: 40 };

function drawPrevalence(choose) {
  const place = document.getElementById("prevalence");
  if (!data.sites.length || place.parentElement.hidden) return;
  const width = Math.max(320, place.clientWidth);
  const x = d3.scaleLinear([0, 1], [PLOT.left, width - PLOT.right]);
  const most = d3.max(data.sites, (site) => site.mean), least = d3.min(data.sites, (site) => Math.max(site.mean, 0.5));
  const y = d3.scaleLog([least / 1.5, most * 1.5], [PLOT.height - PLOT.bottom, PLOT.top]);
  const svg = d3.create("svg").attr("width", width).attr("height", PLOT.height).attr("role", "img")
    .attr("aria-label", "Stacks by share of recordings and mean bytes; the table below holds the same");
  svg.append("g").attr("transform", `translate(0,${PLOT.height - PLOT.bottom})`).call(d3.axisBottom(x).ticks(10, "%"));
  svg.append("g").attr("transform", `translate(${PLOT.left},0)`).call(d3.axisLeft(y).tickValues(powers(y)).tickFormat(bytes));
  svg.append("text").attr("class", "caption").attr("x", width - PLOT.right).attr("y", PLOT.height - 6)
    .attr("text-anchor", "end").text("recordings that show it");
  svg.append("text").attr("class", "caption").attr("x", PLOT.left + 6).attr("y", PLOT.top + 4).text("mean bytes per recording");
  svg.selectAll("circle").data(data.sites).join("circle")
    .attr("cx", (site) => x(site.share)).attr("cy", (site) => y(Math.max(site.mean, 0.5))).attr("r", 6)
    .classed("unfound", (site) => !isFoundStack(site)).on("click", (_, site) => choose(site))
    .append("title").text((site) => `${site.where}: ${bytes(site.mean)}, ${share(site.share, 1)}`);
  place.replaceChildren(svg.node());
}

// Powers of 4 within the scale, so that few of them do.
function powers(y) {
  const [low, high] = y.domain(), found = [];
  for (let at = 1; at <= high; at *= 4) if (at >= low) found.push(at);
  return found.length ? found : [high];
}

// From the median to the 99th of a hundred devices, the 90th as a mark; all stacks on one scale.
function range(site) {
  const [p50, p90, p99] = site.ranks, width = 120;
  const x = d3.scaleSqrt([0, d3.max(data.sites, (one) => one.ranks[2]) || 1], [4, width - 4]);
  const svg = d3.create("svg").attr("class", "range").attr("width", width).attr("height", 12).attr("role", "img")
    .attr("aria-label", `p50 ${exact(p50)}, p90 ${exact(p90)}, p99 ${exact(p99)} bytes`);
  svg.append("line").attr("class", "span").attr("x1", x(p50)).attr("x2", Math.max(x(p99), x(p50) + 1)).attr("y1", 6).attr("y2", 6);
  for (const [at, size] of [[p50, 3.5], [p90, 2.5], [p99, 2.5]]) svg.append("circle").attr("class", "mark").attr("cx", x(at)).attr("cy", 6).attr("r", size);
  return svg.node();
}
