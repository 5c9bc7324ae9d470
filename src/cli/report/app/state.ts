// The selection, and who is told of it.

import type { Data, Part } from "./data";

export interface Selected { part: Part; value: string }

export class State {
  selected: Selected | null = null;
  /** The output that the tensor view shows. */
  output = 0;
  private readonly listeners: (() => void)[] = [];
  /** Shows a view by its name; set by main.ts. */
  show: (view: string) => void = () => {};

  constructor(readonly data: Data) {}

  onSelect(listener: () => void): void {
    this.listeners.push(listener);
  }

  select(part: Part, value: string): void {
    this.selected = { part, value };
    for (const listener of this.listeners) listener();
  }

  isSelected(part: Part, value: string): boolean {
    return this.selected?.part === part && this.selected.value === value;
  }
}
