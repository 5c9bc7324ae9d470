// All nodes as a table: search, filters, the next and the previous one that differs.

import { badness, distance, num } from "./data";
import type { NodeRow, Place } from "./data";
import { detail } from "./detail";
import { mark } from "./marks";
import type { State } from "./state";
import { count, h, lastOfPath, named, number, percent, roleWords, shown } from "./text";

const FILTERS: [string, string, (mark: string) => boolean][] = [
  ["all", "All", () => true],
  ["differ", "Differ", (kind) => ["mismatch", "drifted", "failed"].includes(kind)],
  ["mismatch", "Own kernel differs", (kind) => kind === "mismatch" || kind === "failed"],
  ["drifted", "Drifted only", (kind) => kind === "drifted"],
  ["noise", "Noise", (kind) => kind === "noise"],
  ["not compared", "Not compared", (kind) => kind === "not compared"],
];
const ORDERS: [string, string][] = [["order", "graph's order"], ["local", "local error"], ["cumulative", "cumulative error"]];
/** Rows that are made at a time. */
const CHUNK = 400;

export interface NodeTable { element: HTMLElement; step: (forward: boolean) => void; reveal: () => void }

export function nodeTable(state: State): NodeTable {
  const all = state.data.nodes;
  const leftOut = state.data.calls.reduce((n, call) => n + (call.step.table?.left_out ?? 0), 0);
  const several = state.data.calls.length > 1;
  const body = h("tbody");
  const told = h("span", { class: "soft", role: "status" });
  const more = h("button", { type: "button", onclick: () => grow() }, "More rows");
  let [filter, order, words] = ["all", "order", ""];
  let [rows, nShown]: [Place<NodeRow>[], number] = [[], 0];
  const elements = new Map<Place<NodeRow>, HTMLElement>();
  const places = new WeakMap<Element, Place<NodeRow>>();

  const grow = () => {
    const next = rows.slice(nShown, nShown + CHUNK);
    for (const place of next) {
      const element = line(state, place, several);
      elements.set(place, element);
      places.set(element, place);
      body.append(element);
    }
    nShown += next.length;
    more.hidden = nShown >= rows.length;
  };
  const fill = () => {
    const fits = FILTERS.find(([name]) => name === filter)![2];
    rows = all.filter(({ of }) => fits(of.mark) && matches(of, words));
    const by = (of: NodeRow) => distance(order === "local" ? of.local : of.cumulative);
    if (order !== "order") rows = [...rows].sort((one, other) => by(other.of) - by(one.of));
    body.replaceChildren();
    elements.clear();
    nShown = 0;
    grow();
    told.textContent = `${count(rows.length, "node")} of ${all.length.toLocaleString("en")}${leftOut > 0 ? `; ${leftOut.toLocaleString("en")} that match are not in this report` : ""}`;
  };
  const choose = (place: Place<NodeRow>) => state.select(place.call.part, place.of.name);
  body.addEventListener("click", (event) => {
    const row = (event.target as Element).closest("tr");
    const place = row && places.get(row);
    if (place) choose(place);
  });
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter") (event.target as HTMLElement).click();
  });
  state.onSelect(() => {
    for (const [place, element] of elements) element.setAttribute("aria-selected", String(state.isSelected(place.call.part, place.of.name)));
  });

  /** The next or the previous node of the graph's order that differs. */
  const step = (forward: boolean) => {
    const wrong = all.filter(({ of }) => badness(of.mark) >= badness("drifted"));
    if (wrong.length === 0) return;
    const order = new Map(all.map((place, at) => [place, at]));
    const now = all.findIndex((place) => state.isSelected(place.call.part, place.of.name));
    const found = forward
      ? wrong.find((place) => order.get(place)! > now) ?? wrong[0]!
      : [...wrong].reverse().find((place) => order.get(place)! < now) ?? wrong[wrong.length - 1]!;
    choose(found);
    bring(found);
  };
  /** Brings a row into view, past search and filter where these hide it. */
  const bring = (found: Place<NodeRow>) => {
    if (!rows.includes(found)) {
      [filter, words] = ["all", ""];
      search.value = "";
      press();
      fill();
    }
    while (!elements.has(found) && nShown < rows.length) grow();
    const [row, holder] = [elements.get(found), body.closest<HTMLElement>(".rows")];
    if (!row || !holder) return;
    row.setAttribute("aria-selected", "true");
    holder.scrollTop = row.offsetTop - holder.clientHeight / 2;
  };
  const reveal = () => {
    const selected = all.find((place) => state.isSelected(place.call.part, place.of.name));
    if (selected) bring(selected);
  };

  const search = h("input", {
    type: "search", placeholder: "name, operator, module, line", "aria-label": "Search nodes",
    oninput: () => ((words = search.value.toLowerCase()), fill()),
  });
  const chips = FILTERS.map(([name, label, fits]) => {
    const n = all.filter(({ of }) => fits(of.mark)).length;
    return h("button", { type: "button", class: "chip", "data-filter": name, onclick: () => ((filter = name), press(), fill()) }, `${label} (${n.toLocaleString("en")})`);
  });
  const press = () => chips.forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.filter === filter)));
  const orders = h("select", { "aria-label": "Order of the rows", onchange: () => ((order = orders.value), fill()) },
    ...ORDERS.map(([value, name]) => h("option", { value }, name)));
  press();
  fill();
  const header = ["verdict", "node", ...(several ? ["of"] : []), "operator", "local", "cumulative", "noise", "share", "module", "line"];
  const isNumber = (name: string) => ["local", "cumulative", "noise", "share"].includes(name);
  const element = all.length === 0
    ? h("section", { class: "panel" }, h("p", {}, "The dump has no table of nodes: outputs alone were compared. Dump with the option compare=\"nodes\" to see every node."))
    : h("div", { class: "beside" },
      h("section", { class: "panel", "aria-label": "Nodes" },
        h("div", { class: "bar" }, search, ...chips),
        h("div", { class: "bar" }, h("label", {}, "by ", orders),
          h("button", { type: "button", onclick: () => step(false) }, "Previous that differs (p)"),
          h("button", { type: "button", onclick: () => step(true) }, "Next that differs (n)"), told),
        h("div", { class: "scroll rows" }, h("table", { id: "nodes-table" },
          h("caption", { class: "heard" }, "Nodes against eager; local and cumulative are max|Δ|/max|r|"),
          h("thead", {}, h("tr", {}, ...header.map((name) => h("th", { scope: "col", class: isNumber(name) ? "number" : null }, name)))), body)),
        more),
      detail(state));
  return { element, step, reveal };
}

function matches(of: NodeRow, words: string): boolean {
  const text = [of.name, of.op, of.onnx_ops.join(" "), of.module, of.source, of.role].join("\n").toLowerCase();
  return words.split(/\s+/).every((word) => text.includes(word));
}

function line(state: State, { call, of }: Place<NodeRow>, several: boolean): HTMLElement {
  const error = (side: NodeRow["local"]) => (side.metrics ? number(num(side.metrics.max_rel_to_max)) : "–");
  const noise = of.local.noise ?? of.cumulative.noise;
  const share = call.step.blame?.answer?.nodes.find((node) => node.values.includes(of.name));
  const born = (of.births ?? []).map((birth) => birth.kind).join(", ");
  return h("tr", { class: "is-selectable", tabindex: 0, "aria-selected": String(state.isSelected(call.part, of.name)) },
    h("td", {}, mark(of.mark)),
    h("td", {}, named(of.name, 30), of.role !== "" && h("div", { class: "soft name" }, shown(roleWords(of.role), 30)), born !== "" && h("div", { class: "soft" }, `${born} born here`)),
    several && h("td", { class: "name soft" }, shown(call.label, 30)),
    h("td", {}, named(of.op.replace(/^aten\./, "").replace(/\.default$/, ""), 26)),
    h("td", { class: "number" }, error(of.local)),
    h("td", { class: "number" }, error(of.cumulative)),
    h("td", { class: "number" }, noise ? number(num(noise.ratio)) : ""),
    h("td", { class: "number" }, share ? percent(share.share) : ""),
    h("td", {}, h("span", { class: "name", title: shown(of.module, 1000) }, tail(of.module))),
    h("td", { class: "name", title: shown(of.source, 1000) }, shown(lastOfPath(of.source), 32)));
}

/** The end of a module's path, which tells it from its neighbours. */
function tail(path: string): string {
  const parts = path.split(".");
  return shown(parts.length > 4 ? `…${parts.slice(-4).join(".")}` : path, 34);
}
