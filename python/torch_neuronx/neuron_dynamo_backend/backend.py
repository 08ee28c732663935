"""The backend ``"neuron"`` of ``torch.compile``."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from torch_neuronx.neuron_dynamo_backend import metrics, rng
from torch_neuronx.neuron_dynamo_backend.graphs import CompiledGraph
from torch_neuronx.neuron_dynamo_backend.naming import get_model_name

_OPTIONS = ("model_name", "dynamic", "fallback_execution")


def neuron_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured, forward and backward.

    AOTAutograd separates forward from backward and makes both functional. The first call of each graph runs it operator by
    operator and records what is launched; the recording is compiled as a whole, and later calls replay it.

    Args:
        graph: what Dynamo captured.
        example_inputs: its inputs.
        mode: only ``"default"``; others warn and mean the same.
        options: ``model_name``, the name in :func:`torch_neuronx.get_dynamo_metrics`; ``dynamic`` and
            ``fallback_execution`` are accepted. ``ValueError`` for others.
        name: what ``torch.compile`` was given as that; it names graphs where ``model_name`` does not.
    """
    options = dict(options or {})
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise ValueError(f"Unknown options for backend 'neuron': {unknown}. Known: {list(_OPTIONS)}")
    if mode not in (None, "default"):
        warnings.warn(f"Backend 'neuron' has one mode, 'default'; mode={mode!r} is taken as that", stacklevel=2)
    model_name = options.get("model_name") or name or get_model_name()

    def compiler(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return _compile(module, inputs, model_name)

    return aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True)(graph, example_inputs)


def create_neuron_backend() -> Callable[..., Callable[..., Any]]:
    """:func:`neuron_backend`, for callers that make one."""
    return neuron_backend


def _compile(module: torch.fx.GraphModule, inputs: list[Any], model_name: str) -> Callable[..., Any]:
    timestamp, cost = time.time(), metrics.Cost()
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    has_collectives = any(getattr(node.target, "namespace", "") == "_c10d_functional" for node in calls)
    rng.use_this_device(module)
    graph = CompiledGraph(module, model_name, cost)

    def compiled(args: list[Any]) -> tuple[Any, ...]:
        return graph(args)

    compiled._boxed_call = True
    counters["neuron"]["compiled_graphs"] += 1
    counters["neuron"]["graphs_with_collectives"] += has_collectives
    metrics.record(
        cost,
        model_name=model_name,
        has_collectives=has_collectives,
        graph_node_count=len(module.graph.nodes),
        timestamp=timestamp,
        torch_neuronx_fx_passes_us=0.0,
        torch_neuronx_lower_us=0.0,
    )
    return compiled
