// The first screen: verdict, culprit, what was not compared, how to read it.

import { num } from "./data";
import type { Card, Counts, Report, Verdict } from "./data";
import { worstPairs } from "./pairs";
import type { State } from "./state";
import { copyButton, count, h, lastOfPath, named, number, percent, shown, table } from "./text";

export function summary(state: State): HTMLElement {
  const report = state.data.report;
  return h("div", {},
    verdict(report),
    h("div", { class: "columns" },
      h("div", {}, culprit(state), worstPairs(state)),
      h("div", {}, notCompared(report), missing(report), reading(), about(report))));
}

const VERDICTS: Record<string, [string, string]> = {
  match: ["is-good", "As right as eager"],
  mismatch: ["is-bad", "Differs from eager"],
  failed: ["is-bad", "Something failed"],
  not_all_compared: ["is-unknown", "Right as far as it was compared"],
  nothing_compared: ["is-unknown", "Nothing was compared"],
};

function verdict(report: Report): HTMLElement {
  const { kind, outputs, local, n_nodes, within } = report.verdict;
  const [style, words] = VERDICTS[kind] ?? ["is-unknown", kind];
  const damage = report.missing.damaged.length + report.missing.missing.length;
  return h("section", { class: `panel verdict ${damage > 0 && style === "is-good" ? "is-unknown" : style}`, "aria-label": "Verdict", id: "verdict" },
    h("strong", {}, damage > 0 ? `${words}; ${count(damage, "file")} damaged or missing` : words),
    h("span", {}, `Outputs: ${counts(outputs)}.`),
    n_nodes > 0 && h("span", {}, `Nodes, each kernel alone: ${counts(local)}.`),
    within !== "" && h("span", { class: "soft" }, `Judged ${within}.`));
}

function counts(all: Counts): string {
  const words: [string, number][] = [
    ["match", all.match], ["noise", all.noise], ["tie", all.tie], ["open order", all.open_order], ["mismatch", all.mismatch],
    ["not compared", all.not_compared], ["failed", all.failed],
  ];
  const told = words.filter(([, n]) => n > 0).map(([word, n]) => `${n.toLocaleString("en")} ${word}`);
  return told.length > 0 ? told.join(", ") : "none compared";
}

const TITLES: Record<string, [string, string]> = {
  blamed: ["is-bad", "To blame"],
  suspect: ["is-bad", "First node whose own kernel differs"],
  drifted: ["is-unknown", "Outputs differ; no node is named"],
  unknown: ["is-unknown", "Not known"],
  clear: ["is-good", "Nobody is to blame"],
};

function culprit(state: State): HTMLElement {
  const card = state.data.report.culprit;
  const [style, title] = TITLES[card.kind] ?? ["is-unknown", card.kind];
  const part = state.data.partOf(card.graph, card.part);
  const isNamed = card.kind === "blamed" || card.kind === "suspect";
  return h("section", { class: `panel culprit ${style}`, "aria-label": "Culprit", id: "culprit" },
    h("h2", {}, title),
    isNamed && card.node ? h("div", { class: "who mono", id: "who" }, shown(card.node)) : h("p", {}, shown(card.text, 400)),
    isNamed && facts(card),
    isNamed && numbers(card),
    isNamed && card.node !== null && part !== undefined && h("p", {},
      h("button", { type: "button", id: "to-graph", onclick: () => (state.select(part, card.node!), state.show("graph")) }, "Show in the graph"), " ",
      h("button", { type: "button", onclick: () => (state.select(part, card.node!), state.show("nodes")) }, "Show among the nodes")),
    card.command !== null && h("div", {},
      h("div", { class: "command" }, h("code", { id: "command" }, shown(card.command, 600)), copyButton(card.command)),
      h("p", { class: "soft" }, "runs it again, alone, on eager's inputs; from the folder in which the report was made.")),
    card.next !== "" && h("div", {}, h("p", {}, card.kind === "suspect" ? "It is not known yet how much of the outputs' error it makes. Next:" : "Next:"),
      card.next.startsWith("rust-ort")
        ? h("div", { class: "command" }, h("code", {}, shown(card.next, 600)), copyButton(card.next))
        : h("p", {}, shown(card.next, 600))),
    ...notes(card));
}

function facts(card: Card): HTMLElement {
  const all: [string, Node | string | null][] = [
    ["Operator", card.op && named(card.op)],
    ["ONNX", card.onnx_ops && card.onnx_ops.length > 0 ? named([...new Set(card.onnx_ops)].join(", ")) : null],
    ["Module", card.module && named(card.module)],
    ["Source", card.source && h("span", { class: "mono", title: shown(card.source, 1000) }, shown(lastOfPath(card.source)))],
    ["Where", card.graph === null ? null : `${shown(card.graph)}, part ${card.part}, call ${card.step}`],
    ["What of it", card.layer],
    ["Also", card.beside && card.beside.length > 0 ? card.beside.map((text) => shown(text, 200)).join("; ") : null],
  ];
  return h("dl", { class: "facts" }, ...all.flatMap(([name, what]) => (what ? [h("dt", {}, name), h("dd", {}, what)] : [])));
}

function numbers(card: Card): HTMLElement {
  const error = (verdict: Verdict | null) => (verdict?.metrics ? number(num(verdict.metrics.max_rel_to_max)) : "–");
  const noise = card.local?.noise ?? card.cumulative?.noise;
  const all: [string, string, string][] = [
    [error(card.local), "own error (local)", "max|Δ|/max|r| of the node's own kernel on eager's inputs"],
    [error(card.cumulative), "drift (cumulative)", "max|Δ|/max|r| of the value as it came out of the whole graph"],
    [noise ? number(num(noise.ratio)) : "–", "noise ratio", "distance to float64, as a multiple of eager's own; about 1 is the type's noise"],
    [card.share === null ? "–" : percent(card.share), card.share_of ? `of the error of ${shown(card.share_of, 24)}` : "share of the final error",
      "what its own error does to the output, while all else is eager's"],
  ];
  return h("div", { class: "numbers" }, ...all.map(([value, name, title]) => h("div", { title }, h("b", {}, value), h("span", {}, name))));
}

function notes(card: Card): HTMLElement[] {
  const told: string[] = [];
  if (card.is_complete === false) told.push("The examination was not complete: its budget ended first.");
  if (card.is_own === false) told.push("This answer was not made here by you; rust-ort blame would examine the dump again.");
  if (card.is_current === false) told.push("This answer is of an earlier state of the dump; run rust-ort blame again.");
  return told.map((text) => h("p", { class: "soft" }, text));
}

const WHAT: Record<string, string> = {
  output: "output", node: "node", call: "call", eager: "node left to eager", graph: "graph",
};

function notCompared(report: Report): HTMLElement {
  const all = report.not_compared;
  const item = (of: Report["not_compared"][number]) => h("li", {},
    `${count(of.n, WHAT[of.what] ?? of.what)}: ${shown(of.reason, 300)} `,
    h("span", { class: "soft" }, `(${of.names.map((name) => shown(name, 50)).join(", ")}${of.n > of.names.length ? ", …" : ""})`));
  return h("section", { class: "panel", "aria-label": "What was not compared" },
    h("h2", {}, "Not compared"),
    all.length === 0 ? h("p", {}, "Everything that the dump holds was compared.") : h("ul", {}, ...all.slice(0, 12).map(item)),
    all.length > 12 && h("p", { class: "soft" }, `and ${all.length - 12} other reasons: Data has them.`));
}

function missing(report: Report): HTMLElement | false {
  const { damaged, missing, incomplete, unread, not_sealed, unlisted } = report.missing;
  const lines = [
    ...damaged.map((of) => `damaged: ${of.path}: ${of.reason}`),
    ...missing.map((path) => `missing: ${path}`),
    ...incomplete.map((of) => `never written: ${of.path}: ${of.reason}`),
    ...unread,
    ...unlisted.slice(0, 3).map((path) => `of somebody else: ${path}`),
    ...(not_sealed > 0 ? [`${count(not_sealed, "file")} of which nothing tells what should be in them`] : []),
  ];
  return lines.length > 0 && h("section", { class: "panel", "aria-label": "Damaged or missing" },
    h("h2", {}, "Damaged, missing or unknown"),
    h("ul", {}, ...lines.slice(0, 20).map((line) => h("li", { class: "name" }, shown(line, 400)))),
    lines.length > 20 && h("p", { class: "soft" }, `and ${lines.length - 20} more: rust-ort verify lists all.`));
}

function reading(): HTMLElement {
  return h("section", { class: "panel", "aria-label": "How to read it" },
    h("h2", {}, "How to read it"),
    h("p", {}, h("b", {}, "Local"), " is a node's own kernel on eager's inputs: if it is wrong, the node is. ",
      h("b", {}, "Cumulative"), " is the value as it came out of the whole graph: if only that is wrong, the error came from before."),
    h("p", {}, "Start with the node on the left, look where it is in the graph, then run its command. ",
      h("kbd", {}, "n"), " and ", h("kbd", {}, "p"), " go to the next and the previous node that differs."));
}

function about(report: Report): HTMLElement {
  const run = report.run ?? {};
  const versions = Object.entries((run.versions ?? {}) as Record<string, string>).filter(([, version]) => version !== "-");
  const options = report.graphs.find((graph) => graph.options)?.options ?? {};
  const tolerances = new Map<string, [string, number, number, number]>();
  for (const graph of report.graphs) for (const part of graph.parts) for (const step of part.steps) for (const output of step.outputs) {
    const tolerance = output.metrics?.tolerance;
    if (tolerance && output.dtype) tolerances.set(`${output.dtype} ${JSON.stringify(tolerance)}`, [output.dtype, tolerance.atol, tolerance.rtol, tolerance.scale]);
  }
  const told: [string, unknown][] = [
    ["Run", report.name], ["Made", run.start], ["Program", run.program], ["Devices", (run.devices ?? []).join(", ")], ["Platform", run.platform],
    ["Python", run.python], ["compare", options.compare], ["Optimization", options.ort_optimization], ["Transforms", (options.transforms as unknown[] | undefined)?.join(", ")],
    ["Report by", `rust-ort ${report.version}`],
  ];
  return h("section", { class: "panel", "aria-label": "Run" },
    h("h2", {}, "Run"),
    report.run === null && h("p", {}, "run.json is missing or damaged: versions and devices are not known."),
    h("dl", { class: "facts" }, ...told.flatMap(([name, what]) => (what ? [h("dt", {}, name), h("dd", {}, shown(String(what), 200))] : []))),
    versions.length > 0 && h("details", {}, h("summary", {}, "Versions"),
      h("dl", { class: "facts" }, ...versions.flatMap(([name, version]) => [h("dt", {}, shown(name)), h("dd", {}, shown(String(version)))]))),
    tolerances.size > 0 && h("details", {}, h("summary", {}, "Tolerances"),
      h("p", { class: "soft" }, "inside: |Δ| ≤ atol + rtol·|r| + scale·max|r|"),
      table("Tolerances by type", ["type", "atol", "rtol", "scale"], [...tolerances.values()].map(([dtype, ...terms]) => [dtype, ...terms.map(number)]))));
}
