// Judging again by another tolerance, as `rust-ort compare --atol … --rtol … --scale …` does, from what the page holds. Pure.

import { num } from "./data";
import type { Output, Tolerance, Verdict } from "./data";

/** Terms that are asked for; one that is not is the tensor's own. */
export interface Asked { atol: number | null; rtol: number | null; scale: number | null }

/** is_exact: every element decides; else it is what the kept numbers allow to say. outside: at least and at most so many. */
export interface Judged { kind: string; is_exact: boolean; outside: [number, number] | null }

export function asked(own: Tolerance, terms: Asked): Tolerance {
  return { ...own, atol: terms.atol ?? own.atol, rtol: terms.rtol ?? own.rtol, scale: terms.scale ?? own.scale };
}

function isSame(one: Tolerance, other: Tolerance): boolean {
  return one.atol === other.atol && one.rtol === other.rtol && one.scale === other.scale;
}

/** An output, of which the page may hold the distribution. */
export function judge(output: Output, terms: Asked): Judged {
  const recorded = { kind: output.kind, is_exact: true, outside: null };
  const metrics = output.metrics;
  if (!metrics || output.dtype === "bool") return recorded;
  const tolerance = asked(metrics.tolerance, terms);
  if (isSame(tolerance, metrics.tolerance)) return { ...recorded, outside: [metrics.outside, metrics.outside] };
  // What rounding of sums or a choice between equals may excuse is decided by tensors that are not in the page.
  const isExcusable = output.is_sum || output.kind === "tie" || output.kind === "open_order";
  const found = output.distribution;
  if (!found) return byMetrics(output, tolerance, isExcusable);
  const never = found.disagreements + (tolerance.equal_nan ? 0 : found.both_nan);
  const floor = tolerance.scale * num(metrics.max_reference);
  const isWithin = found.frontier.every(([size, apart]) => apart - (tolerance.atol + tolerance.rtol * size + floor) <= 0);
  if (never === 0 && isWithin) return { kind: "match", is_exact: true, outside: [0, 0] };
  return { kind: "mismatch", is_exact: !isExcusable, outside: outside(output, tolerance, never) };
}

/** How many elements are outside, at least and at most: bounds lie between that of a reference of 0 and that of max|r|. */
function outside(output: Output, tolerance: Tolerance, never: number): [number, number] {
  const size = num(output.metrics!.max_reference);
  const least = tolerance.atol + tolerance.scale * size;
  const most = least + tolerance.rtol * size;
  const { distances } = output.distribution!;
  let [sure, possible, below] = [0, 0, 0];
  for (const [edge, n] of distances) {
    if (below >= most) sure += n;
    if (edge > least) possible += n;
    below = edge;
  }
  return [Math.max(never + sure, 1), never + Math.max(possible, 1)];
}

/** An output or a node, judged from its metrics alone. */
export function byMetrics(verdict: Verdict, tolerance: Tolerance, isExcusable: boolean): Judged {
  const metrics = verdict.metrics;
  if (!metrics) return { kind: verdict.kind, is_exact: true, outside: null };
  const own = metrics.tolerance;
  const floor = tolerance.scale * num(metrics.max_reference);
  const never = metrics.nan_disagreements + metrics.inf_disagreements + (tolerance.equal_nan ? 0 : metrics.both_nan);
  if (never > 0) return { kind: "mismatch", is_exact: !isExcusable, outside: [never, metrics.n] };
  const isWider = (term: "atol" | "rtol" | "scale") => tolerance[term] >= own[term];
  const isWithin =
    num(metrics.max_abs) <= tolerance.atol + floor ||
    num(metrics.max_rel) <= tolerance.rtol ||
    (isWider("rtol") && isWider("scale") && tolerance.atol >= num(metrics.required.atol)) ||
    (isWider("atol") && isWider("scale") && tolerance.rtol >= num(metrics.required.rtol)) ||
    (metrics.outside === 0 && isWider("atol") && isWider("rtol") && isWider("scale"));
  if (isWithin) return { kind: "match", is_exact: true, outside: [0, 0] };
  const worst = metrics.worst;
  const [reference, candidate] = [num(worst?.reference), num(worst?.candidate)];
  const isOutside = worst !== null && Math.abs(candidate - reference) > tolerance.atol + tolerance.rtol * Math.abs(reference) + floor;
  if (isOutside) return { kind: "mismatch", is_exact: !isExcusable, outside: [1, metrics.n] };
  return { kind: "undecided", is_exact: false, outside: [0, metrics.n] };
}

/** The least atol with which an output passes, the other terms as asked for; null: none suffices or it is not known. */
export function leastAtol(output: Output, terms: Asked): number | null {
  const [metrics, found] = [output.metrics, output.distribution];
  if (!metrics || !found || output.dtype === "bool") return null;
  const tolerance = asked(metrics.tolerance, terms);
  if (found.disagreements + (tolerance.equal_nan ? 0 : found.both_nan) > 0) return null;
  const floor = tolerance.scale * num(metrics.max_reference);
  return found.frontier.reduce((least, [size, apart]) => Math.max(least, apart - tolerance.rtol * size - floor), 0);
}
