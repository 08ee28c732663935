"""What compiling cost, per graph."""

import dataclasses
import threading

_lock = threading.Lock()
_graphs: list["NeuronCompilationMetrics"] = []


@dataclasses.dataclass(frozen=True)
class NeuronCompilationMetrics:
    """One compiled graph. Times are in microseconds."""

    graph_id: int
    graph_name: str
    model_name: str
    has_collectives: bool
    graph_node_count: int
    timestamp: float
    """Seconds since the epoch when compiling began."""
    torch_neuronx_fx_passes_us: float
    torch_neuronx_lower_us: float
    torch_neuronx_compile_us: float


def record(**fields: object) -> None:
    """Adds a graph; numbers and names it."""
    with _lock:
        number = len(_graphs)
        name = f"{fields['model_name']}_{number}"
        _graphs.append(NeuronCompilationMetrics(graph_id=number, graph_name=name, **fields))


def get_dynamo_metrics() -> list[NeuronCompilationMetrics]:
    """The graphs compiled since the start or :func:`reset_dynamo_metrics`, in order."""
    with _lock:
        return list(_graphs)


def reset_dynamo_metrics() -> None:
    """Forgets the graphs compiled so far."""
    with _lock:
        _graphs.clear()
