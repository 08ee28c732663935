"""What compiling cost, per graph."""

import dataclasses
import threading

_lock = threading.Lock()
_graphs: list[tuple["NeuronCompilationMetrics", "Cost"]] = []


@dataclasses.dataclass
class Cost:
    """What compiling a graph has cost so far: its recordings are compiled when they are made."""

    us: float = 0.0


@dataclasses.dataclass(frozen=True)
class NeuronCompilationMetrics:
    """One compiled graph. Times are in microseconds."""

    graph_id: int
    graph_name: str
    model_name: str
    has_collectives: bool
    graph_node_count: int
    timestamp: float
    """Seconds since the epoch when the backend was given the graph."""
    torch_neuronx_fx_passes_us: float
    torch_neuronx_lower_us: float
    torch_neuronx_compile_us: float


def record(cost: Cost, **fields: object) -> None:
    """Adds a graph; numbers and names it. ``cost`` grows with each of its recordings."""
    with _lock:
        number = len(_graphs)
        name = f"{fields['model_name']}_{number}"
        entry = NeuronCompilationMetrics(graph_id=number, graph_name=name, torch_neuronx_compile_us=0.0, **fields)
        _graphs.append((entry, cost))


def get_dynamo_metrics() -> list[NeuronCompilationMetrics]:
    """The graphs compiled since the start or :func:`reset_dynamo_metrics`, in order."""
    with _lock:
        return [dataclasses.replace(entry, torch_neuronx_compile_us=cost.us) for entry, cost in _graphs]


def reset_dynamo_metrics() -> None:
    """Forgets the graphs compiled so far."""
    with _lock:
        _graphs.clear()
