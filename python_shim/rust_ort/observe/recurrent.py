"""An LSTM's layer in float64: on a CPU eager has oneDNN compute it, which has no float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

FORWARD = aten.mkldnn_rnn_layer.default
BACKWARD = aten.mkldnn_rnn_layer_backward.default
LSTM = 2
"""Of torch's modes of recurrence the one that oneDNN computes."""


def layer(target: Any, args: Sequence[Any], made: Any) -> Any:
    """What such a layer or its backward gives, of float64 arguments; None of another operator, and of packed sequences.
    made: eager's results, whose last, of the forward, is oneDNN's own memory. Source: torch.nn.LSTM."""
    if target is FORWARD and args[9] == LSTM and not args[8]:
        ran = _Run.of(args, reverse=args[7], has_biases=args[12])
        return ran.output, ran.states[-1], ran.cells[-1], made[3]
    if target is BACKWARD and args[14] == LSTM and not args[20]:
        return _Run.of(args, reverse=args[13], has_biases=args[17]).gradients(*args[10:13])
    return None


@dataclass(frozen=True, kw_only=True)
class _Run:
    """x: [time, batch, features] in the order of the steps. of_x, of_state: weights, [4 hidden, …]. states, cells:
    before the first step and after each. gates: of each step input, forget, cell and output gate."""

    x: Tensor
    of_x: Tensor
    of_state: Tensor
    reverse: bool
    states: list[Tensor]
    cells: list[Tensor]
    gates: list[tuple[Tensor, ...]]

    @classmethod
    def of(cls, args: Sequence[Any], *, reverse: bool, has_biases: bool) -> _Run:
        x, of_x, of_state, bias, other_bias, state, cell = args[:7]
        x = x.flip(0) if reverse else x
        given = x @ of_x.mT + (bias + other_bias if has_biases else 0)
        states, cells = [state], [cell]
        gates: list[tuple[Tensor, ...]] = []
        for step in given:
            i, f, g, o = (step + states[-1] @ of_state.mT).chunk(4, -1)
            gates.append((i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()))
            i, f, g, o = gates[-1]
            cells.append(f * cells[-1] + i * g)
            states.append(o * cells[-1].tanh())
        return cls(
            x=x, of_x=of_x, of_state=of_state, reverse=reverse, states=states, cells=cells, gates=gates
        )  # fmt: skip

    @property
    def output(self) -> Tensor:
        return self._in_time(torch.stack(self.states[1:]))

    def _in_time(self, steps: Tensor) -> Tensor:
        return steps.flip(0) if self.reverse else steps

    def gradients(
        self, of_output: Tensor | None, of_state: Tensor | None, of_cell: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Of x, both weights, both biases (which are there for a layer without, too), the first state and cell."""
        zero = torch.zeros_like(self.cells[0])
        outputs = [zero] * len(self.gates) if of_output is None else list(self._in_time(of_output))
        state, cell = (zero if of is None else of for of in (of_state, of_cell))
        steps = []
        for n, (i, f, g, o) in reversed([*enumerate(self.gates)]):
            state = state + outputs[n]
            bent = self.cells[n + 1].tanh()
            cell = cell + state * o * (1 - bent * bent)
            of_gates = (cell * g * i * (1 - i), cell * self.cells[n] * f * (1 - f), cell * i * (1 - g * g),
                        state * bent * o * (1 - o))  # fmt: skip
            steps.append(torch.cat(of_gates, -1))
            state, cell = steps[-1] @ self.of_state, cell * f
        of_steps = torch.stack(steps[::-1])
        flat = of_steps.flatten(0, 1).mT
        before = torch.stack(self.states[:-1]).flatten(0, 1)
        bias = flat.sum(-1)
        x = self._in_time(of_steps @ self.of_x)
        return x, flat @ self.x.flatten(0, 1), flat @ before, bias, bias.clone(), state, cell
