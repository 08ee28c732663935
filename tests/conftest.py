"""What every test gets: fixed seeds, and a record of fallbacks that starts empty."""

import os

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


@pytest.fixture
def no_fallback():
    """The test fails if an operator in it ran on the CPU."""
    torch_neuronx.clear_op_tracking()
    yield
    torch.accelerator.synchronize()
    assert sorted(torch_neuronx.get_fallback_ops()) == []
