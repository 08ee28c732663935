"""Sparse layouts: their members are device tensors, their operators the CPU's."""

import copy
import io

import pytest
import torch
from against_cpu import DEVICE

LAYOUTS = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
}


@pytest.fixture
def dense():
    return torch.tensor([[1.0, 0, 0, 2], [0, 0, 3, 0], [0, 4, 0, 0], [0, 0, 0, 5]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_conversion_and_moving(layout, dense):
    want = LAYOUTS[layout](dense)
    on_device = LAYOUTS[layout](dense.to(DEVICE))
    moved = want.to(DEVICE)
    for t in (on_device, moved):
        assert t.device.type == DEVICE
        assert t.layout == want.layout
        assert t._nnz() == want._nnz()
        assert t.values().device.type == DEVICE
        assert torch.equal(t.to_dense().cpu(), dense)
        assert torch.equal(t.cpu().to_dense(), dense)
        assert torch.equal(copy.deepcopy(t).to_dense().cpu(), dense)


def test_arithmetic(dense):
    a = dense.to(DEVICE).to_sparse()
    b = torch.rand(4, 3)
    assert torch.equal((a + a).to_dense().cpu(), dense + dense)
    assert torch.equal((a * 3).to_dense().cpu(), dense * 3)
    torch.testing.assert_close(torch.sparse.mm(a, b.to(DEVICE)).cpu(), dense @ b)
    torch.testing.assert_close((dense.to(DEVICE).to_sparse_csr() @ b.to(DEVICE)).cpu(), dense @ b)


def test_in_place_and_coalescing():
    t = torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, 3.0], (2, 3), device=DEVICE)
    assert not t.is_coalesced()
    t.add_(t)
    assert t.to_dense().cpu().tolist() == [[0, 0, 6], [6, 0, 0]]
    merged = t.coalesce()
    assert merged.is_coalesced()
    assert merged._nnz() == 2
    merged.values().mul_(2)  # values are the tensor's own
    assert merged.to_dense().cpu().tolist() == [[0, 0, 12], [12, 0, 0]]


def test_gradients(dense):
    def gradients(device):
        a, b = dense.to(device).requires_grad_(), torch.ones(4, 2, device=device, requires_grad=True)
        torch.sparse.mm(a.to_sparse(), b).sum().backward()
        return a.grad, b.grad

    for got, want in zip(gradients(DEVICE), gradients("cpu"), strict=True):
        assert got.device.type == DEVICE
        assert torch.equal(got.to_dense().cpu(), want.to_dense())


def test_sparse_embedding_trains():
    def train(device):
        torch.manual_seed(0)
        model = torch.nn.Embedding(10, 4, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(list(model.parameters()))
        for _ in range(2):
            model(torch.tensor([1, 2, 2], device=device)).square().sum().backward()
            assert model.weight.grad.is_sparse
            assert model.weight.grad.device.type == device
            optimizer.step()
        return model.weight.detach().cpu()

    torch.testing.assert_close(train(DEVICE), train("cpu"))


def test_serialization(dense):
    buffer = io.BytesIO()
    torch.save(dense.to(DEVICE).to_sparse(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded.device.type == DEVICE
    assert torch.equal(loaded.to_dense().cpu(), dense)
