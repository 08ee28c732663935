"""Tensors of more than 2^31 elements: positions that 32 bits do not hold."""

import pytest
import torch
from against_cpu import DEVICE

ELEMENTS = 2**31 + 8
FREE = 5 << 30


@pytest.fixture
def large():
    torch.accelerator.empty_cache()
    free, _ = torch.accelerator.get_memory_info()
    if free < FREE:
        pytest.skip(f"{free} bytes of device memory are free, {FREE} are needed")
    x = torch.zeros(ELEMENTS, dtype=torch.int8, device=DEVICE)
    x[-1], x[2**31] = 5, 3
    yield x
    del x
    torch.accelerator.empty_cache()


def test_elementwise_and_reductions(large):
    large.add_(1)
    assert (large[-1].item(), large[2**31].item(), large[0].item()) == (6, 4, 1)
    assert large.sum().item() == ELEMENTS + 8
    assert large.argmax().item() == ELEMENTS - 1
    assert large.view(2, -1).amax(1).tolist() == [0 + 1, 6]


def test_indexing(large):
    index = torch.tensor([ELEMENTS - 1, 2**31, 0], device=DEVICE)
    assert large[index].tolist() == [5, 3, 0]
    assert large.index_select(0, index).tolist() == [5, 3, 0]
    assert large.gather(0, index).tolist() == [5, 3, 0]
    large.scatter_(0, index, torch.tensor([7, 8, 9], dtype=torch.int8, device=DEVICE))
    assert large[index].tolist() == [7, 8, 9]
    assert large.nonzero().tolist() == [[0], [2**31], [ELEMENTS - 1]]


def test_copies(large):
    joined = torch.cat([large[:5], large])
    assert joined.numel() == ELEMENTS + 5
    assert joined[-1].item() == 5
    del joined
    columns = large.view(2, -1).t().contiguous()
    assert columns[-1].tolist() == [0, 5]
