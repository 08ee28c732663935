"""Operators that pile up behind a busy device run fused: same bits, nothing lost, nothing that was freed."""

import pytest
import torch
import torch_neuronx
from torch.utils._python_dispatch import TorchDispatchMode

BUSY = 700


def keep_busy() -> None:
    """Gives the device something to do, so that what follows piles up."""
    a = torch.ones(BUSY, BUSY, device="neuron")
    for _ in range(3):
        a = a @ a


def piled_up(f, *args):
    """What `f` gives when its operators wait behind others: often enough that what comes back is compiled."""
    results = None
    for _ in range(4):
        torch.neuron.synchronize()
        keep_busy()
        results = f(*args)
        torch.neuron.synchronize()
    return results


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().contiguous().reshape(-1).view(torch.uint8)


class OneByOne(TorchDispatchMode):
    """Each operator finishes before the next begins."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        torch.neuron.synchronize()
        return result


def one_by_one(f, *args):
    with OneByOne():
        return f(*args)


def rms_norm(x, w):
    return w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def layer_norm(x, w):
    y = x - x.mean(-1, keepdim=True)
    return y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w


def softmax(x, w):
    e = (x * w - (x * w).amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def chain(x, w):
    return torch.tanh(x * 1.5 + 0.25) * torch.sigmoid(x) - x.abs() * w


def rope(x, w):
    a, b = x.chunk(2, dim=-1)
    return x * w + torch.cat((-b, a), dim=-1) * w.sin()


def in_place(x, w):
    y = x + w
    y.mul_(2).add_(x).relu_()
    y[..., : y.shape[-1] // 2] *= 0.5
    return y, y.sum(-1)


def views(x, w):
    y = (x * w).t()
    z = y.reshape(-1)[: x.numel() // 2].neg()
    return y.contiguous() + 1, z, y[1:, ::2] * 2


def several(x, w):
    y = x * w
    return y, y.exp(), y.amax(0), (y + 1).sum(), y.softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(512, 512), (1024, 96), (7, 4096), (2048, 33)])
@pytest.mark.parametrize("f", [rms_norm, layer_norm, softmax, chain, rope, in_place, views, several])
def test_bits_are_those_of_single_operators(f, sizes, dtype):
    if f is rope and sizes[-1] % 2:
        sizes = (sizes[0], sizes[1] + 1)
    torch.manual_seed(0)
    x = torch.randn(sizes, dtype=dtype).to("neuron")
    w = torch.randn(sizes[-1], dtype=dtype).to("neuron")
    fused, single = piled_up(f, x, w), one_by_one(f, x, w)
    if isinstance(fused, torch.Tensor):
        fused, single = (fused,), (single,)
    for a, b in zip(fused, single, strict=True):
        assert a.stride() == b.stride()
        assert torch.equal(bits(a), bits(b))


def test_runs_that_come_back_are_fused():
    x, w = torch.randn(1024, 1024, device="neuron"), torch.randn(1024, device="neuron")
    before = torch_neuronx.get_fusion_counters()["fused"]
    for _ in range(10):
        piled_up(rms_norm, x, w)
    assert torch_neuronx.get_fusion_counters()["fused"] > before


def test_what_is_freed_while_queued_is_still_seen_by_later_work():
    x = torch.randn(512, 512, device="neuron")

    def f():
        y = x + 1
        z = y * 2
        host = y.to("cpu", non_blocking=True)  # queued before y is gone
        del y
        noise = [torch.full_like(x, float(i)) for i in range(8)]  # may use y's memory
        del noise
        return z, host

    z, host = piled_up(f)
    assert torch.equal(host, x.cpu() + 1)
    assert torch.equal(z.cpu(), (x.cpu() + 1) * 2)


def test_streams_share_what_is_freed():
    x = torch.randn(512, 512, device="neuron")
    side = torch.Stream("neuron")

    def f():
        y = x * 3
        event = torch.Event("neuron")
        event.record()
        side.wait_event(event)
        with side:
            z = y + 1
        y.record_stream(side)
        w = y - 1
        del y
        torch.neuron.synchronize()
        return z, w

    z, w = piled_up(f)
    assert torch.equal(z.cpu(), x.cpu() * 3 + 1)
    assert torch.equal(w.cpu(), x.cpu() * 3 - 1)


def test_a_result_that_nobody_looks_at_is_computed():
    """A loop that times operators and drops their results times them."""
    x = torch.randn(2048, 2048, device="neuron")

    def seconds(f):
        start, end = torch.Event("neuron", enable_timing=True), torch.Event("neuron", enable_timing=True)
        for _ in range(5):
            keep_busy()
            start.record()
            f()
            end.record()
            torch.neuron.synchronize()
        return start.elapsed_time(end)

    assert seconds(lambda: (x.exp() * 2 + 1).tanh()) > 0.2  # milliseconds: 4M elements in no time would be less


def test_switching_it_off(run_python):
    program = """
import torch, torch_neuronx
x = torch.randn(1024, 1024, device="neuron")
for _ in range(20):
    y = (x * 2 + 1).tanh() * x
torch.neuron.synchronize()
print(torch_neuronx.get_fusion_counters()["fused"] > 0)
"""
    assert run_python(program, NEURON_EAGER_FUSION="0") == "False"
    assert run_python(program) == "True"


def test_compiled_graphs_pile_up_like_any_launch():
    compiled = torch.compile(softmax, backend="neuron")
    x, w = torch.randn(1024, 512, device="neuron"), torch.randn(512, device="neuron")

    def f():
        return [compiled(x + i, w) for i in range(4)]

    for got, i in zip(piled_up(f), range(4), strict=True):
        torch.testing.assert_close(got, softmax(x + i, w))
