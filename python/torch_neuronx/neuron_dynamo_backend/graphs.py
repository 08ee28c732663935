"""Compiled graphs: recorded at their first call, replayed from then on.

The first call runs the graph operator by operator, which gives its results, while the runtime records what is launched.
The recording is compiled as a whole, and later calls are one launch. What a recording cannot repeat, such as an operator
that runs on the CPU or one that is not PyTorch's, is cut out: the graph is then split around it.
"""

import collections
import itertools
import operator
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_neuronx import _C
from torch_neuronx.neuron_dynamo_backend.metrics import Cost

MOST_SPECIALISATIONS = 64
"""Recordings kept for a graph; with more, the oldest is dropped."""

_numbers = itertools.count()
_graphs: "weakref.WeakSet[CompiledGraph]" = weakref.WeakSet()

_NAMESPACES = {"aten", "prims", "neuron", "_operator", "builtins", "math"}


def is_call(node: fx.Node) -> bool:
    """Whether a node computes something: it is not an input, a constant or the results."""
    return node.op.startswith("call_")


def is_repeatable(node: fx.Node) -> bool:
    """Whether a call is one of PyTorch's own operators: others may do more than launch work."""
    if node.op != "call_function":
        return not is_call(node)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace in _NAMESPACES
    return node.target is operator.getitem or getattr(node.target, "__module__", "") in _NAMESPACES


class Recorder(fx.Interpreter):
    """Runs a graph and notes which of its nodes a replay could not repeat."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.foreign: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        before = _C.capture_foreign_events()
        result = super().run_node(n)
        foreign = _C.capture_foreign_events() != before or not is_repeatable(n) or self._touches_host(n)
        if is_call(n) and foreign:
            self.foreign.add(n.name)
        return result

    def _touches_host(self, n: fx.Node) -> bool:
        """True if an argument is a tensor in host memory that may change: an input, or made of one."""
        for arg in n.all_input_nodes:
            value = self.env.get(arg)
            constant = arg.op == "get_attr"
            if isinstance(value, torch.Tensor) and value.device.type != "neuron" and not constant:
                return True
        return False


class Specialisation:
    """A recording, and how the results of the graph come from what a replay makes."""

    def __init__(
        self,
        graph: Any,
        outputs: list[Callable[[Sequence[Any], list[torch.Tensor]], Any]],
        rebuild: Callable[[list[Any]], Any],
        shared: list[tuple[int, int, int]],
    ) -> None:
        self.graph = graph
        self.outputs = outputs
        self.rebuild = rebuild
        self.shared = shared

    def __call__(self, args: Sequence[Any], tensors: list[torch.Tensor]) -> tuple[Any, ...] | None:
        """The results; ``None`` where the inputs are not like those of the recording."""
        for i, j, distance in self.shared:
            if tensors[j].data_ptr() - tensors[i].data_ptr() != distance:
                return None
        made = self.graph.replay(tensors)
        return None if made is None else self.rebuild([output(args, made) for output in self.outputs])


class CompiledGraph:
    """A graph of ATen operators, called with a list of its inputs."""

    _boxed_call = True

    def __init__(self, module: fx.GraphModule, name: str, cost: Cost) -> None:
        self.module = module
        self.name = name
        self.reasons: dict[str, str] = {}
        """What is not part of a recording, and why."""
        self.recorded = 0
        """How often the graph was recorded."""
        self._cost = cost
        self._known: dict[tuple[Any, ...], list[Specialisation]] = collections.OrderedDict()
        self._parts: fx.GraphModule | None = None
        self._eager = False
        self._lock = threading.RLock()
        self.number = next(_numbers)
        _graphs.add(self)

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        inputs = list(args)
        args.clear()
        if self._parts is not None:
            return self._parts(*inputs)
        if self._eager or not inputs:
            return self.module(*inputs)
        leaves, spec = inputs, None
        if _is_nested(inputs):  # lists come and go between the parts of a split graph
            leaves, spec = tree_flatten(inputs)
        tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
        key = (spec, *[_number(a) for a in leaves if not isinstance(a, torch.Tensor)])
        for known in self._known.get(key, ()):
            if (result := known(leaves, tensors)) is not None:
                return result
        with self._lock:
            return self._record(inputs, leaves, tensors, key)

    @property
    def specialisations(self) -> list[Specialisation]:
        """The recordings."""
        return [s for known in self._known.values() for s in known]

    @property
    def parts(self) -> list["CompiledGraph"]:
        """The graphs that this one was split into, itself if it was not."""
        if self._parts is None:
            return [self]
        return [m.compiled for m in self._parts.children() if isinstance(m, _Part)]

    def _record(
        self, inputs: list[Any], leaves: list[Any], tensors: list[torch.Tensor], key: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        on_device = all(t.device.type == "neuron" for t in tensors)
        if not any(t.device.type == "neuron" for t in tensors) or any(map(_is_lazy, tensors)):
            return self.module(*inputs)
        recorder = Recorder(self.module)
        try:
            _C.capture_begin()
        except RuntimeError:  # within another recording: part of that
            return self.module(*inputs)
        try:
            results = recorder.run(*inputs)
        except BaseException:
            _C.capture_abandon()
            raise
        made, rebuild = _flattened(results)
        outputs, fresh = _outputs(made, leaves)
        if recorder.foreign or not on_device or outputs is None:
            _C.capture_abandon()
            self._split(recorder.foreign)
            return results
        start = time.perf_counter_ns()
        graph, reason = _C.capture_finish(tensors, fresh)
        self._cost.us += (time.perf_counter_ns() - start) / 1000
        if graph is None:
            self.reasons[self.name] = reason
            warnings.warn(f"graph {self.name} runs operator by operator: {reason}", stacklevel=2)
            self._eager = True
            return results
        self.recorded += 1
        if graph.summary()[0] == 0:  # nothing to launch
            self._eager = True
            return results
        known = self._known.setdefault(key, [])
        known.append(Specialisation(graph, outputs, rebuild, _shared(tensors)))
        while sum(map(len, self._known.values())) > MOST_SPECIALISATIONS:
            oldest = next(iter(self._known))
            self._known[oldest].pop(0)
            if not self._known[oldest]:
                del self._known[oldest]
        return results

    def _split(self, foreign: set[str]) -> None:
        """Cuts the graph around nodes that cannot be replayed."""
        calls = [n for n in self.module.graph.nodes if is_call(n)]
        for n in calls:
            if n.name in foreign:
                self.reasons[str(n.target)] = "runs on the host or is not an operator of PyTorch's"
        if not foreign or len(foreign) == len(calls):
            self._eager = True
            return
        numbers: dict[str, int] = {}
        kinds: list[bool] = []
        for n in calls:
            kind = n.name in foreign
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
            numbers[n.name] = len(kinds) - 1
        try:
            parts = split_module(self.module, None, lambda n: numbers.get(n.name, 0), keep_original_order=True)
        except Exception as error:
            warnings.warn(f"graph {self.name} runs operator by operator: it cannot be split: {error}", stacklevel=2)
            self._eager = True
            return
        for number, kind in enumerate(kinds):
            name = f"submod_{number}"
            if not kind and hasattr(parts, name):
                setattr(parts, name, _Part(CompiledGraph(getattr(parts, name), f"{self.name}_{number}", self._cost)))
        self._parts = parts


class _Part(torch.nn.Module):
    """A part of a split graph."""

    def __init__(self, compiled: CompiledGraph) -> None:
        super().__init__()
        self.compiled = compiled
        outputs = next(n for n in compiled.module.graph.nodes if n.op == "output").args[0]
        self.single = not isinstance(outputs, (tuple, list))

    def forward(self, *args: Any) -> Any:
        results = self.compiled(list(args))
        return results[0] if self.single and isinstance(results, tuple) else results


def _span(t: torch.Tensor) -> tuple[int, int]:
    """First address of a tensor, and the one behind its last element."""
    reach = sum((size - 1) * stride for size, stride in zip(t.size(), t.stride(), strict=True)) + 1
    return t.data_ptr(), t.data_ptr() + (reach * t.itemsize if t.numel() else 0)


def _shared(tensors: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Pairs of tensors that share memory, and how far apart they begin."""
    spans = sorted((*_span(t), i) for i, t in enumerate(tensors) if t.numel())
    pairs = []
    widest = (0, 0, 0)  # of those so far, the one that reaches farthest
    for start, end, i in spans:
        if start < widest[1]:
            pairs.append((widest[2], i, start - widest[0]))
        if end > widest[1]:
            widest = (start, end, i)
    return pairs


def _number(value: Any) -> tuple[Any, ...]:
    """What tells an input that is no tensor from others: 1, 1.0 and True are three, and so are 0.0 and -0.0."""
    return (float, value.hex()) if type(value) is float else (type(value), value)


def _is_lazy(t: torch.Tensor) -> bool:
    """True for a tensor that stands for the conjugate or the negative of its memory: layouts do not show that."""
    return t.is_conj() or t.is_neg()


def _is_nested(values: Sequence[Any]) -> bool:
    return any(isinstance(v, (list, tuple)) for v in values)


def _flattened(results: Any) -> tuple[Sequence[Any], Callable[[list[Any]], Any]]:
    """The results one by one, and what puts them together again."""
    if not isinstance(results, (list, tuple)):
        return (results,), tuple
    if not _is_nested(results):
        return results, type(results)
    leaves, spec = tree_flatten(results)
    return leaves, lambda made: tree_unflatten(made, spec)


def _outputs(results: Sequence[Any], inputs: list[Any]) -> tuple[list[Any] | None, list[torch.Tensor]]:
    """How each result comes about at a replay, and the results that are new tensors."""
    storages: dict[int, list[int]] = {}
    for i, a in enumerate(inputs):
        if isinstance(a, torch.Tensor) and a.device.type == "neuron":
            storages.setdefault(a.untyped_storage().data_ptr(), []).append(i)
    makers: list[Any] = []
    fresh: list[torch.Tensor] = []
    for r in results:
        same = next((i for i, a in enumerate(inputs) if a is r and isinstance(r, torch.Tensor)), None)
        if same is not None:
            makers.append(lambda args, made, i=same: args[i])
        elif not isinstance(r, torch.Tensor):
            makers.append(lambda args, made, value=r: value)
        elif r.device.type != "neuron" or type(r) is not torch.Tensor or _is_lazy(r):
            return None, []
        elif r.numel() > 0 and (owners := storages.get(r.untyped_storage().data_ptr())) is not None:
            start, end = _span(r)
            spans = [(i, _span(inputs[i])) for i in owners]
            i = next((i for i, (first, last) in spans if first <= start and end <= last), None)
            if i is None or r.dtype != inputs[i].dtype:
                return None, []
            sizes, strides, offset = r.size(), r.stride(), r.storage_offset() - inputs[i].storage_offset()
            makers.append(
                lambda args, made, i=i, sizes=sizes, strides=strides, offset=offset: torch.as_strided(
                    args[i], sizes, strides, args[i].storage_offset() + offset
                )
            )
        else:
            number = len(fresh)
            makers.append(lambda args, made, k=number: made[k])
            fresh.append(r)
    return makers, fresh


def explain_compiled() -> str:
    """What became of the graphs that ``torch.compile(backend="neuron")`` has compiled in this process.

    A paragraph per graph: how often it was recorded, and for each recording the operators, the programs and kernels they
    became, and the bytes that exist only while it runs; then what is not part of a recording, and why.
    """
    lines = []
    for graph in sorted(_graphs, key=lambda g: g.number):
        lines.append(f"{graph.name}: {graph.recorded} recordings")
        for s in graph.specialisations:
            operators, programs, kernels, scratch = s.graph.summary()
            lines.append(
                f"  {operators} operators in {programs} programs of {kernels} kernels, {scratch} temporary bytes"
            )
        lines += [f"  not recorded: {what}: {why}" for what, why in graph.reasons.items()]
    return "\n".join(lines)


def stablehlo(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """The StableHLO of the graphs that ``function`` compiles to for these arguments, in the order of their first calls.

    Compiles and calls the function, so it needs the device but no Trainium. A text is a module whose function ``main`` takes
    the inputs of a graph in row-major order, then its numbers as 0-dimensional tensors. ``NotImplementedError`` if an
    operator has no StableHLO form.

    Example: ``print(torch_neuronx.stablehlo(lambda x: x.softmax(-1), torch.randn(4, 8, device="neuron"))[0])``
    """
    before = set(_graphs)
    torch.compile(torch._dynamo.eval_frame.innermost_fn(function), backend="neuron", dynamic=False)(*args, **kwargs)
    made = [g for g in _graphs if g not in before]
    made = [part for g in sorted(made, key=lambda g: g.number) for part in g.parts]
    return [text for g in made for s in g.specialisations for text in s.graph.stablehlo()]
