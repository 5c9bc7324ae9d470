// The data of the page: what docs/design/report.md describes, and what is looked up in it.

export type Num = number | "inf" | "-inf" | "nan";

export interface Tolerance { atol: number; rtol: number; scale: number; equal_nan: boolean }
export interface Element_ { index: number; at: number[]; imaginary: boolean; reference: Num; candidate: Num }
export interface Metrics {
  n: number; max_abs: Num; max_rel: Num; rmse: Num; cosine: Num; max_reference: Num; max_rel_to_max: Num;
  max_ulp: number | null; nan_disagreements: number; inf_disagreements: number; both_nan: number;
  worst: Element_ | null; outside: number; required: { atol: Num; rtol: Num }; tolerance: Tolerance;
  max_terms?: number;
}
export interface Noise { kind: string; ratio: Num; reference_error: Num; candidate_error: Num }
export interface Verdict { kind: string; reason: string; metrics: Metrics | null; noise: Noise | null }
export interface Distribution {
  measured: number; disagreements: number; both_nan: number; equal: number;
  distance_quantiles: number[]; of_bound_quantiles: (number | null)[]; distances: [number, number][];
  frontier: [number, number][]; values: { low: number; high: number; reference: number[]; candidate: number[] };
  worst: Element_[];
}
export interface Output extends Verdict {
  name: string; role: string | null; dtype: string | null; dims: number[] | null; is_sum: boolean;
  distribution: Distribution | null;
}
export interface Birth { side: string; kind: string; dtype: string }
export interface NodeRow {
  index: number; name: string; op: string; onnx_ops: string[]; module: string; source: string; role: string;
  dtype: string; dims: number[]; local: Verdict; cumulative: Verdict; mark: string; as_right: string;
  no_float64?: string; births?: Birth[];
}
export interface Table {
  nodes: NodeRow[]; left_out: number; first_local_mismatch: string | null; plain: Verdict[];
  first_births: { node: string; birth: Birth }[];
}
export interface Contribution {
  name: string; values: string[]; op: string; onnx_ops: string[]; module: string; source: string; share: number; output: string;
  local: Verdict; own: string; layer: string | null;
}
export interface Answer {
  culprit: { kind: string; name?: string }; nodes: Contribution[]; text: string; notes: string[]; complete: boolean;
  complaints: { name: string; role: string; as_ran: Verdict }[]; n_runs: number; seconds: number;
}
export interface Step {
  step: number; path: string; state: { kind: string; reason?: unknown }; judged_from: string; outputs: Output[];
  table: Table | null; blame: { is_own: boolean; is_current: boolean; answer: Answer | null } | null;
}
export interface Box {
  op: string; name: string; module: string; of: string[]; mark: string | null; detail: string; is_input: boolean; is_output: boolean;
}
export interface Stage { name: string; file: string; boxes: Box[]; lines: [number, number][]; not_drawn: number }
export interface Part { part: number; path: string; calls: Record<string, string>; steps: Step[]; stages: Stage[] }
export interface Graph {
  name: string; path: string; direction: string | null; options: Record<string, unknown> | null; compute_nodes: number | null;
  eager: { node: string; op: string; reason: string }[] | null; parts: Part[];
}
export interface Counts {
  match: number; noise: number; tie: number; open_order: number; mismatch: number; not_compared: number; failed: number;
}
export interface Card {
  kind: string; text: string; graph: string | null; part: number | null; step: number | null; node: string | null; op: string | null;
  onnx_ops: string[] | null; module: string | null; source: string | null; layer: string | null; local: Verdict | null;
  cumulative: Verdict | null; share: number | null; share_of: string | null; beside: string[] | null; smallest: string[] | null;
  is_complete: boolean | null; is_own: boolean | null; is_current: boolean | null; command: string | null; next: string;
}
export interface Missing {
  whole: number; damaged: { path: string; reason: string }[]; missing: string[]; incomplete: { path: string; reason: string }[];
  not_sealed: number; unlisted: string[]; unread: string[];
}
export interface Report {
  schema: string; path: string; name: string; version: string; run: Record<string, any> | null;
  verdict: {
    kind: string; outputs: Counts; local: Counts; cumulative: Counts; n_nodes: number; text: string; within: string; blamed: string | null;
  };
  culprit: Card; not_compared: { what: string; reason: string; n: number; names: string[] }[]; missing: Missing;
  quantiles: number[]; graphs: Graph[];
}

/** Numbers that are not finite are texts in JSON. */
export function num(value: Num | null | undefined): number {
  if (typeof value === "number") return value;
  if (value === "inf") return Infinity;
  return value === "-inf" ? -Infinity : NaN;
}

/** One data set, and where it is. */
export interface Call { graph: Graph; part: Part; step: Step; label: string }

/** An output or a node of a call. */
export interface Place<T> { call: Call; of: T }

export class Data {
  readonly calls: Call[];
  readonly outputs: Place<Output>[];
  readonly nodes: Place<NodeRow>[];
  private readonly rows = new Map<Part, Map<string, Place<NodeRow>[]>>();

  constructor(readonly report: Report) {
    const hasParts = report.graphs.some((graph) => graph.parts.length > 1);
    const hasSteps = report.graphs.some((graph) => graph.parts.some((part) => part.steps.length > 1));
    const label = (graph: Graph, part: Part, step: Step) => `${graph.name}${hasParts ? `/${part.part}` : ""}${hasSteps ? ` #${step.step}` : ""}`;
    this.calls = report.graphs.flatMap((graph) =>
      graph.parts.flatMap((part) => part.steps.map((step) => ({ graph, part, step, label: label(graph, part, step) }))));
    this.outputs = this.calls.flatMap((call) => call.step.outputs.map((of) => ({ call, of })));
    this.nodes = this.calls.flatMap((call) => (call.step.table?.nodes ?? []).map((of) => ({ call, of })));
    for (const place of this.nodes) {
      const known = this.rows.get(place.call.part) ?? new Map<string, Place<NodeRow>[]>();
      this.rows.set(place.call.part, known);
      const calls = known.get(place.of.name);
      if (calls) calls.push(place);
      else known.set(place.of.name, [place]);
    }
  }

  /** The rows of a value of a part, one a call. */
  rowsOf(part: Part, value: string): Place<NodeRow>[] {
    return this.rows.get(part)?.get(value) ?? [];
  }

  /** The row of a value that is worst. */
  rowOf(part: Part, value: string): Place<NodeRow> | undefined {
    return [...this.rowsOf(part, value)].sort((one, other) => badness(other.of.mark) - badness(one.of.mark))[0];
  }

  /** The row of blame's answer that a value of a part is in. */
  shareOf(part: Part, value: string): Contribution | undefined {
    for (const step of part.steps) {
      const found = step.blame?.answer?.nodes.find((node) => node.values.includes(value));
      if (found) return found;
    }
    return undefined;
  }

  outputOf(part: Part, value: string): Place<Output> | undefined {
    return this.outputs.find((place) => place.call.part === part && place.of.name === value);
  }

  partOf(graph: string | null, part: number | null): Part | undefined {
    return this.report.graphs.find((one) => one.name === graph)?.parts.find((one) => one.part === part);
  }
}

/** Marks and verdicts: their sign, and in which order they are bad. */
export const MARKS: Record<string, { sign: string; word: string; badness: number }> = {
  match: { sign: "=", word: "match", badness: 0 },
  noise: { sign: "≈", word: "noise", badness: 1 },
  tie: { sign: "≈", word: "tie", badness: 1 },
  open_order: { sign: "≈", word: "open order", badness: 1 },
  "not compared": { sign: "?", word: "not compared", badness: 2 },
  not_compared: { sign: "?", word: "not compared", badness: 2 },
  undecided: { sign: "…", word: "not decided", badness: 2 },
  drifted: { sign: "~", word: "drifted", badness: 3 },
  mismatch: { sign: "!", word: "mismatch", badness: 4 },
  failed: { sign: "x", word: "failed", badness: 5 },
};

export function badness(mark: string): number {
  return MARKS[mark]?.badness ?? 0;
}

/** By this the worst of one verdict comes first: max|Δ|/max|r|, NaN above all. */
export function distance(verdict: Verdict): number {
  if (!verdict.metrics) return -1;
  const value = num(verdict.metrics.max_rel_to_max);
  return Number.isNaN(value) ? Infinity : value;
}

export function worstFirst<T extends Verdict>(one: Place<T>, other: Place<T>): number {
  return badness(other.of.kind) - badness(one.of.kind) || distance(other.of) - distance(one.of);
}

export function read(): Report {
  return JSON.parse(document.getElementById("data")!.textContent!) as Report;
}
