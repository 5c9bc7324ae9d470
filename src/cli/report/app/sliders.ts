// Judging again by another tolerance.

import { asked, byMetrics, judge, leastAtol } from "./judge";
import type { Asked, Judged } from "./judge";
import { badness, worstFirst } from "./data";
import type { Output, Place } from "./data";
import { mark } from "./marks";
import { quoted } from "./detail";
import type { State } from "./state";
import { copyButton, count, enough, h, named, roleWords, shown } from "./text";

type Term = "atol" | "rtol" | "scale";
const TERMS: [Term, string][] = [["atol", "absolute"], ["rtol", "times |r|"], ["scale", "times max|r|"]];
/** A slider goes from 10^LEAST to 10^MOST in steps of a tenth of a decade; its first step is 0. */
const [LEAST, MOST, STEPS] = [-12, 3, 150];
const SHOWN = 200;

export function sliders(state: State): HTMLElement {
  const { outputs, nodes } = state.data;
  const terms: Asked = { atol: null, rtol: null, scale: null };
  const totals = h("div", { class: "numbers", id: "judged", role: "status" });
  const pass = h("p");
  const command = h("div", { class: "command" });
  const body = h("tbody");
  const told = h("p", { class: "soft" });
  const refresh = () => {
    const judged = outputs.map((place) => ({ place, judged: judge(place.of, terms) }));
    const isAsked = Object.values(terms).some((term) => term !== null);
    totals.replaceChildren(...counts(judged.map(({ judged }) => judged)).map(([kind, n, words]) =>
      h("div", { "data-kind": kind, "data-n": n }, h("b", {}, n.toLocaleString("en")), h("span", {}, words))));
    const least = outputs.map(({ of }) => leastAtol(of, terms)).filter((value): value is number => value !== null);
    const unknown = outputs.filter(({ of }) => of.metrics !== null && leastAtol(of, terms) === null && of.dtype !== "bool" && judge(of, { ...terms, atol: 1e300 }).kind !== "match").length;
    pass.textContent = least.length === 0 ? "" : `With these rtol and scale, atol ${enough(Math.max(...least))} passes ${unknown > 0 ? `all but ${count(unknown, "output")}, which no atol passes` : "every output"}.`;
    const flags = TERMS.flatMap(([term]) => (terms[term] === null ? [] : [`--${term} ${terms[term]}`]));
    const text = ["rust-ort compare", quoted(state.data.report.path), ...flags].join(" ");
    command.replaceChildren(h("code", { id: "compare-command" }, shown(text, 400)), copyButton(text));
    const changed = judged.filter(({ place, judged }) => judged.kind !== place.of.kind);
    const order = (isAsked ? [...judged].sort((one, other) =>
      Number(other.judged.kind !== other.place.of.kind) - Number(one.judged.kind !== one.place.of.kind)
      || badness(other.judged.kind) - badness(one.judged.kind) || worstFirst(one.place, other.place)) : [...judged].sort((one, other) => worstFirst(one.place, other.place)));
    told.textContent = isAsked ? `${count(changed.length, "verdict")} would change${order.length > SHOWN ? `; the first ${SHOWN} are shown` : ""}.` : "Move a slider: verdicts are given again as the command below gives them.";
    body.replaceChildren(...order.slice(0, SHOWN).map(({ place, judged }) => row(place, judged)));
    nodesTold.replaceChildren(...(isAsked ? nodeCounts() : []));
  };
  const nodesTold = h("div", { class: "numbers" });
  const nodeCounts = (): HTMLElement[] => (["local", "cumulative"] as const).flatMap((side) => {
    const judged = nodes.flatMap(({ of }) => (of[side].metrics ? [byMetrics(of[side], asked(of[side].metrics!.tolerance, terms), false)] : []));
    const n = (kind: string) => judged.filter((one) => one.kind === kind).length;
    return [h("div", {}, h("b", {}, `${n("match").toLocaleString("en")} / ${n("mismatch").toLocaleString("en")} / ${n("undecided").toLocaleString("en")}`),
      h("span", {}, `nodes, ${side}: inside / outside / not known from their numbers alone`))];
  });
  const controls = TERMS.flatMap(([term, words]) => control(term, words, (value) => ((terms[term] = value), refresh())));
  refresh();
  return h("div", {},
    h("section", { class: "panel", "aria-label": "Tolerance" },
      h("h2", {}, "What another tolerance would say"),
      h("p", { class: "soft" }, "An element is inside where |Δ| ≤ atol + rtol·|r| + scale·max|r|. A term that is not set is each output's own."),
      h("div", { class: "sliders" }, ...controls),
      totals, pass, nodesTold, command),
    h("section", { class: "panel", "aria-label": "Outputs judged again" }, told,
      h("div", { class: "scroll rows" }, h("table", { id: "again" },
        h("caption", { class: "heard" }, "Outputs judged by the tolerance above"),
        h("thead", {}, h("tr", {}, ...["now", "as it was", "output", "elements outside", "how it is known"].map((name) => h("th", { scope: "col", class: name === "elements outside" ? "number" : null }, name)))), body))));
}

function control(term: Term, words: string, changed: (value: number | null) => void): HTMLElement[] {
  const range = h("input", { type: "range", min: 0, max: STEPS, step: 1, value: 60, "aria-label": `${term}, ${words}`, id: `slider-${term}` });
  const exact = h("input", { type: "text", inputmode: "decimal", placeholder: "own", "aria-label": `${term} as a number`, id: `number-${term}` });
  const own = h("button", { type: "button", onclick: () => ((exact.value = ""), exact.removeAttribute("aria-invalid"), dim(), changed(null)) }, "own");
  const dim = () => range.classList.toggle("is-own", exact.value.trim() === "");
  dim();
  range.addEventListener("input", () => {
    const step = Number(range.value);
    const value = step === 0 ? 0 : Number((10 ** (LEAST + (step / STEPS) * (MOST - LEAST))).toPrecision(2));
    exact.value = String(value);
    exact.removeAttribute("aria-invalid");
    dim();
    changed(value);
  });
  exact.addEventListener("input", () => {
    const value = exact.value.trim() === "" ? null : Number(exact.value);
    const isGood = value === null || (Number.isFinite(value) && value >= 0);
    if (isGood) exact.removeAttribute("aria-invalid");
    else exact.setAttribute("aria-invalid", "true");
    dim();
    if (!isGood) return;
    if (value !== null) range.value = String(value === 0 ? 0 : Math.max(1, Math.round(((Math.log10(value) - LEAST) / (MOST - LEAST)) * STEPS)));
    changed(value);
  });
  return [h("label", { for: `slider-${term}` }, h("b", {}, term), ` ${words}`), range, exact, own];
}

/** [kind, how many, in words]; those that are bounds by themselves. */
function counts(all: Judged[]): [string, number, string][] {
  const pass = (kind: string) => ["match", "noise", "tie", "open_order"].includes(kind);
  const n = (fits: (one: Judged) => boolean) => all.filter(fits).length;
  const told: [string, number, string][] = [
    ["match", n((one) => pass(one.kind)), "outputs pass"],
    ["mismatch", n((one) => one.kind === "mismatch" && one.is_exact), "mismatch"],
    ["bound", n((one) => one.kind === "mismatch" && !one.is_exact), "mismatch, unless rounding of sums or a tie excuses it"],
    ["undecided", n((one) => one.kind === "undecided"), "not known without the tensors"],
    ["other", n((one) => one.kind === "failed" || one.kind === "not_compared"), "failed or not compared"],
  ];
  return told.filter(([kind, n]) => n > 0 || kind === "match" || kind === "mismatch");
}

function row({ call, of }: Place<Output>, judged: Judged): HTMLElement {
  const outside = judged.outside;
  const many = outside === null ? "–" : outside[0] === outside[1] ? outside[0].toLocaleString("en") : `${outside[0].toLocaleString("en")} to ${outside[1].toLocaleString("en")}`;
  const how = of.metrics === null ? "" : judged.is_exact ? "exact"
    : judged.kind === "undecided" ? "bound: its metrics do not decide" : "bound: its tensors may excuse it";
  return h("tr", { "data-output": shown(of.name, 200), "data-call": shown(call.step.path, 2000), "data-verdict": judged.kind, "data-exact": judged.is_exact ? "yes" : "no" },
    h("td", {}, mark(judged.kind)), h("td", {}, mark(of.kind)),
    h("td", {}, named(of.name, 50), of.role && h("div", { class: "soft name" }, shown(roleWords(of.role), 50)), h("div", { class: "soft name" }, shown(call.label, 40))),
    h("td", { class: "number" }, many), h("td", {}, how));
}
