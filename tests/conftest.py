"""What the tests share: fixed seeds, a device at rest, and a record of fallbacks."""

import os
import subprocess
import sys
import textwrap

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import torch_neuronx
from hypothesis import settings

# Every run tries the same examples, so a failure is about the change at hand.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seeds():
    """The same random numbers in every test, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def first_device():
    """Every test begins and ends on device 0 and its default stream, with no work pending."""
    torch.neuron.set_device(0)
    torch.neuron.set_stream(torch.neuron.default_stream(0))
    yield
    torch.neuron.set_device(0)
    torch.neuron.set_stream(torch.neuron.default_stream(0))
    torch.neuron.synchronize()


@pytest.fixture
def no_fallback():
    """The test fails if an operator in it ran on the CPU."""
    torch_neuronx.clear_op_tracking()
    yield
    torch.accelerator.synchronize()
    assert sorted(torch_neuronx.get_fallback_ops()) == []


@pytest.fixture
def native_family(request):
    """The test fails if an operator of the module's FAMILY, or any where it has none, ran on the CPU in it."""
    torch_neuronx.clear_op_tracking()
    yield
    torch.accelerator.synchronize()
    family = getattr(request.module, "FAMILY", ("",))
    reasons = torch_neuronx.get_fallback_reasons()
    assert {op: why for op, why in reasons.items() if any(name in op for name in family)} == {}


@pytest.fixture
def run_python():
    """Runs a program in a fresh interpreter and returns what it prints; a failure shows its errors."""

    def run(program, check=True, **environment):
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
            check=False,
        )
        if check:
            assert result.returncode == 0, result.stderr
            return result.stdout.strip()
        return result

    return run
