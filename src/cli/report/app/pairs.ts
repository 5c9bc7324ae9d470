// Outputs, the worst first.

import { num, worstFirst } from "./data";
import type { Output, Place } from "./data";
import { mark } from "./marks";
import type { State } from "./state";
import { count, enough, h, named, number, roleWords, shown } from "./text";

const SHOWN = 12;

export function worstPairs(state: State): HTMLElement {
  const { outputs, calls } = state.data;
  const order = outputs.map((place, at) => ({ place, at })).sort((one, other) => worstFirst(one.place, other.place));
  const body = h("tbody");
  const several = calls.length > 1;
  const add = (from: number, to: number) => {
    for (const { place, at } of order.slice(from, to)) body.append(row(state, place, at, several));
  };
  add(0, SHOWN);
  const rest = order.length - SHOWN;
  const more = h("button", { type: "button", onclick: () => (add(SHOWN, order.length), more.remove()) }, `Show the other ${rest}`);
  const header = ["verdict", "output", ...(several ? ["of"] : []), "max|Δ|/max|r|", "outside", "atol to pass"];
  return h("section", { class: "panel", "aria-label": "Outputs, the worst first" },
    h("h2", {}, "Outputs, the worst first"),
    outputs.length === 0
      ? h("p", {}, "The dump has no output with eager's beside it.")
      : h("div", { class: "scroll" }, h("table", { id: "pairs" },
        h("caption", { class: "heard" }, `${count(outputs.length, "output")}, the worst first`),
        h("thead", {}, h("tr", {}, ...header.map((name) => h("th", { scope: "col", class: numeric(name) }, name)))), body)),
    rest > 0 && more);
}

function numeric(name: string): string | null {
  return ["max|Δ|/max|r|", "outside", "atol to pass"].includes(name) ? "number" : null;
}

function row(state: State, { call, of }: Place<Output>, at: number, several: boolean): HTMLElement {
  const metrics = of.metrics;
  const open = () => {
    state.output = at;
    state.show("tensors");
  };
  return h("tr", {
    class: "is-selectable", tabindex: 0, onclick: open, onkeydown: (event: KeyboardEvent) => event.key === "Enter" && open(),
  },
    h("td", {}, mark(of.kind)),
    h("td", {}, named(of.name, 60), of.role && h("div", { class: "soft name" }, shown(roleWords(of.role), 60)), of.reason !== "" && h("div", { class: "soft" }, shown(of.reason, 160))),
    several && h("td", { class: "name" }, shown(call.label, 40)),
    h("td", { class: "number" }, metrics ? number(num(metrics.max_rel_to_max)) : "–"),
    h("td", { class: "number" }, metrics ? `${metrics.outside.toLocaleString("en")}/${metrics.n.toLocaleString("en")}` : "–"),
    h("td", { class: "number" }, metrics ? enough(num(metrics.required.atol)) : "–"));
}
