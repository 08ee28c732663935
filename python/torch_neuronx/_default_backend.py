"""``torch.compile()`` without a backend: this device's graphs come here, all others go to Inductor as always."""

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch


def extend(registry: types.ModuleType) -> None:
    """Puts the choice between the two where PyTorch looks for its default, unless somebody else has chosen."""
    if registry.get_default_backend() == "inductor":
        registry.set_default_backend(inductor_or_neuron)


def inductor_or_neuron(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured: with the backend ``"neuron"`` if it has to do with this device."""
    if not _uses_neuron(graph, example_inputs):
        return torch._TorchCompileInductorWrapper(mode, options, None, name)(graph, example_inputs)
    from torch_neuronx.neuron_dynamo_backend.backend import neuron_backend

    if options:
        warnings.warn(f"Options {sorted(options)} are Inductor's; backend 'neuron' ignores them", stacklevel=2)
    return neuron_backend(graph, example_inputs, mode=mode, name=name)


def _uses_neuron(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    tensors = [*example_inputs, *graph.parameters(), *graph.buffers()]
    if any(isinstance(t, torch.Tensor) and t.device.type == "neuron" for t in tensors):
        return True
    # Or it makes tensors on the device, or moves them there.
    arguments = [a for node in graph.graph.nodes for a in (*node.args, *node.kwargs.values())]
    return any(_names_neuron(a) for a in arguments)


def _names_neuron(argument: Any) -> bool:
    if isinstance(argument, torch.device):
        return argument.type == "neuron"
    return isinstance(argument, str) and argument.partition(":")[0] == "neuron"
