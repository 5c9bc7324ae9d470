// The graph at each stage of its compilation, in panes that go in step.

import { badness, distance } from "./data";
import type { Data, Graph, Part, Stage } from "./data";
import { detail } from "./detail";
import { counterparts, groups, joined, openUpTo, reveal, seen, tree } from "./rows";
import type { Group, Row, Seen } from "./rows";
import type { State } from "./state";
import { count, h, shown } from "./text";
import { colour, errorColour, markColour } from "./theme";

const ROW = 22;
const INDENT = 12;
/** Width of the lines from node to node, at the left. */
const GUTTER = 64;
/** Rows that are open at the beginning. */
const MOST_OPEN = 70;

const STAGES: Record<string, string> = {
  fx: "FX", exported: "ONNX as exported", precision: "ONNX, half precision widened", optimized: "ONNX as optimized",
};
type Colouring = "verdict" | "local" | "cumulative";

/** follow: brings what is selected into view, of a view that is shown again. */
export interface GraphView { element: HTMLElement; redraw: () => void; follow: () => void }

export function graphView(state: State): GraphView {
  const data = state.data;
  const parts = data.report.graphs.flatMap((graph) => graph.parts.filter((part) => part.stages.length > 0).map((part) => ({ graph, part })));
  const all = parts.flatMap(({ graph, part }) => part.stages.map((stage) => ({ graph, part, stage })));
  if (all.length === 0) {
    return { element: h("section", { class: "panel" }, h("p", {}, "The dump holds no model that can be read, so there is no graph to draw.")), redraw: () => {}, follow: () => {} };
  }
  let colouring: Colouring = "verdict";
  const first = data.partOf(data.report.culprit.graph, data.report.culprit.part) ?? parts[0]!.part;
  const isFirst = (of: { part: Part; stage: Stage }) => of.part === first && of.stage.name !== "precision";
  const open = new Map<Stage, Pane>();
  const panes = h("div", { class: "panes" });
  const several = parts.length > 1;
  const place = () => {
    panes.replaceChildren(...all.flatMap(({ stage }) => open.get(stage)?.element ?? []));
    for (const pane of open.values()) pane.follow();
  };
  const chips = all.map((of) => {
    const chip = h("button", { type: "button", class: "chip", "aria-pressed": "false", onclick: () => (toggle(of, chip), place()) },
      `${several ? `${shown(of.graph.name, 24)}${of.part.part > 0 ? ` part ${of.part.part}` : ""}: ` : ""}${STAGES[of.stage.name] ?? of.stage.name}`);
    return { chip, of };
  });
  const toggle = (of: { graph: Graph; part: Part; stage: Stage }, chip: HTMLElement) => {
    if (open.has(of.stage)) open.delete(of.stage);
    else open.set(of.stage, new Pane(state, of, () => colouring));
    chip.setAttribute("aria-pressed", String(open.has(of.stage)));
  };
  for (const { chip, of } of chips) if (isFirst(of)) toggle(of, chip);
  const follow = () => {
    for (const pane of open.values()) pane.follow();
  };
  state.onSelect(follow);
  const redraw = () => {
    for (const pane of open.values()) pane.redraw();
    legend.replaceChildren(...legendOf(colouring));
  };
  const choice = h("select", { "aria-label": "Colour of the nodes", onchange: () => ((colouring = choice.value as Colouring), redraw()) },
    h("option", { value: "verdict" }, "verdict"), h("option", { value: "local" }, "local error"), h("option", { value: "cumulative" }, "cumulative error"));
  const foldAll = (isOpen: boolean) => {
    for (const pane of open.values()) pane.foldAll(isOpen);
  };
  const legend = h("div", { class: "legend" }, ...legendOf(colouring));
  const element = h("div", { class: "beside" },
    h("section", { class: "panel", "aria-label": "Graphs" },
      h("div", { class: "bar" }, ...chips.map(({ chip }) => chip)),
      h("div", { class: "bar" }, h("label", {}, "colour: ", choice),
        h("button", { type: "button", onclick: () => foldAll(false) }, "Fold all"), h("button", { type: "button", onclick: () => foldAll(true) }, "Unfold all"),
        h("span", { class: "soft" }, "A click selects a node and lights up its counterparts in all panes; on a module it folds. Lines at the left go from what gives a value to what reads it.")),
      panes, legend),
    detail(state));
  place();
  return { element, redraw, follow };
}

function legendOf(colouring: Colouring): HTMLElement[] {
  const swatch = (name: string, words: string) => {
    const box = h("span", { class: "swatch" });
    box.style.background = colour(name);
    return h("span", {}, box, words);
  };
  if (colouring === "verdict") {
    return [["match", "= match"], ["noise", "≈ noise"], ["drifted", "~ drifted only"], ["mismatch", "! its kernel differs"], ["failed", "x failed"],
      ["not compared", "? not compared"]].map(([kind, words]) => swatch(markColour(kind!), words!)).concat(swatch("--none", "no verdict"));
  }
  return ["0", "≤ 1e-4", "≤ 1e-3", "≤ 1e-2", "≤ 0.1", "> 0.1"].map((words, at) => swatch(`--error-${at}`, words))
    .concat(h("span", {}, "max|Δ|/max|r|"), swatch("--none", "not measured"));
}

/** One stage on a canvas that draws what is seen of it, so that its size does not matter. */
class Pane {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { role: "img" });
  private readonly space = h("div", { class: "space" });
  private readonly holder: HTMLElement;
  private readonly root: Group;
  private readonly places: Map<string, number[]>;
  private rows: Seen;
  private links: [number, number][];
  private lit = new Set<number>();
  private readonly errors = { local: new WeakMap<Row, number>(), cumulative: new WeakMap<Row, number>() };
  private focus = -1;
  private hovered = -1;
  private isAsked = false;
  private readonly data: Data;

  constructor(private readonly state: State, private readonly of: { graph: Graph; part: Part; stage: Stage }, private readonly colouring: () => Colouring) {
    this.data = state.data;
    this.root = joined(tree(of.stage));
    openUpTo(this.root, MOST_OPEN);
    this.places = counterparts(of.stage.boxes);
    this.rows = seen(this.root, of.stage.boxes.length);
    this.links = this.linked();
    this.canvas.setAttribute("aria-label", `${STAGES[of.stage.name] ?? of.stage.name}: ${of.stage.boxes.length} nodes; the table of nodes has them as text`);
    this.holder = h("div", { class: "canvas", tabindex: 0, "data-stage": of.stage.name, "data-graph": shown(of.graph.name) }, this.canvas, this.space);
    const n = of.stage.boxes.filter((box) => !box.is_input).length;
    this.element = h("div", { class: "pane" },
      h("h3", {}, h("span", {}, STAGES[of.stage.name] ?? of.stage.name), h("span", { class: "soft" }, count(n, "node"))), this.holder);
    this.holder.addEventListener("scroll", () => this.ask());
    this.holder.addEventListener("click", (event) => this.click(this.rowAt(event)));
    this.holder.addEventListener("mousemove", (event) => this.hover(this.rowAt(event)));
    this.holder.addEventListener("mouseleave", () => this.hover(-1));
    this.holder.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.redraw()).observe(this.holder);
    this.light();
  }

  /** The selection has changed: its counterparts are lit and brought into view. */
  follow(): void {
    this.light();
    const first = [...this.lit][0];
    if (first !== undefined) {
      reveal(this.root, first);
      this.rows = seen(this.root, this.of.stage.boxes.length);
      this.links = this.linked();
      this.focus = this.rows.rowOf[first]!;
      this.redraw();
      const top = this.focus * ROW;
      const [from, height] = [this.holder.scrollTop, this.holder.clientHeight];
      if (top < from + ROW || top > from + height - 2 * ROW) this.holder.scrollTop = Math.max(0, top - height / 2);
    }
    this.redraw();
  }

  private light(): void {
    const selected = this.state.selected;
    this.lit = new Set(selected ? this.places.get(selected.value) ?? [] : []);
    // What tests and screen readers see of it.
    this.holder.dataset.lit = [...this.lit].map((at) => shown(this.of.stage.boxes[at]!.name, 60)).join(" ");
  }

  foldAll(isOpen: boolean): void {
    for (const group of groups(this.root)) group.isOpen = isOpen;
    this.changed();
  }

  private changed(): void {
    this.rows = seen(this.root, this.of.stage.boxes.length);
    this.links = this.linked();
    this.redraw();
  }

  private rowAt(event: MouseEvent): number {
    const y = event.clientY - this.holder.getBoundingClientRect().top + this.holder.scrollTop;
    const row = Math.floor(y / ROW);
    return row < this.rows.rows.length ? row : -1;
  }

  private click(at: number): void {
    const row = this.rows.rows[at];
    if (!row) return;
    this.focus = at;
    if (row.kind === "group") {
      row.isOpen = !row.isOpen;
      this.changed();
      return;
    }
    this.select(row.at);
  }

  private select(at: number): void {
    const box = this.of.stage.boxes[at]!;
    const value = box.of[box.of.length - 1];
    if (value !== undefined) this.state.select(this.of.part, value);
  }

  private hover(at: number): void {
    if (at === this.hovered) return;
    this.hovered = at;
    const row = this.rows.rows[at];
    this.holder.title = row?.kind === "leaf" ? shown(this.of.stage.boxes[row.at]!.detail || this.of.stage.boxes[row.at]!.name, 400) : row ? shown(row.path, 400) : "";
    this.ask();
  }

  private key(event: KeyboardEvent): void {
    const last = this.rows.rows.length - 1;
    const moved = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = this.rows.rows[this.focus];
    if (moved !== undefined) {
      this.focus = Math.min(last, Math.max(0, this.focus + moved));
      const next = this.rows.rows[this.focus];
      if (next?.kind === "leaf") this.select(next.at);
      else this.redraw();
    } else if (row?.kind === "group" && (event.key === "Enter" || (event.key === "ArrowRight") !== row.isOpen && event.key.startsWith("Arrow"))) {
      row.isOpen = !row.isOpen;
      this.changed();
    } else {
      return;
    }
    event.preventDefault();
  }

  private ask(): void {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      this.draw();
    });
  }

  redraw(): void {
    const height = this.holder.clientHeight;
    this.space.style.height = `${Math.max(0, this.rows.rows.length * ROW + 8 - height)}px`;
    this.ask();
  }

  private draw(): void {
    const [width, height] = [this.holder.clientWidth, this.holder.clientHeight];
    if (width === 0 || height === 0) return;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      [this.canvas.width, this.canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
      [this.canvas.style.width, this.canvas.style.height] = [`${width}px`, `${height}px`];
    }
    const context = this.canvas.getContext("2d")!;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const top = this.holder.scrollTop;
    const [from, to] = [Math.floor(top / ROW), Math.min(this.rows.rows.length, Math.ceil((top + height) / ROW))];
    this.lines(context, top, from, to);
    for (let at = from; at < to; at++) this.row(context, at, at * ROW - top, width);
  }

  /** Lines between rows: each goes out to the left by how far it goes. */
  private lines(context: CanvasRenderingContext2D, top: number, from: number, to: number): void {
    const strong = new Set([...this.lit].map((at) => this.rows.rowOf[at]!));
    if (this.hovered >= 0) strong.add(this.hovered);
    const seen = this.links.filter(([one, other]) => other >= from && one <= to);
    const isStrong = ([one, other]: [number, number]) => strong.has(one) || strong.has(other);
    // All of one colour at once: a stroke each takes longer than the lines themselves.
    const stroke = (links: [number, number][], name: string, width: number) => {
      context.beginPath();
      for (const [one, other] of links) {
        const out = Math.min(GUTTER - 8, 5 + 8 * Math.log2(1 + (other - one)));
        const [x, y, end] = [GUTTER - out, one * ROW - top + ROW / 2, other * ROW - top + ROW / 2];
        context.moveTo(GUTTER - 2, y);
        context.lineTo(x + 3, y);
        context.quadraticCurveTo(x, y, x, y + 3);
        context.lineTo(x, end - 3);
        context.quadraticCurveTo(x, end, x + 3, end);
        context.lineTo(GUTTER - 2, end);
      }
      context.strokeStyle = colour(name);
      context.lineWidth = width;
      context.stroke();
    };
    stroke(seen.filter((link) => !isStrong(link)), "--line", 1);
    stroke(seen.filter(isStrong), "--accent", 1.8);
  }

  /** Lines between the rows that are seen, each pair's once. */
  private linked(): [number, number][] {
    const links = new Map<number, [number, number]>();
    const n = this.rows.rows.length;
    for (const [giver, reader] of this.of.stage.lines) {
      const [one, other] = [this.rows.rowOf[giver]!, this.rows.rowOf[reader]!];
      if (one < other) links.set(one * n + other, [one, other]);
    }
    return [...links.values()];
  }

  private row(context: CanvasRenderingContext2D, at: number, y: number, width: number): void {
    const row = this.rows.rows[at]!;
    const x = GUTTER + row.depth * INDENT;
    const isLit = this.isLit(row);
    if (isLit || at === this.hovered) {
      context.fillStyle = colour(isLit ? "--accent-soft" : "--code");
      context.fillRect(GUTTER - 2, y, width - GUTTER + 2, ROW);
    }
    if (at === this.focus && document.activeElement === this.holder) {
      context.strokeStyle = colour("--accent");
      context.lineWidth = 1;
      context.strokeRect(GUTTER - 1.5, y + 0.5, width - GUTTER, ROW - 1);
    }
    context.fillStyle = colour(this.colourOf(row));
    context.fillRect(x, y + 4, 6, ROW - 8);
    context.textBaseline = "middle";
    const middle = y + ROW / 2 + 0.5;
    let from = x + 12;
    const put = (text: string, name: string, font: string) => {
      context.fillStyle = colour(name);
      context.font = font;
      const fits = clipped(context, text, width - from - 6);
      context.fillText(fits, from, middle);
      from += context.measureText(fits).width + 7;
    };
    const [bold, plain] = ["600 12px ui-monospace, 'DejaVu Sans Mono', monospace", "12px ui-monospace, 'DejaVu Sans Mono', monospace"];
    if (row.kind === "group") {
      put(row.isOpen ? "▾" : "▸", "--soft", bold);
      put(shown(row.label, 60), "--ink", bold);
      if (!row.isOpen) put(count(row.n, "node"), "--soft", plain);
      return;
    }
    const box = this.of.stage.boxes[row.at]!;
    put(shown(shortOp(box), 40), box.is_input ? "--soft" : "--ink", bold);
    put(shown(box.name, 60), "--soft", plain);
    if (box.of.length > 1) put(`+${box.of.length - 1}`, "--accent", plain);
    if (box.is_output) put("⟶ output", "--accent", plain);
  }

  private isLit(row: Row): boolean {
    if (row.kind === "leaf") return this.lit.has(row.at);
    return !row.isOpen && [...this.lit].some((at) => this.rows.rows[this.rows.rowOf[at]!] === row);
  }

  private colourOf(row: Row): string {
    const colouring = this.colouring();
    if (colouring === "verdict") return markColour(row.kind === "group" ? row.mark : this.of.stage.boxes[row.at]!.mark);
    return errorColour(this.errorOf(row, colouring));
  }

  private errorOf(row: Row, side: "local" | "cumulative"): number {
    const known = this.errors[side].get(row) ?? this.measured(row, side);
    this.errors[side].set(row, known);
    return known;
  }

  private measured(row: Row, side: "local" | "cumulative"): number {
    if (row.kind === "group") return row.children.reduce((most, child) => Math.max(most, this.errorOf(child, side)), -1);
    const errors = this.of.stage.boxes[row.at]!.of.map((value) => {
      const found = this.data.rowOf(this.of.part, value);
      return found ? distance(found.of[side]) : -1;
    });
    return Math.max(-1, ...errors);
  }
}

function shortOp(box: { op: string; mark: string | null }): string {
  const sign = box.mark !== null && badness(box.mark) >= badness("drifted") ? `${{ drifted: "~", mismatch: "!", failed: "x" }[box.mark] ?? ""} ` : "";
  return sign + box.op.replace(/^aten\./, "").replace(/\.default$/, "");
}

function clipped(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (width <= 0) return "";
  if (context.measureText(text).width <= width) return text;
  let [least, most] = [0, text.length];
  while (least < most) {
    const middle = (least + most + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) least = middle;
    else most = middle - 1;
  }
  return least > 0 ? `${text.slice(0, least)}…` : "";
}
