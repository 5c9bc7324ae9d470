// Light and dark, and the colours of a canvas, which knows no style sheet.

const CHOICES = ["auto", "light", "dark"] as const;

export function themeButton(changed: () => void): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  let at = 0;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const choice = CHOICES[at]!;
    document.documentElement.dataset.theme = choice === "auto" ? (system.matches ? "dark" : "light") : choice;
    button.textContent = `Theme: ${choice}`;
    known.clear();
    changed();
  };
  button.addEventListener("click", () => {
    at = (at + 1) % CHOICES.length;
    apply();
  });
  system.addEventListener("change", apply);
  apply();
  return button;
}

/** Colours that were asked for, of the theme that is shown: a canvas asks for hundreds a frame. */
const known = new Map<string, string>();

/** A colour of the style sheet, such as `--mismatch`. */
export function colour(name: string): string {
  const found = known.get(name) ?? getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  known.set(name, found);
  return found;
}

/** Name of the colour of a mark. */
export function markColour(mark: string | null): string {
  switch (mark) {
    case "match": return "--match";
    case "noise": case "tie": case "open_order": return "--noise";
    case "drifted": return "--drifted";
    case "mismatch": return "--mismatch";
    case "failed": return "--failed";
    case null: return "--none";
    default: return "--not-compared";
  }
}

/** Steps of an error max|Δ|/max|r|, from none to large: the light and the dark theme have their own. */
export const ERROR_STEPS = [0, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1] as const;

export function errorColour(error: number): string {
  if (Number.isNaN(error)) return "--error-5";
  let step = 0;
  ERROR_STEPS.forEach((least, at) => {
    if (error > least) step = at;
  });
  return error < 0 ? "--none" : `--error-${error === 0 ? 0 : Math.max(step, 1)}`;
}
