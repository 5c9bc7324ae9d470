// The page: views, keys, what is shown first.

import { summary } from "./card";
import { Data, read } from "./data";
import { graphView } from "./graph";
import { sliders } from "./sliders";
import { State } from "./state";
import { nodeTable } from "./table";
import { tensorView } from "./tensor";
import { copyButton, count, h, shown } from "./text";
import { themeButton } from "./theme";

const VIEWS: [string, string][] = [
  ["summary", "Summary"], ["nodes", "Nodes"], ["graph", "Graph"], ["tensors", "Tensors"], ["tolerance", "Tolerance"], ["data", "Data"],
];

function start(): void {
  const state = new State(new Data(read()));
  const report = state.data.report;
  document.title = `${shown(report.name, 60)} – rust-ort report`;
  const nodes = nodeTable(state);
  const tensors = tensorView(state);
  const graph = graphView(state);
  const makers: Record<string, () => HTMLElement> = {
    summary: () => summary(state), nodes: () => nodes.element, graph: () => graph.element, tensors: () => tensors.element,
    tolerance: () => sliders(state), data: () => raw(document.getElementById("data")!.textContent!),
  };
  const tabs = new Map<string, HTMLElement>();
  const panels = new Map<string, HTMLElement>();
  for (const [name, label] of VIEWS) {
    tabs.set(name, h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, "aria-selected": "false", tabindex: -1, onclick: () => state.show(name),
    }, label));
    panels.set(name, h("div", { role: "tabpanel", id: `view-${name}`, "aria-labelledby": `tab-${name}`, hidden: true }));
  }
  state.show = (view) => {
    for (const [name, panel] of panels) {
      const isShown = name === view;
      panel.hidden = !isShown;
      tabs.get(name)!.setAttribute("aria-selected", String(isShown));
      tabs.get(name)!.tabIndex = isShown ? 0 : -1;
      // A view is made when it is looked at first.
      if (isShown && panel.childElementCount === 0) panel.append(makers[name]!());
    }
    if (view === "graph") graph.follow();
    if (view === "nodes") nodes.reveal();
    if (view === "tensors") tensors.refresh();
    history.replaceState(null, "", `#${view}`);
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "n" || event.key === "p") {
      if (panels.get("nodes")!.hidden && panels.get("graph")!.hidden) state.show("nodes");
      nodes.step(event.key === "n");
    }
    const at = VIEWS.findIndex(([name]) => tabs.get(name) === document.activeElement);
    if (at >= 0 && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      const [next] = VIEWS[(at + (event.key === "ArrowRight" ? 1 : VIEWS.length - 1)) % VIEWS.length]!;
      state.show(next);
      tabs.get(next)!.focus();
    }
  });
  document.getElementById("app")!.append(
    h("header", {}, h("h1", {}, shown(report.name, 80)), h("span", { class: "soft" }, `rust-ort report, ${count(report.graphs.length, "graph")}, ${count(state.data.calls.length, "call")}`),
      h("span", { class: "grow" }), themeButton(() => graph.redraw())),
    h("div", { role: "tablist", "aria-label": "Views" }, ...tabs.values()),
    ...panels.values());
  const asked = location.hash.slice(1);
  state.show(panels.has(asked) ? asked : "summary");
}

/** Characters of the data that are shown at once. */
const MOST_SHOWN = 200_000;

function raw(text: string): HTMLElement {
  const pretty = JSON.stringify(JSON.parse(text), null, 1);
  const save = () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "report.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return h("section", { class: "panel", "aria-label": "Data" },
    h("div", { class: "bar" }, h("h2", {}, "What the page is made of"), copyButton(pretty, "Copy all"), h("button", { type: "button", onclick: save }, "Save report.json"),
      h("span", { class: "soft" }, `${text.length.toLocaleString("en")} characters; the same as \`rust-ort report --json\` prints. docs/design/report.md describes it.`)),
    h("pre", {}, printable(pretty.slice(0, MOST_SHOWN)), pretty.length > MOST_SHOWN && "\n… the rest is in what is copied or saved"));
}

/** With what cannot be seen escaped as JSON escapes it. */
function printable(json: string): string {
  return json.replace(/[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

start();
