"""Which node to leave to eager where the runtime refuses a model."""

from __future__ import annotations

import bisect
import dataclasses
import re
from typing import Any

import torch
from torch import fx

from rust_ort.errors import ClientError, OptionError, RustOrtError
from rust_ort.export.plan import Plan, make_plan
from rust_ort.link.specs import GraphSpec
from rust_ort.options.arguments import function_name
from rust_ort.runtime.cache_key import opset
from rust_ort.runtime.dynamo_graph import Compilation
from rust_ort.runtime.preparation import prepared_parts
from rust_ort.torch_private import pytree


def raise_if_transforms_did_it(error: RustOrtError, compilation: Compilation, graph: GraphSpec, plan: Plan) -> None:
    """What ONNX cannot express runs in eager; what a transform broke is an error."""
    plain = dataclasses.replace(compilation, options=dataclasses.replace(compilation.options, transforms=()))
    try:
        prepared_parts(plain, graph, plan)
    except RustOrtError:
        return
    names = ", ".join(map(function_name, compilation.options.transforms))
    raise ClientError(
        f"option transforms: the runtime refuses the model that {names} made, not the one given: {error.args[0]}",
        code="BAD_MODEL",
        graph=graph.name,
    ) from error


def is_refusal(error: RustOrtError) -> bool:
    """Whether the runtime refuses a model."""
    return error.code == "BAD_MODEL"


def is_of_plan(error: RustOrtError) -> bool:
    """Whether what was exported may be at fault, not an option or the runtime's library or program."""
    of_setting = isinstance(error, OptionError) or error.code == "RUNTIME_MISSING"
    return isinstance(error, ClientError) and not of_setting


def refused_node(error: RustOrtError, plan: Plan) -> str | None:
    """FX node behind an ONNX node that the runtime named when it refused a model."""
    for part in plan.parts:
        names = [error.node, *re.findall(r"[\w.:]+", str(error.args[0]))]
        for onnx_name in names:
            fx_name = part.translated.onnx_nodes.get(onnx_name, "")
            if fx_name in part.graph.compute_nodes:
                return fx_name
    return None


def refused_in_trials(compilation: Compilation, graph: GraphSpec, plan: Plan) -> str:
    """FX node without which, and without what follows it, the runtime takes the plan's parts; it named none itself."""
    nodes = [node for part in plan.parts for node in part.graph.compute_nodes]

    def refused(count: int) -> bool:
        left_out = dict.fromkeys(nodes[count:], "left out of a trial")
        options = compilation.options
        trial = make_plan(
            plan.cut.module, name=f"{graph.name}_trial", refused={**plan.cut.reasons, **left_out},
            opset=opset(options), custom=options.custom_translations,
        )  # fmt: skip
        try:
            prepared_parts(compilation, graph, trial)
        except RustOrtError as error:
            if not is_refusal(error):
                raise
            return True
        return False

    return nodes[bisect.bisect_left(range(1, len(nodes)), True, key=refused)]


def nodes_alike(gm: fx.GraphModule, name: str) -> list[str]:
    """Nodes that do what node `name` does with the same dtypes: the runtime would refuse them one by one."""

    def kind(node: fx.Node) -> tuple[Any, ...]:
        values = pytree.tree_leaves([source.meta.get("val") for source in (node, *node.all_input_nodes)])
        return (node.target, *(value.dtype for value in values if isinstance(value, torch.Tensor)))

    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    wanted = {kind(node) for node in nodes if node.name == name}
    return [node.name for node in nodes if kind(node) in wanted]
