"""Views, strides and copies: any layout in, any layout out, on one device and between them."""

import itertools

import pytest
import torch
from against_cpu import DEVICE, check, check_raises, draw
from hypothesis import given
from hypothesis import strategies as st

# Extents that are no multiple of any vector or tile.
SHAPES = [(3, 5, 7), (1, 17, 33), (4, 1, 65), (2, 64, 128)]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dims", [*itertools.permutations(range(3), 2)], ids=str)
def test_transpose_of_any_dims(shape, dims):
    x = draw(*shape)
    check(lambda x: x.transpose(*dims) + 0, x, exact=True, strides=True)
    check(lambda x: x.transpose(*dims).clone(), x, exact=True, strides=True)
    check(lambda x: x.transpose(*dims).contiguous(), x, exact=True, strides=True)
    check(lambda x: x.transpose(*dims).sum(1), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [*itertools.permutations(range(4))], ids=str)
def test_permuted_copies_of_each_element_size(dtype, order):
    x = draw(2, 3, 5, 9, dtype=dtype)
    check(lambda x: x.permute(order).contiguous(), x, exact=True, strides=True)
    check(lambda x: torch.empty_like(x).permute(order).copy_(x.permute(order)), x, exact=True)


def test_attention_heads_without_contiguous():
    x, w = draw(2, 9, 4, 16), draw(2, 4, 16, 9)
    check(lambda x, w: x.view(2, 9, 4, 16).transpose(1, 2) @ w, x, w)
    check(lambda x, w: (x.transpose(1, 2) @ w).softmax(-1).transpose(1, 2).reshape(2, 9, 36), x, w)


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_as_strided_counts_from_the_storage(offset):
    def larger_than_the_view(x):
        return x[2:4, 1].as_strided((5, 3), (6, 2), offset) + 0

    check(larger_than_the_view, draw(10, 12), exact=True)


def test_as_strided_overlapping_reads_and_its_gradient():
    x = draw(20)
    x.requires_grad_()

    def windows(x):
        y = x.as_strided((6, 5), (3, 1))
        (y * y).sum().backward()
        return x.grad

    check(windows, x)


def test_as_strided_scatter_and_unfold():
    check(lambda x, y: x.as_strided_scatter(y, (3, 2), (4, 1), 1), draw(16), draw(3, 2), exact=True)
    check(lambda x: x.unfold(0, 5, 2) * 2, draw(21), exact=True)


VIEWS = {
    "slice": lambda x: x[1:, ::2],
    "step": lambda x: x[::3, 1::4],
    "select": lambda x: x[:, 3],
    "diagonal": lambda x: x.diagonal(1),
    "transpose": lambda x: x.t(),
    "expand": lambda x: x[:, :1].expand(-1, 5),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "unsqueeze": lambda x: x.unsqueeze(1)[..., 2:],
    "empty": lambda x: x[3:3],
    "scalar": lambda x: x[1, 1],
    "alias of a transposed slice": lambda x: x[2:].t()[1:],
}

WRITES = {
    "add_": lambda v: v.add_(3),
    "mul_ by a tensor": lambda v: v.mul_(torch.full_like(v, 2)),
    "fill_": lambda v: v.fill_(7),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(torch.ones_like(v)),
    "copy_ of another dtype": lambda v: v.copy_(torch.full_like(v, 5, dtype=torch.int32)),
    "copy_ broadcast": lambda v: v.copy_(torch.tensor(4.0, device=v.device)),
    "clamp_": lambda v: v.clamp_(-0.5, 0.5),
    "masked_fill_": lambda v: v.masked_fill_(v > 0, -1),
    "relu_": lambda v: torch.relu_(v),
    "item assignment": lambda v: v.__setitem__(..., 9),
}


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "expand"])
@pytest.mark.parametrize("write", WRITES)
def test_writing_through_a_view_changes_just_its_elements(view, write):
    check(lambda x: WRITES[write](VIEWS[view](x)), draw(8, 11), exact=True)


@pytest.mark.parametrize("view", VIEWS)
def test_reading_a_view(view):
    x = draw(8, 11)
    check(lambda x: VIEWS[view](x) * 2, x, exact=True)
    check(lambda x: VIEWS[view](x).clone(), x, exact=True)
    check(lambda x: VIEWS[view](x).sum(), x)
    check(lambda x: VIEWS[view](x).to(torch.float64), x, exact=True)
    check(lambda x: VIEWS[view](x).reshape(-1), x, exact=True)


def test_writing_to_expanded_memory_is_refused():
    check_raises(RuntimeError, lambda x: x.expand(4, 3).add_(1), draw(1, 3))


def test_out_argument_that_is_a_view():
    check(lambda x, out: torch.add(x, 1, out=out.t()[1:]), draw(3, 6), draw(6, 4), exact=True)
    check(lambda x, y, out: torch.mm(x, y, out=out[:, ::2]), draw(3, 4), draw(4, 5), draw(3, 10))


def test_strides_of_results_are_those_of_the_cpu():
    x, y = draw(2, 3, 4, 5), draw(2, 3, 4, 5)
    last = {"memory_format": torch.channels_last}
    for function in (
        lambda x, y: x.to(**last) + y,
        lambda x, y: x.to(**last) + y.to(**last),
        lambda x, y: x.to(**last).relu(),
        lambda x, y: torch.where(x.to(**last) > 0, x, y),
        lambda x, y: torch.empty_like(x.to(**last)).fill_(1),
        lambda x, y: x.transpose(1, 3).exp(),
        lambda x, y: x.permute(3, 0, 2, 1) * y.permute(3, 0, 2, 1),
        lambda x, y: x.transpose(0, 1).sum(2),
        lambda x, y: x.transpose(1, 2).softmax(-1),
        lambda x, y: torch.cat([x.transpose(1, 2), y.transpose(1, 2)]),
        lambda x, y: x.transpose(1, 2) @ y.transpose(1, 2).transpose(2, 3),
        lambda x, y: x[:, :, ::2].to(torch.int32),
        lambda x, y: x.transpose(1, 2).to(torch.bfloat16),
        lambda x, y: torch.nn.functional.layer_norm(x.transpose(2, 3), (4,)),
        lambda x, y: x.transpose(2, 3).cumsum(1),
        lambda x, y: torch.stack([x.t() for x in x[0]]),
    ):
        check(function, x, y, strides=True)


POINTWISE = {
    "add": lambda x: x + x,
    "mul by a scalar": lambda x: x * 2.5,
    "exp": lambda x: x.exp(),
    "where": lambda x: torch.where(x > 0, x, -x),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "softmax": lambda x: x.softmax(-1),
    "cat": lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]),
    "cumsum": lambda x: x.cumsum(-1),
    "clone": lambda x: x.clone(),
    "to int": lambda x: x.to(torch.int64),
    "any": lambda x: (x > 0).any(),
    "all": lambda x: (x > 0).all(),
    "sort": lambda x: x.sort(-1).values,
    "in-place": lambda x: x.add_(1).mul_(2),
    "std": lambda x: x.std() if x.numel() != 1 else x + 0,
}


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.filterwarnings("ignore:std")
def test_empty_and_zero_dimensional_tensors(name, shape):
    check(POINTWISE[name], draw(*shape))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_empty_operands_of_products(rows):
    check(lambda x, y: x @ y, draw(rows, 4), draw(4, 2))
    check(lambda x, y: x @ y, draw(4, rows), draw(rows, 2))
    check(lambda x, y: torch.bmm(x, y), draw(2, 3, rows), draw(2, rows, 5))
    check(lambda x, y: torch.nn.functional.linear(x, y), draw(rows, 4), draw(6, 4))


def test_index_and_mask_assignment():
    x, mask, index = draw(6, 7), draw(6, 7) > 0, torch.tensor([4, 0, 4])
    check(lambda x, mask: x.__setitem__(mask, 0.0), x, mask, exact=True)
    check(lambda x, mask: x.__setitem__(mask, x[mask] * 2), x, mask, exact=True)
    check(lambda x, mask: x[mask], x, mask, exact=True)
    check(lambda x, mask: x.t()[mask.t()], x, mask, exact=True)
    check(lambda x, mask: x.t().__setitem__(mask.t(), 1.0), x, mask, exact=True)
    check(lambda x, index: x[index], x, index, exact=True)
    check(lambda x, index: x[:, index], x, index, exact=True)
    check(lambda x, index: x[index, index], x, index, exact=True)
    check(lambda x, index: x[-index], x, index, exact=True)
    check(lambda x, index: x.t()[index, 1:].__setitem__(0, 3.0), x, index, exact=True)
    check(lambda x, index: x.index_add_(0, index, torch.ones(3, 7, device=x.device)), x, index)
    check(lambda x, index: x.index_copy(1, index[:2], x[:, :2].clone()), x, index, exact=True)


def test_masked_mean_of_an_integer_mask():
    check(
        lambda x, m: (x * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True),
        draw(3, 5, 8),
        draw(3, 5, dtype=torch.bool).long() + 1,
    )
    check(lambda m: m.float().mean(), torch.ones(3, 5, dtype=torch.int64))
    check(lambda m: m.sum(1) / m.size(1), torch.ones(3, 5, dtype=torch.int64))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_argsort(dim, descending):
    x = torch.randint(0, 5, (7, 33))
    check(lambda x: x.argsort(dim=dim, descending=descending, stable=True), x, exact=True)
    check(lambda x: x.float().t().argsort(dim=dim, descending=descending, stable=True), x, exact=True)


@pytest.mark.parametrize("target", ["neuron:0", "neuron:1"])
@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_copies_between_devices(view, non_blocking, target):
    x = draw(8, 11)
    there = VIEWS[view](x.to(DEVICE)).to(target, non_blocking=non_blocking)
    back = there.to("cpu", non_blocking=non_blocking)
    torch.accelerator.synchronize()
    assert there.device == torch.device(target)
    assert torch.equal(back, VIEWS[view](x))


@pytest.mark.parametrize("source", ["cpu", "neuron:0", "neuron:1"])
@pytest.mark.parametrize("target", ["cpu", "neuron:0", "neuron:1"])
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.bfloat16), (torch.int64, torch.float16), (torch.float64, torch.int32)], ids=str
)
def test_copies_between_devices_convert_and_keep_strides(source, target, dtypes):
    x = draw(5, 6, 7, dtype=dtypes[0])
    here = x.to(source).permute(2, 0, 1)[::2]
    there = torch.zeros(6, 4, 5, dtype=dtypes[1]).to(target).transpose(0, 2).transpose(1, 0).permute(1, 0, 2)
    there.copy_(here.reshape(there.shape))
    assert torch.equal(there.cpu(), x.permute(2, 0, 1)[::2].reshape(there.shape).to(dtypes[1]))


def test_copies_to_views_on_another_device():
    x, y = draw(6, 8).to("neuron:0"), torch.zeros(8, 6, device="neuron:1")
    y.t()[::2].copy_(x[1::2])
    want = torch.zeros(8, 6)
    want.t()[::2].copy_(x.cpu()[1::2])
    assert torch.equal(y.cpu(), want)


def test_many_copies_within_a_device():
    """Blocks are reused while copies are under way."""
    x = draw(1 << 16).to(DEVICE)
    copies = [x.clone().add_(i) for i in range(50)]
    assert all(torch.equal(c.cpu(), x.cpu() + i) for i, c in enumerate(copies))


def test_reading_what_a_shared_storage_holds():
    x = torch.arange(12.0, device=DEVICE)
    a, b = x.view(3, 4), x.view(4, 3).t()
    a[1] = -1
    b[0, 3] = 99
    assert x.cpu().tolist() == [0, 1, 2, 3, -1, -1, -1, -1, 8, 99, 10, 11]
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_views_of_another_dtype():
    check(lambda x: x.view(torch.int32) + 0, draw(4, 6), exact=True)
    check(lambda x: x.view(torch.int16) + 0, draw(4, 6), exact=True)
    check(lambda x: torch.view_as_real(x) * 2, draw(3, 2, dtype=torch.complex64), exact=True)
    check(lambda x: torch.view_as_complex(x).abs(), draw(3, 2))


@st.composite
def chains_of_views(draw_from):
    """Views applied one after the other, as a list of (method, arguments)."""
    sizes = draw_from(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    shape, chain = list(sizes), []
    for _ in range(draw_from(st.integers(0, 4))):
        dim = draw_from(st.integers(0, len(shape) - 1))
        kind = draw_from(st.sampled_from(["transpose", "slice", "narrow", "unsqueeze", "flip", "expand", "select"]))
        if kind == "transpose":
            other = draw_from(st.integers(0, len(shape) - 1))
            chain.append(("transpose", (dim, other)))
            shape[dim], shape[other] = shape[other], shape[dim]
        elif kind == "slice":
            step = draw_from(st.integers(1, 3))
            chain.append(("__getitem__", ((*[slice(None)] * dim, slice(0, None, step)),)))
            shape[dim] = -(-shape[dim] // step)
        elif kind == "narrow":
            start = draw_from(st.integers(0, shape[dim]))
            length = draw_from(st.integers(0, shape[dim] - start))
            chain.append(("narrow", (dim, start, length)))
            shape[dim] = length
        elif kind == "unsqueeze" and len(shape) < 6:
            chain.append(("unsqueeze", (dim,)))
            shape.insert(dim, 1)
        elif kind == "flip":
            chain.append(("flip", (dim,)))
        elif kind == "expand" and shape[dim] == 1:
            size = draw_from(st.integers(0, 3))
            shape[dim] = size
            chain.append(("expand", (tuple(shape),)))
        elif kind == "select" and len(shape) > 1 and shape[dim] > 0:
            chain.append(("select", (dim, draw_from(st.integers(0, shape[dim] - 1)))))
            del shape[dim]
    return sizes, chain


def follow(x, chain):
    for method, arguments in chain:
        x = getattr(x, method)(*arguments)
    return x


@given(chains_of_views())
def test_any_chain_of_views(case):
    sizes, chain = case
    x = torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)

    def use(x):
        v = follow(x, chain)
        return v + v, v.clone(), v.contiguous(), v.sum(), v.to(torch.int32), torch.cat([v, v]), v * x.flatten()[0]

    check(use, x, exact=True)


@given(chains_of_views(), chains_of_views())
def test_binary_operators_of_any_two_views(one, two):
    x, y = (torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes) for sizes, _ in (one, two))
    try:
        torch.broadcast_shapes(follow(x, one[1]).shape, follow(y, two[1]).shape)
    except RuntimeError:
        check_raises(RuntimeError, lambda x, y: follow(x, one[1]) + follow(y, two[1]), x, y)
        return
    check(lambda x, y: follow(x, one[1]) * follow(y, two[1]), x, y, exact=True, strides=True)


MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize(
    "at",
    [
        (slice(None), MASK),
        (..., MASK),
        (None, slice(None), MASK),
        (0, MASK),
        (MASK, 0),
        (slice(None), MASK, 1),
        (slice(None, None, 2), MASK),
    ],
    ids=str,
)
def test_masks_anywhere_among_the_indices(at):
    def read(x):
        return x[tuple(i.to(x.device) if isinstance(i, torch.Tensor) else i for i in at)]

    def write(x):
        x[tuple(i.to(x.device) if isinstance(i, torch.Tensor) else i for i in at)] = 7

    check(read, draw(3, 3, 3), exact=True)
    check(write, draw(3, 3, 3), exact=True)
    check(lambda x: x[at], draw(3, 3, 3), exact=True)  # masks on the host


def test_filling_an_expanded_tensor():
    check(lambda x: x.expand(3, 4).fill_(2), draw(3, 1), exact=True)
    check(lambda x: x.expand(3, 4).zero_(), draw(3, 1), exact=True)
