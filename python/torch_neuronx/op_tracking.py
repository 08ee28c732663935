"""Which operators ran on the device and which fell back to the CPU, since the process started or the last clearing.

Names are those of the dispatcher, ``aten::add.Tensor``.
"""

from torch_neuronx import _C


def get_executed_ops() -> list[str]:
    """The operators that ran on the device, each once, in alphabetical order."""
    return sorted(_C.executed_ops())


def get_fallback_ops() -> list[str]:
    """The operators that ran on the CPU because the device could not, each once, in alphabetical order."""
    return sorted(name for name, _, _ in _C.fallback_ops())


def get_fallback_reasons() -> dict[str, dict[str, int]]:
    """Why operators fell back: for each operator, its reasons and how often each one held."""
    reasons: dict[str, dict[str, int]] = {}
    for name, reason, count in sorted(_C.fallback_ops()):
        reasons.setdefault(name, {})[reason] = count
    return reasons


def get_fusion_counters() -> dict[str, int]:
    """Adaptive fusion since the process started: ``fused`` operators ran together with others, as ``compiled`` programs."""
    fused, compiled = _C.fusion_counters()
    return {"fused": fused, "compiled": compiled}


def clear_op_tracking() -> None:
    """Forgets what ran so far."""
    _C.clear_op_tracking()
