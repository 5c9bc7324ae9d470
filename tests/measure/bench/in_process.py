"""A torch.compile backend for comparison: our export run by onnxruntime's Python session in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


class InProcess:
    """A torch.compile backend: our export, onnxruntime's Python session, io-binding and DLPack, no copy."""

    def __init__(self, *, threads: int | None = None, spinning: bool = False) -> None:
        self.threads = threads
        self.spinning = spinning

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        from rust_ort.export import decompositions
        from rust_ort.torch_private import aot_autograd

        backend = aot_autograd(fw_compiler=self._compile, decompositions=decompositions.table())
        compiled: Callable[..., Any] = backend(gm, inputs)
        return compiled

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        import onnxruntime
        from functorch.compile import make_boxed_func

        from rust_ort.export.partition import Support, partition
        from rust_ort.export.translate import translate

        cut = partition(gm, Support())
        if len(cut.parts) != 1 or cut.eager:
            raise RuntimeError(f"the bench wants one part and nothing in eager, got {cut.parts_json()}")
        part = cut.parts[0].module
        translated = translate(part, name="bench")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads or torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spinning)))
        device = next((tensor.device for tensor in inputs), torch.device("cpu"))
        session = onnxruntime.InferenceSession(translated.model, options, providers=_providers(device))
        placeholders = [node.name for node in cut.outer.graph.nodes if node.op == "placeholder"]
        used = [(name, placeholders.index(name)) for name in translated.input_names]
        outputs = [(name, _meta(cut.module, name)) for name in translated.output_names]

        def call(*tensors: Tensor) -> list[Tensor]:
            binding = session.io_binding()
            for name, position in used:
                binding.bind_ortvalue_input(name, onnxruntime.OrtValue.from_dlpack(tensors[position].detach()))
            results = []
            for name, (shape, dtype) in outputs:
                result = torch.empty(shape, dtype=dtype, device=device)
                binding.bind_ortvalue_output(name, onnxruntime.OrtValue.from_dlpack(result))
                results.append(result)
            session.run_with_iobinding(binding)
            return results

        boxed: Callable[..., Any] = make_boxed_func(call)
        return boxed


def _providers(device: torch.device) -> list[Any]:
    """Of tensors on this device; on a GPU in torch's stream, so that nobody waits for another."""
    if device.type == "cpu":
        return ["CPUExecutionProvider"]
    stream = torch.cuda.current_stream(device).cuda_stream
    options = {"device_id": device.index or 0, "user_compute_stream": str(stream), "use_tf32": "0"}
    return [("CUDAExecutionProvider", {**options, "arena_extend_strategy": "kSameAsRequested"})]


def _meta(gm: fx.GraphModule, name: str) -> tuple[tuple[int, ...], torch.dtype]:
    value = next(node for node in gm.graph.nodes if node.name == name).meta["val"]
    return tuple(value.shape), value.dtype
