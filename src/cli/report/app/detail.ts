// A panel with all that is known of the selected node.

import { num } from "./data";
import type { Part, Verdict } from "./data";
import { mark } from "./marks";
import type { State } from "./state";
import { copyButton, enough, exact, h, isPlain, lastOfPath, named, number, percent, roleWords, shown } from "./text";

/** A panel that follows the selection. */
export function detail(state: State): HTMLElement {
  const panel = h("section", { class: "panel detail", "aria-label": "Selected node", "aria-live": "polite" });
  const fill = () => panel.replaceChildren(...(state.selected ? of(state, state.selected.part, state.selected.value) : [
    h("p", { class: "soft" }, "Select a node: what is known of it stands here."),
  ]));
  state.onSelect(fill);
  fill();
  return panel;
}

function of(state: State, part: Part, value: string): Node[] {
  const rows = state.data.rowsOf(part, value);
  const row = state.data.rowOf(part, value)?.of;
  const share = state.data.shareOf(part, value);
  const output = state.data.outputs.findIndex((place) => place.call.part === part && place.of.name === value);
  const call = state.data.rowOf(part, value)?.call;
  const inputOf = part.calls[value];
  const facts: [string, Node | string | null | undefined][] = [
    ["Operator", row?.op && named(row.op)],
    ["ONNX", row && row.onnx_ops.length > 0 ? named(row.onnx_ops.join(", "), 200) : null],
    ["Module", row?.module && named(row.module)],
    ["Source", row?.source && h("span", { class: "mono", title: shown(row.source, 1000) }, shown(lastOfPath(row.source)))],
    ["Type", row?.dtype && `${row.dtype}[${row.dims.join(", ")}]`],
    ["Is", row?.role && shown(roleWords(row.role))],
    ["Input", inputOf && shown(inputOf)],
    ["Call", rows.length > 1 && call ? `${call.step.step}, the worst of ${rows.length}` : null],
  ];
  const command = `rust-ort replay ${quoted(part.path)}${call ? ` --step ${call.step.step}` : ""} --nodes ${quoted(value)} --repro repro`;
  return [
    h("h3", { class: "name", id: "selected" }, shown(value)),
    row ? mark(row.mark) : h("p", { class: "soft" }, "No table of nodes has it: an input, a constant, or nodes were not compared."),
    h("dl", { class: "facts" }, ...facts.flatMap(([name, what]) => (what ? [h("dt", {}, name), h("dd", {}, what)] : []))),
    ...(row ? [side("Local: its own kernel on eager's inputs", row.local), side("Cumulative: as it came out of the graph", row.cumulative)] : []),
    ...(row?.as_right ? [h("p", {}, shown(row.as_right, 300))] : []),
    ...(row?.births ?? []).map((birth) => h("p", {}, `${birth.side === "reference" ? "eager's" : "ONNX Runtime's"} value: ${birth.kind} is born here`)),
    ...(share ? [h("p", {}, h("b", {}, percent(share.share)), ` of the error of ${shown(share.output)}; its own error is ${share.own.replace("_", " ")}.`)] : []),
    ...(output >= 0 ? [h("p", {}, h("button", { type: "button", onclick: () => ((state.output = output), state.show("tensors")) }, "Show its tensors"))] : []),
    ...(row && isPlain(command) ? [h("div", { class: "command" }, h("code", {}, shown(command, 400)), copyButton(command))] : []),
  ];
}

function side(title: string, verdict: Verdict): HTMLElement {
  const { metrics, noise } = verdict;
  const facts: [string, string][] = metrics ? [
    ["max|Δ|/max|r|", number(num(metrics.max_rel_to_max))], ["max|Δ|", number(num(metrics.max_abs))],
    ["outside", `${metrics.outside.toLocaleString("en")} of ${metrics.n.toLocaleString("en")}`], ["RMSE", number(num(metrics.rmse))],
    ["cosine", exact(num(metrics.cosine))], ["ULP", metrics.max_ulp === null ? "–" : metrics.max_ulp.toLocaleString("en")],
    ["to pass", `atol ${enough(num(metrics.required.atol))} or rtol ${enough(num(metrics.required.rtol))}`],
  ] : [];
  if (metrics?.worst) facts.push(["worst", `[${metrics.worst.at.join(", ")}]: ${exact(num(metrics.worst.candidate))} for ${exact(num(metrics.worst.reference))}`]);
  if (noise) facts.push(["noise ratio", `${number(num(noise.ratio))} (${noise.kind.replaceAll("_", " ")})`]);
  return h("div", {},
    h("h3", {}, title), mark(verdict.kind), verdict.reason !== "" && h("p", { class: "soft" }, shown(verdict.reason, 300)),
    h("dl", { class: "facts" }, ...facts.flatMap(([name, what]) => [h("dt", {}, name), h("dd", {}, what)])));
}

/** As one word of a shell. */
export function quoted(word: string): string {
  return /^[\w./\-+=:@%,]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
