"""Pinned host memory and the data loader."""

import pytest
import torch
from against_cpu import DEVICE
from torch.utils.data import DataLoader, TensorDataset

DATA = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_of_a_loader_pins(workers):
    loader = DataLoader(
        DATA, batch_size=4, pin_memory=True, num_workers=workers, multiprocessing_context="spawn" if workers else None
    )
    seen = 0
    for x, y in loader:
        assert x.is_pinned()
        assert y.is_pinned()
        seen += x.to(DEVICE, non_blocking=True).sum().item()
    assert seen == DATA.tensors[0].sum().item()


@pytest.mark.filterwarnings("ignore:.*pin_memory_device.*")
def test_pin_memory_device_names_this_device():
    for x, _ in DataLoader(DATA, batch_size=5, pin_memory=True, pin_memory_device=DEVICE):
        assert x.is_pinned()


def test_pinned_memory_keeps_content_and_ordinary_memory_is_not_pinned():
    x = torch.arange(1000.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned, x)
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert pinned[3:].is_pinned()


def test_transfers_that_do_not_block():
    """The host buffer may be dropped at once, and the result is there after a synchronize."""
    total = torch.zeros(1 << 16, device=DEVICE)
    for i in range(20):
        total += torch.full((1 << 16,), float(i)).pin_memory().to(DEVICE, non_blocking=True)
    back = torch.empty(1 << 16, pin_memory=True)
    back.copy_(total, non_blocking=True)
    torch.accelerator.synchronize()
    assert back.eq(190).all()


def test_device_tensors_cannot_be_pinned():
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(3, device=DEVICE).pin_memory()
