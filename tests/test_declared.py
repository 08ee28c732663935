"""What stays on the CPU by decision is run, and does run on the CPU: what no longer does is to leave the table."""

import torch
import torch_neuronx
from against_cpu import DEVICE
from op_samples import call, moved, on_cpu, op_db
from torch_neuronx import _C

FAMILIES = ("linalg", "fft", "cholesky", "lu", "geqrf", "ormqr", "triangular_solve", "svd", "qr", "matrix_exp")


def test_every_declared_operator_still_falls_back():
    torch_neuronx.clear_op_tracking()
    for op in op_db:
        if not op.name.startswith(FAMILIES):
            continue
        for dtype in (torch.float32, torch.complex64):
            if not op.supports_dtype(dtype, "cpu"):
                continue
            for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
                if number == 12:
                    break
                if on_cpu(call(op), sample, op) is not None:
                    call(op)(*moved(sample, op))
    eigenvalues = torch.empty(2, dtype=torch.complex64, device=DEVICE)
    torch.linalg.eigvals(torch.eye(2, device=DEVICE), out=eigenvalues)
    reasons = {}
    for name, why in torch_neuronx.get_fallback_reasons().items():
        reasons.setdefault(name.split(".")[0].rstrip("_"), set()).update(why)
    declared = dict(_C.declared_fallbacks())
    assert {name for name, reason in declared.items() if reason not in reasons.get(name, ())} == set()
