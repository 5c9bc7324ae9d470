// A graph as rows in program order, folded by module. Pure: what a pane draws.

import { badness } from "./data";
import type { Box, Stage } from "./data";

/** A module within others; nodes and modules in the order of the program. */
export interface Group {
  kind: "group"; path: string; label: string; depth: number; children: (Group | Leaf)[]; isOpen: boolean; mark: string | null; n: number;
}
export interface Leaf { kind: "leaf"; at: number; depth: number }
export type Row = Group | Leaf;

/** The tree of a stage's modules. A module that is come back to later is a group of its own: rows keep the program's order. */
export function tree(stage: Stage): Group {
  const root: Group = { kind: "group", path: "", label: "", depth: -1, children: [], isOpen: true, mark: null, n: 0 };
  let open: Group[] = [root];
  stage.boxes.forEach((box, at) => {
    // An input, and a node of no module, stands where the program has it.
    if (box.module !== "" && !box.is_input) open = entered(open, box.module);
    const inner = open[open.length - 1]!;
    inner.children.push({ kind: "leaf", at, depth: inner.depth + 1 });
    for (const group of open) {
      group.n += 1;
      group.mark = worse(group.mark, box.mark);
    }
  });
  return root;
}

/** The groups that are open in a module, of those that are open before it. */
function entered(open: Group[], module: string): Group[] {
  const parts = module.split(".");
  const next = [open[0]!];
  let path = "";
  parts.forEach((part, at) => {
    path = at === 0 ? part : `${path}.${part}`;
    const known = open[at + 1];
    if (known && known.path === path && next.length === at + 1) {
      next.push(known);
      return;
    }
    const outer = next[next.length - 1]!;
    const group: Group = { kind: "group", path, label: part, depth: outer.depth + 1, children: [], isOpen: false, mark: null, n: 0 };
    outer.children.push(group);
    next.push(group);
  });
  return next;
}

function worse(one: string | null, other: string | null): string | null {
  if (one === null || other === null) return one ?? other;
  return badness(other) > badness(one) ? other : one;
}

/** A group with nothing in it but one other group stands with it in one row: `model.layers`. */
export function joined(group: Group): Group {
  for (const [at, child] of group.children.entries()) {
    if (child.kind === "leaf") continue;
    let inner = joined(child);
    const [only] = inner.children;
    if (inner.children.length === 1 && only && only.kind === "group") {
      inner = { ...only, label: `${inner.label}.${only.label}`, depth: inner.depth };
      shift(inner);
    }
    group.children[at] = inner;
  }
  return group;
}

function shift(group: Group): void {
  for (const child of group.children) {
    child.depth = group.depth + 1;
    if (child.kind === "group") shift(child);
  }
}

/** Opens groups from the outside to the inside while no more than `most` rows are seen. */
export function openUpTo(root: Group, most: number): void {
  let level = groups(root).filter((group) => group.depth === 0);
  let seen = root.children.length;
  while (level.length > 0) {
    const more = level.reduce((n, group) => n + group.children.length, 0);
    if (seen + more > most) return;
    for (const group of level) group.isOpen = true;
    seen += more;
    level = level.flatMap((group) => group.children.filter((child): child is Group => child.kind === "group"));
  }
}

export function groups(root: Group): Group[] {
  const inner = root.children.flatMap((child) => (child.kind === "group" ? groups(child) : []));
  return root.depth < 0 ? inner : [root, ...inner];
}

/** The rows that are seen, from top to bottom. rowOf: of each box the row that it is in. */
export interface Seen { rows: Row[]; rowOf: number[] }

export function seen(root: Group, nBoxes: number): Seen {
  const rows: Row[] = [];
  const rowOf = new Array<number>(nBoxes).fill(0);
  const walk = (group: Group, hidden: number | null) => {
    for (const child of group.children) {
      const row = hidden ?? rows.length;
      if (hidden === null) rows.push(child);
      if (child.kind === "leaf") rowOf[child.at] = row;
      else walk(child, child.isOpen ? hidden : row);
    }
  };
  walk(root, null);
  return { rows, rowOf };
}

/** Opens all groups that a box is in. */
export function reveal(root: Group, at: number): boolean {
  for (const child of root.children) {
    if (child.kind === "leaf" ? child.at === at : reveal(child, at)) {
      root.isOpen = true;
      return true;
    }
  }
  return false;
}

/** The boxes that compute each FX value. */
export function counterparts(boxes: Box[]): Map<string, number[]> {
  const places = new Map<string, number[]>();
  boxes.forEach((box, at) => {
    for (const value of box.of) {
      const known = places.get(value);
      if (known) known.push(at);
      else places.set(value, [at]);
    }
  });
  return places;
}
