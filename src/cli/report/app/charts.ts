// Histograms as SVG.

import { num } from "./data";
import type { Metrics, Output } from "./data";
import { h, number, svg } from "./text";

const [WIDTH, HEIGHT, LEFT, FOOT, TOP] = [560, 170, 44, 30, 8];

interface Scale { x: (value: number) => number; y: (n: number) => number }

function frame(label: string, low: string, high: string, most: number, isLog: boolean, axis: string): SVGElement {
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const base = HEIGHT - FOOT;
  chart.append(
    svg("line", { class: "axis", x1: LEFT, y1: base, x2: WIDTH - 8, y2: base }),
    svg("text", { x: LEFT, y: base + 14 }, low), svg("text", { x: WIDTH - 8, y: base + 14, "text-anchor": "end" }, high),
    svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, axis),
    svg("text", { x: LEFT - 5, y: TOP + 9, "text-anchor": "end" }, most.toLocaleString("en")),
    svg("text", { x: LEFT - 5, y: base, "text-anchor": "end" }, isLog ? "log" : "0"));
  return chart;
}

function scale(most: number, isLog: boolean, x: (value: number) => number): Scale {
  const room = HEIGHT - FOOT - TOP;
  const share = (n: number) => (isLog ? Math.log1p(n) / Math.log1p(most) : n / most);
  return { x, y: (n) => HEIGHT - FOOT - (most > 0 ? share(n) * room : 0) };
}

/** Both sides' values over one range, counts linear or logarithmic. */
export function valuesChart(output: Output, isLog: boolean): SVGElement {
  const { low, high, reference, candidate } = output.distribution!.values;
  const most = Math.max(1, ...reference, ...candidate);
  const chart = frame(`Histogram of the values, counts ${isLog ? "logarithmic" : "linear"}`, number(low), number(high), most, isLog, "value");
  const step = (WIDTH - 8 - LEFT) / Math.max(1, reference.length);
  const { y } = scale(most, isLog, (value) => value);
  const base = HEIGHT - FOOT;
  reference.forEach((n, at) => {
    if (n > 0) chart.append(svg("rect", { class: "reference", x: LEFT + at * step, y: y(n), width: step, height: base - y(n) }));
  });
  const outline = candidate.map((n, at) => `${at === 0 ? "M" : "L"}${LEFT + at * step} ${y(n)}H${LEFT + (at + 1) * step}`).join("");
  chart.append(svg("path", { class: "candidate", d: outline }));
  return chart;
}

/** |Δ| of the elements that are not equal, on a logarithmic axis, with the bound of the tolerance. */
export function distanceChart(output: Output, isLog: boolean): SVGElement {
  const { distances } = output.distribution!;
  const [least, most] = bound(output.metrics!);
  const edges = distances.map(([edge]) => edge);
  const low = Math.min(edges[0]! / 1.3, least > 0 ? least / 2 : Infinity);
  const high = Math.max(edges[edges.length - 1]!, most * 1.5);
  const [from, to] = [Math.log10(low), Math.log10(high)];
  const x = (value: number) => LEFT + ((Math.log10(Math.max(value, low)) - from) / (to - from || 1)) * (WIDTH - 8 - LEFT);
  const largest = Math.max(...distances.map(([, n]) => n));
  const chart = frame(`Histogram of the distances, counts ${isLog ? "logarithmic" : "linear"}`, number(low), number(high), largest, isLog, "|Δ|");
  const { y } = scale(largest, isLog, x);
  const base = HEIGHT - FOOT;
  let below = low;
  for (const [edge, n] of distances) {
    // Edges grow by a quarter at most; an empty bin is no part of the next.
    const start = Math.max(below, edge / 1.25);
    const kind = edge <= least ? "inside" : start >= most ? "outside" : "maybe";
    chart.append(svg("rect", { class: kind, x: x(start), y: y(n), width: Math.max(1, x(edge) - x(start) - 0.4), height: base - y(n) }));
    below = edge;
  }
  for (const at of least === most ? [least] : [least, most]) {
    if (at > 0) chart.append(svg("line", { class: "bound", x1: x(at), x2: x(at), y1: TOP, y2: base }));
  }
  return chart;
}

/** The bound of the tolerance: for an element that is 0, and for the largest. */
export function bound(metrics: Metrics): [number, number] {
  const { atol, rtol, scale } = metrics.tolerance;
  const size = num(metrics.max_reference);
  return [atol + scale * size, atol + scale * size + rtol * size];
}

/** A chart that shows its counts linear or logarithmic. */
export function withTwin(title: HTMLElement | string, chart: (isLog: boolean) => SVGElement): HTMLElement {
  let isLog = false;
  const holder = h("div", {}, chart(isLog));
  const button = h("button", {
    type: "button", class: "chip", "aria-pressed": "false",
    onclick: () => {
      isLog = !isLog;
      button.setAttribute("aria-pressed", String(isLog));
      holder.replaceChildren(chart(isLog));
    },
  }, "log counts");
  return h("div", {}, h("div", { class: "bar" }, h("h3", {}, title), button), holder);
}
