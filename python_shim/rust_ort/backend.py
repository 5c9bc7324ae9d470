"""The torch.compile backend: what Dynamo calls with a graph, and the options of that call.

A graph goes through runtime/compilation.py: AOTAutograd, then export/, then call/client.py, which prepares its parts. A
call of what comes out goes through runtime/compiled_graph.py, then call/, to the executor.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from rust_ort import torch_private
from rust_ort._callable import make_callable
from rust_ort.errors import ClientError, OptionError, RustOrtError
from rust_ort.link.specs import not_compared
from rust_ort.observe import failures, limits
from rust_ort.observe.graph_info import GraphInfo, GraphLog, graphs
from rust_ort.observe.report import Report
from rust_ort.observe.verdicts import missing
from rust_ort.options import Options
from rust_ort.options.arguments import checked_options, shown

__all__ = ["Backend", "GraphInfo", "backend", "graphs", "rust_ort"]


log = logging.getLogger("rust_ort")

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
"""Of torch.compile, as torch 2.13 names them."""


class Backend:
    """A torch.compile backend with its options. Deep-copies as itself and pickles by its options.

    options: a dict of the names of `rust_ort.Options`, or Options. `graphs`: those that this object compiled, oldest
    first; `report()`: what was compared of them. Backends with equal options are equal: code that one compiled serves
    the other, and Dynamo does not compile it again. Errors: OptionError.
    """

    def __init__(self, options: Mapping[str, Any] | Options | None = None) -> None:
        options = checked_options("backend", options)
        self._given = options if isinstance(options, Options) else dict(options or {})
        self.options = options if isinstance(options, Options) else Options.parse(options)
        self.__name__ = "rust_ort"
        self._graphs = GraphLog()
        self._failed: dict[str, None] = {}

    @property
    def graphs(self) -> list[GraphInfo]:
        """Those that were compiled through this object, as in `rust_ort.graphs()`."""
        return self._graphs.list()

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        try:
            options = _merged(self._given, self.options, kwargs)
            # Not before a graph is there: importing rust_ort connects nothing and loads no compiler.
            from rust_ort.runtime.compilation import compile_dynamo_graph

            return compile_dynamo_graph(gm, example_inputs, options, self._graphs)
        except Exception as error:
            if why := failures.note(error):
                self._failed[why] = None
            if isinstance(error, RustOrtError):
                raise _as_itself(error) from error
            raise

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Backend):
            return NotImplemented
        return type(self) is type(other) and self.options == other.options

    def __hash__(self) -> int:
        kept = (getattr(self.options, name) for name in self.options.__dataclass_fields__)
        return hash((type(self), *(value for value in kept if isinstance(value, str | int | float))))

    def report(self) -> Report:
        """What the option compare found in the calls so far: `model(x); backend.report().check()`. A function that met
        Dynamo's recompile limit, and so runs in eager, is missing in it; so is a graph whose failure was suppressed."""
        verdicts = [
            dataclasses.replace(verdict, name=f"{graph.name}, call {step}: {verdict.name}")
            for graph in self.graphs for step, verdict in graph.verdicts
        ]  # fmt: skip
        unmet = [*missing(self.options, self.graphs), *limits.verdicts(limits.met(self))]
        unmet += [not_compared("a graph", why) for why in self._failed]
        return Report(verdicts=verdicts, graphs=list(self.graphs), missing=unmet)

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._given,))

    def __repr__(self) -> str:
        return f"rust_ort.backend({self._given!r})"


def rust_ort(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | Options | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend behind `torch.compile(model, backend="rust_ort")`.

    gm, example_inputs: what Dynamo hands over. options: names of `rust_ort.Options`. mode: one of torch.compile's, told
    once, and of no effect. Errors: OptionError; ClientError under on_unsupported="error"; DaemonFault when no daemon
    answers.
    """
    if not isinstance(gm, fx.GraphModule):
        raise ClientError(
            f"rust_ort is a backend, which torch.compile calls with a graph; got {shown(gm)}; "
            "use torch.compile(model, backend=rust_ort)",
            code="BAD_ARGUMENT",
        )
    try:
        made = Backend(options)
    except RustOrtError as error:
        raise _as_itself(error) from error
    return made(gm, example_inputs, mode=mode)


_regions: dict[Backend, int] = {}
"""{equal backend, which compiled nothing: where Dynamo counts what such backends compiled for tools}."""


def compiled_apart(model: Any, backend: Backend) -> Any:
    """`torch.compile(model, backend=backend)` for a tool: what it compiles serves equal backends of other tools, and
    counts against no recompile limit of the user's, nor of tools with other options, but for torch's limit of all that
    is compiled of a function."""
    key = type(backend)(backend.options)
    compiled, region = torch_private.compiled_apart(model, backend=backend, region=_regions.get(key))
    if region is not None:
        _regions[key] = region
    return compiled


def _as_itself(error: RustOrtError) -> RustOrtError:
    """`error` in a form that Dynamo lets through instead of wrapping it in BackendCompilerFailed.

    Dynamo raises it `from None`: an attribute of the class keeps what was wrong in the first place.
    """
    kind, base = type(error), torch_private.lets_through()
    if base is None:
        return error
    through: Any = type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__cause__": error.__cause__})
    raised: RustOrtError = through.__new__(through)
    base.__init__(raised, *error.args, first_useful_frame=None)  # what Dynamo asks of its errors, in each version
    raised.__dict__.update(error.__dict__)
    return raised


def _merged(given: Mapping[str, Any] | Options, parsed: Options, kwargs: Mapping[str, Any]) -> Options:
    unknown = sorted(set(kwargs) - {"options", "mode"})
    if unknown:
        raise OptionError(f"unknown argument {unknown[0]!r}; options go into torch.compile(options={{...}})")
    _check_mode(kwargs.get("mode"))
    more = kwargs.get("options")
    if more is None:
        return parsed
    if isinstance(more, Options):
        return more
    if isinstance(given, Options):
        given = {name: getattr(given, name) for name in given.__dataclass_fields__}
    return Options.parse({**given, **more})


def _check_mode(mode: object) -> None:
    """A mode of torch.compile's is told once and changes nothing: it says where inductor spends time, and callers pass
    one that did not choose it (transformers' CompileConfig). Errors: OptionError for another."""
    if mode is None:
        return
    if mode not in MODES:
        raise OptionError(
            f"mode={shown(mode)}: torch.compile has {', '.join(map(repr, MODES))}, which are inductor's; rust_ort has "
            "no modes; use mode=None and options={...}"
        )
    if mode != "default":
        _tell_mode(str(mode))


@functools.cache
def _tell_mode(mode: str) -> None:
    log.warning(
        "mode=%r is inductor's and changes nothing here; use mode=None and options={...} (rust_ort.Options)",
        mode,
    )


def backend(**options: Any) -> Backend:
    """A backend object with these options: `torch.compile(model, backend=rust_ort.backend(compare="outputs"))`."""
    return Backend(options)


make_callable(__name__, backend)
