// One output: its numbers, its histograms, its worst elements.

import { num, worstFirst } from "./data";
import type { Element_, Output, Place } from "./data";
import { bound, distanceChart, valuesChart, withTwin } from "./charts";
import { mark } from "./marks";
import type { State } from "./state";
import { count, enough, exact, h, number, percent, roleWords, shown, table } from "./text";

export interface TensorView { element: HTMLElement; refresh: () => void }

export function tensorView(state: State): TensorView {
  const { outputs } = state.data;
  if (outputs.length === 0) {
    return { element: h("section", { class: "panel" }, h("p", {}, "The dump has no output with eager's beside it.")), refresh: () => {} };
  }
  const several = state.data.calls.length > 1;
  const order = outputs.map((place, at) => ({ place, at })).sort((one, other) => worstFirst(one.place, other.place));
  state.output = order[0]!.at;
  const label = ({ call, of }: Place<Output>) => `${of.kind.replace("_", " ")}: ${shown(of.name, 40)}${of.role ? ` (${shown(roleWords(of.role), 50)})` : ""}${several ? ` of ${shown(call.label, 30)}` : ""}`;
  const choice = h("select", { "aria-label": "Output", id: "output", onchange: () => ((state.output = Number(choice.value)), refresh()) },
    ...order.map(({ place, at }) => h("option", { value: at }, label(place))));
  const body = h("div");
  const go = (by: number) => {
    const now = order.findIndex(({ at }) => at === state.output);
    state.output = order[Math.min(order.length - 1, Math.max(0, now + by))]!.at;
    refresh();
  };
  const refresh = () => {
    choice.value = String(state.output);
    body.replaceChildren(...shownOf(state, outputs[state.output]!));
  };
  refresh();
  const element = h("div", {}, h("div", { class: "bar" }, h("label", {}, "Output ", choice),
    h("button", { type: "button", onclick: () => go(-1) }, "Worse"), h("button", { type: "button", onclick: () => go(1) }, "Better"),
    h("span", { class: "soft" }, `${count(outputs.length, "output")}, the worst first. Tensors of nodes are not in a dump: their numbers stand beside a selected node.`)), body);
  return { element, refresh };
}

function shownOf(state: State, { call, of }: Place<Output>): HTMLElement[] {
  const { metrics, distribution: found } = of;
  const head = h("section", { class: "panel", "aria-label": "Numbers" },
    h("h2", { class: "name" }, shown(of.name, 120)), mark(of.kind), of.reason !== "" && h("p", {}, shown(of.reason, 400)),
    metrics && h("dl", { class: "facts" }, ...facts(of, call.label).flatMap(([name, what]) => [h("dt", {}, name), h("dd", {}, what)])));
  if (!metrics || !found) {
    const why = !metrics ? "" : call.step.judged_from === "comparison" ? "Its tensors are not in the dump: its numbers are those of the call."
      : "Its elements are not summed up here: of complex numbers and 8-bit floats there is no histogram, and a report holds 2,000 of them at most.";
    return [h("div", { class: "columns" }, head, h("section", { class: "panel" }, h("p", { class: "soft" }, why)))];
  }
  const [least, most] = bound(metrics);
  const legend = h("p", { class: "legend" }, swatch("--match", "inside"), ...(least < most ? [swatch("--drifted", "inside or outside, by its |r|")] : []),
    swatch("--mismatch", "outside"), h("span", {}, least < most ? `dashed: the bound, from ${number(least)} (r = 0) to ${number(most)} (max|r|)` : `dashed: the bound, ${number(least)}`));
  const values = h("span", {}, "Values of ", h("span", { class: "sr" }, "eager (filled)"), " and ", h("span", { class: "sc" }, "ONNX Runtime (line)"));
  const unequal = found.measured - found.equal;
  const charts = h("section", { class: "panel", "aria-label": "Histograms" },
    withTwin(values, (isLog) => valuesChart(of, isLog)),
    found.distances.length > 0
      ? h("div", {}, withTwin(`|Δ| of the ${unequal.toLocaleString("en")} elements that are not equal`, (isLog) => distanceChart(of, isLog)), legend)
      : h("p", {}, "No element that was measured differs."));
  const quantiles = h("section", { class: "panel", "aria-label": "Quantiles" },
    h("h3", {}, "Quantiles over all elements"),
    table("Quantiles of the distance", ["share", "|Δ| ≤", "|Δ| / bound ≤"], state.data.report.quantiles.map((share, at) => [
      share === 1 ? "all" : percent(share), number(found.distance_quantiles[at]), found.of_bound_quantiles[at] === null ? "∞" : number(found.of_bound_quantiles[at]),
    ])),
    h("p", { class: "soft" }, "Above a bound of 1 an element is outside. Rounded up by 1/128 at most."));
  return [h("div", { class: "columns" }, h("div", {}, head, charts), h("div", {}, quantiles, worst(found.worst, of)))];
}

function swatch(name: string, words: string): HTMLElement {
  const box = h("span", { class: "swatch" });
  box.style.background = `var(${name})`;
  return h("span", {}, box, words);
}

function facts(of: Output, label: string): [string, string][] {
  const metrics = of.metrics!;
  const { atol, rtol, scale, equal_nan } = metrics.tolerance;
  const all: [string, string][] = [
    ["Of", shown(label)], ["Type", `${of.dtype}[${of.dims?.join(", ")}]`],
    ["Outside", `${metrics.outside.toLocaleString("en")} of ${metrics.n.toLocaleString("en")} (${percent(metrics.n > 0 ? metrics.outside / metrics.n : 0)})`],
    ["max|Δ|", `${number(num(metrics.max_abs))}, ${number(num(metrics.max_rel_to_max))} of max|r| = ${number(num(metrics.max_reference))}`],
    ["RMSE, cosine", `${number(num(metrics.rmse))}, ${exact(num(metrics.cosine))}`],
    ["ULP", metrics.max_ulp === null ? "–" : metrics.max_ulp.toLocaleString("en")],
    ["Tolerance", `atol ${number(atol)} + rtol ${number(rtol)}·|r| + scale ${number(scale)}·max|r|${equal_nan ? "" : ", NaN differs from NaN"}`],
    ["To pass", `atol ${enough(num(metrics.required.atol))} or rtol ${enough(num(metrics.required.rtol))}`],
  ];
  if (of.role) all.splice(1, 0, ["Is", shown(roleWords(of.role), 200)]);
  const never = metrics.nan_disagreements + metrics.inf_disagreements;
  if (never > 0) all.push(["Not finite", `${metrics.nan_disagreements} NaN on one side, ${metrics.inf_disagreements} infinities against another number`]);
  if (of.noise) all.push(["Noise ratio", `${number(num(of.noise.ratio))} (${of.noise.kind.replaceAll("_", " ")})`]);
  return all;
}

function worst(elements: Element_[], of: Output): HTMLElement {
  const rows = elements.map((element) => {
    const [reference, candidate] = [num(element.reference), num(element.candidate)];
    return [`[${element.at.join(", ")}]`, exact(reference), exact(candidate), number(Math.abs(candidate - reference))];
  });
  return h("section", { class: "panel", "aria-label": "Worst elements" }, h("h3", {}, "Elements most outside, or nearest to it"),
    rows.length === 0 ? h("p", {}, "All are equal.") : h("div", { class: "scroll" }, table(`Worst elements of ${shown(of.name, 60)}`, ["at", "eager", "ONNX Runtime", "|Δ|"], rows)));
}
