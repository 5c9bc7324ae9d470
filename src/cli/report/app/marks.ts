// A verdict as a sign, a word and a colour, so that none of them is needed alone.

import { MARKS } from "./data";
import { h } from "./text";

const CLASS: Record<string, string> = {
  match: "match", noise: "noise", tie: "noise", open_order: "noise", drifted: "drifted", mismatch: "mismatch", failed: "failed",
};

export function mark(kind: string, word?: string): HTMLElement {
  const known = MARKS[kind] ?? { sign: "?", word: kind };
  return h("span", { class: `mark mark-${CLASS[kind] ?? "not-compared"}` },
    h("i", { "aria-hidden": "true" }, known.sign), word ?? known.word);
}
