"""Random operators that are run twice with the same numbers: activation checkpointing with dropout.

The partitioner of AOTAutograd asks for that with operators that know only PyTorch's own devices; these do the same here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state


def save_and_run(op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """The generator's state, and the operator's result."""
    return torch.neuron.get_rng_state(), op(*args, **kwargs)


def run_with(state: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The operator's result with this state of the generator, which is left as it was."""
    current = torch.neuron.get_rng_state()
    torch.neuron.set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        torch.neuron.set_rng_state(current)


_HERE = {run_and_save_rng_state: save_and_run, run_with_rng_state: run_with}


def use_this_device(module: fx.GraphModule) -> None:
    """Replaces those operators in a graph."""
    found = [n for n in module.graph.nodes if n.op == "call_function" and n.target in _HERE]
    for node in found:
        node.target = _HERE[node.target]
    if found:
        module.recompile()
