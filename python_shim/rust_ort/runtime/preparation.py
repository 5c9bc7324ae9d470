"""The parts of a plan with their models, handed to the daemon."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from rust_ort.call.client import Client
from rust_ort.call.part import Part
from rust_ort.errors import ClientError, OptionError
from rust_ort.export.devices import Places, on_cuda, places
from rust_ort.export.plan import Plan, PlannedPart
from rust_ort.export.provenance import described, provenance_json
from rust_ort.export.translate import Translated
from rust_ort.export.value_info import drop_contradicted
from rust_ort.link.pool import threads
from rust_ort.link.specs import CUDA, GraphSpec, OutputSpec, PartSpec, providers
from rust_ort.memory import device
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.options.arguments import function_name, raised_at, shown
from rust_ort.options.table import described_options
from rust_ort.progress import progress, tick
from rust_ort.runtime.dynamo_graph import Compilation
from rust_ort.runtime.readable import readable
from rust_ort.torch_private import pytree


def graph_spec(compilation: Compilation, info: GraphInfo, plan: Plan) -> GraphSpec:
    """What the daemon is told of a graph."""
    # What runs it again is to have as many threads: other numbers make other sums.
    options = {**described_options(compilation.options), "threads": threads(compilation.options)}
    return GraphSpec(
        graph_id=info.graph_id,
        name=info.name,
        direction=info.direction,
        dynamo_text=compilation.dynamo_text,
        joint_text=compilation.joint_text,
        fx_text=readable(plan.cut.module),
        parts_json=plan.cut.parts_json(options),
    )


def prepared_parts(compilation: Compilation, graph: GraphSpec, plan: Plan) -> list[Part]:
    """Every part, with a session that took its model. Errors: RustOrtError, where it took none."""
    parts = []
    there = [places(planned) for planned in plan.parts]
    beside_cuda = any(places.device is not None for places in there) or on_cuda(plan.cut.module)
    with progress(f"{graph.name}: building sessions", unit="parts", total=len(plan.parts)):
        for planned, its_places in zip(plan.parts, there, strict=True):
            parts.append(_prepared_part(compilation, graph, plan, planned, its_places, beside_cuda=beside_cuda))
            tick()
    return parts


def _prepared_part(
    compilation: Compilation, graph: GraphSpec, plan: Plan, planned: PlannedPart, there: Places, *, beside_cuda: bool
) -> Part:
    options = compilation.options
    translated = planned.translated
    layout = planned.layout
    number = there.device

    def specs(inputs: Sequence[object]) -> list[OutputSpec]:
        return [
            OutputSpec(dtype=dtype, shape=shape, stride=stride, device=number if is_there else None)
            for (dtype, shape, stride), is_there in zip(layout.specs(inputs), there.outputs, strict=True)
        ]

    spec = PartSpec(
        graph=graph,
        part=planned.graph.index,
        model=_transformed(translated.model, options.transforms, graph.name),
        provenance_json=provenance_json(
            part=planned.graph.module,
            tensor_outputs=planned.tensor_outputs,
            input_names=translated.input_names,
            output_names=translated.output_names,
            fx_values={**translated.fx_values, **{name: name for name in translated.named_values}},
            onnx_nodes=translated.onnx_nodes,
            descriptions=_descriptions(plan.cut.module, compilation.sources),
            custom_op_libraries=options.custom_op_libraries,
            providers=[
                (name, {**given, **({"device_id": str(number)} if name == CUDA and number is not None else {})})
                for name, given in providers(options, number, beside_cuda=beside_cuda)
            ],
            device=None if number is None else _name_of(number),
        ),
        fx_values={node: translated.fx_values[node] for node in planned.graph.compute_nodes},
        named_values=translated.named_values,
        input_names=translated.input_names,
        output_names=translated.output_names,
        outputs=specs if layout.symbolic else specs(()),
        custom_op_libraries=compilation.libraries,
        may_freeze=_may_freeze(plan, translated) if options.freeze_parameters else [],
        device=number,
        beside_cuda=beside_cuda,
    )
    return Client.get(options).part(spec, options)


def _name_of(number: int) -> str:
    """UUID of the CUDA device, as nvidia-smi -L writes it; "" where CUDA does not tell it: the session will say why."""
    try:
        return f"GPU-{uuid.UUID(bytes=device.uuid(number))}"
    except ClientError:
        return ""


def _may_freeze(plan: Plan, translated: Translated) -> list[int]:
    """Positions of a model's inputs that are inputs of the graph, which neither writes into them nor returns them."""
    graph = plan.cut.module.graph
    descs = pytree.tree_leaves(graph.output_node().meta.get("desc") or (), is_leaf=lambda x: x is None)
    written = [desc.mutated_input for desc in descs if hasattr(desc, "mutated_input")]
    free = {
        node.name
        for node in graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), torch.Tensor) and node.meta.get("desc") not in written
    }
    free.difference_update(translated.output_names)
    return [position for position, name in enumerate(translated.input_names) if name in free]


def _transformed(model: bytes, transforms: Sequence[Callable[..., Any]], graph: str) -> bytes:
    """The model after the option transforms. Errors: OptionError that names option, function and graph."""
    if not transforms:
        return model
    import onnx

    proto = onnx.load_model_from_string(model)
    for transform in transforms:
        name = function_name(transform)
        try:
            made = transform(proto)
        except Exception as error:  # whatever the user's function raises
            raised = raised_at(error, transform)
            raise OptionError(
                f"option transforms: {name} raised {raised}", code="BAD_TRANSFORM", graph=graph
            ) from error
        if made is not None and not isinstance(made, onnx.ModelProto):
            raise OptionError(
                f"option transforms: {name} returned {shown(made)}, expected a ModelProto, or None where it changed "
                "the one it was given",
                code="BAD_TRANSFORM",
                graph=graph,
            )
        proto = proto if made is None else made
    drop_contradicted(proto)
    serialized: bytes = proto.SerializeToString(deterministic=True)
    return serialized


def _descriptions(gm: fx.GraphModule, sources: Sequence[str]) -> dict[str, dict[str, str]]:
    """{FX name: role} of the AOT graph's inputs and outputs."""
    found = {}
    output = gm.graph.output_node()
    descs = pytree.tree_leaves(output.meta.get("desc") or (), is_leaf=lambda x: x is None)
    for node, desc in zip(pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None), descs, strict=False):
        if isinstance(node, fx.Node):
            found[node.name] = described(desc, sources)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            found[node.name] = described(node.meta.get("desc"), sources)
    return found
