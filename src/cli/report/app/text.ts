// Names and numbers as people read them. Names come from models: they are text, never markup.

const CONTROL = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/u;

/** A longer name is told with its length. */
const MOST_PLAIN = 200;

/** Whether a terminal takes a text as it is. */
export function isPlain(text: string): boolean {
  return !CONTROL.test(text);
}

/** A name with what cannot be seen escaped, its middle left out where it is longer than `most` characters. */
export function shown(text: string, most = 90): string {
  const letters = text.length > 4 * most ? [...text.slice(0, 2 * most), ...text.slice(-2 * most)] : [...text];
  const escaped = (part: string[]) =>
    part.map((letter) => (CONTROL.test(letter) ? `\\u{${letter.codePointAt(0)!.toString(16)}}` : letter)).join("");
  if (text.length <= most) return escaped(letters);
  const tail = Math.floor(most / 3);
  const length = text.length > MOST_PLAIN ? ` (${text.length} characters)` : "";
  return `${escaped(letters.slice(0, most - tail - 1))}…${escaped(letters.slice(-tail))}${length}`;
}

const ROLES: Record<string, string> = {
  PlainAOTOutput: "output", GradAOTOutput: "gradient of", SavedForBackwardsAOTOutput: "saved for backward", TangentAOTInput: "gradient of output",
  InputMutationAOTOutput: "new value of", InputAliasAOTOutput: "alias of", IntermediateBaseAOTOutput: "base of views",
};

/** An output's role in words: `GradAOTOutput layer.weight` is "gradient of layer.weight". */
export function roleWords(role: string): string {
  const [kind = "", ...of] = role.split(" ");
  const words = ROLES[kind] ?? kind.replace(/AOT(Output|Input)$/, "").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  // Saved values are numbered, which says nothing.
  return kind === "SavedForBackwardsAOTOutput" ? words : [words, ...of].join(" ");
}

/** The end of a path, which tells most: `activations.py:103 in forward`. */
export function lastOfPath(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Three significant digits; small and large ones with an exponent. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return trimmed(value.toPrecision(3));
  return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
}

/** As `number`, never below the value: what is told to be enough is. */
export function enough(value: number): string {
  if (!Number.isFinite(value) || value === 0) return number(value);
  const nearest = Number(value.toPrecision(3));
  return number(nearest < value ? Number((value * 1.005).toPrecision(3)) : nearest);
}

function trimmed(text: string): string {
  if (text.includes("e")) return String(Number(text));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function percent(share: number): string {
  return `${trimmed((100 * share).toPrecision(share > 0.99 && share < 1 ? 5 : 3))} %`;
}

/** As many digits as float32 has. */
export function exact(value: number): string {
  return Number.isFinite(value) ? String(Number(value.toPrecision(9))) : number(value);
}

export function count(n: number, what: string): string {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: any) => void)>;

/** An element. Children that are texts stay texts; `on…` are listeners. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS(SVG, tag) as SVGElement;
  fill(element, attributes, children);
  return element;
}

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) element.append(child instanceof Node ? child : String(child));
  }
}

/** An element with a long name: shortened, whole in its tooltip. */
export function named(text: string, most = 90): HTMLElement {
  return h("span", { title: shown(text, 2000), class: "name" }, shown(text, most));
}

/** A button that copies a text. */
export function copyButton(text: string, label = "Copy"): HTMLButtonElement {
  const button = h("button", {
    type: "button",
    class: "copy",
    onclick: async () => {
      const done = await copied(text);
      button.textContent = done ? "Copied" : "Select it and copy";
      setTimeout(() => (button.textContent = label), 1500);
    },
  }, label);
  return button;
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Of a page from the disk some browsers refuse it.
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** A table with a header, and a caption for whoever hears it. */
export function table(caption: string, header: string[], rows: Child[][], attributes: Attributes = {}): HTMLTableElement {
  return h("table", attributes,
    h("caption", { class: "heard" }, caption),
    h("thead", {}, h("tr", {}, ...header.map((cell) => h("th", { scope: "col" }, cell)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", {}, cell))))));
}
