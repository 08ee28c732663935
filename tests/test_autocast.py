"""Mixed precision: PyTorch's own lists on this device."""

import warnings

import pytest
import torch
import torch.nn.functional as F

neuron = torch.neuron


@pytest.fixture
def x():
    return torch.randn(4, 4).to("neuron")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_run_in_the_lower_precision(x, dtype):
    linear = torch.nn.Linear(4, 4).to("neuron")
    with torch.autocast("neuron", dtype=dtype):
        assert (x @ x).dtype == dtype
        assert linear(x).dtype == dtype
        assert torch.bmm(x[None], x[None]).dtype == dtype
        assert torch.addmm(x, x, x).dtype == dtype
        assert F.conv1d(x[None], x[:, :, None]).dtype == dtype
        assert torch.einsum("ij,jk->ik", x, x).dtype == dtype
        assert F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]).dtype == dtype
    assert (x @ x).dtype == torch.float32


def test_sensitive_operators_run_in_float32(x):
    half = x.to(torch.bfloat16)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        for result in (
            half.exp(),
            half.abs().log(),
            half.softmax(-1),
            half.log_softmax(-1),
            half.sum(),
            half.cumsum(0),
            half.norm(),
            F.layer_norm(half, (4,)),
            F.mse_loss(half, half),
            F.cross_entropy(half, torch.zeros(4, dtype=torch.long, device="neuron")),
            half.pow(2),
        ):
            assert result.dtype == torch.float32


def test_mixed_inputs_are_promoted(x):
    half = x.to(torch.bfloat16)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert torch.addcmul(x, half, half).dtype == torch.float32
        assert torch.atan2(half, x).dtype == torch.float32
        assert torch.dot(half[0], half[1]).dtype == torch.bfloat16


def test_other_operators_keep_their_type(x):
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (x + x).dtype == torch.float32
        assert F.relu(x.bfloat16()).dtype == torch.bfloat16
        assert (torch.arange(3, device="neuron") + 1).dtype == torch.int64


def test_double_and_integers_are_left_alone(x):
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (x.double() @ x.double()).dtype == torch.float64


def test_bfloat16_is_supported():
    assert neuron.is_bf16_supported()
    assert torch.amp.is_autocast_available("neuron")


def test_unsupported_dtypes_disable_it_with_a_warning(x):
    assert neuron.get_amp_supported_dtype() == [torch.float32, torch.float16, torch.bfloat16]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autocast("neuron", dtype=torch.float64):
            assert (x @ x).dtype == torch.float32
    assert any("autocast" in str(w.message) for w in caught)


def test_disabling_inside(x):
    with torch.autocast("neuron", dtype=torch.bfloat16):
        with torch.autocast("neuron", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


def test_the_older_names(x):
    with neuron.amp.autocast():
        assert (x @ x).dtype == torch.bfloat16
    with neuron.amp.autocast(dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    with neuron.amp.autocast(enabled=False):
        assert (x @ x).dtype == torch.float32


def test_binary_cross_entropy_is_banned(x):
    with torch.autocast("neuron", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x.sigmoid(), x.sigmoid().detach())


def test_gradients_arrive_in_the_parameters_type(x):
    linear = torch.nn.Linear(4, 4).to("neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        loss = linear(x).float().pow(2).sum()
    loss.backward()
    assert linear.weight.grad.dtype == torch.float32
    assert torch.isfinite(linear.weight.grad).all()


def test_the_device_of_a_cpu_autocast_is_not_touched(x):
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.float32


def test_grad_scaler(x):
    linear = torch.nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    for scaler in (torch.amp.GradScaler("neuron", init_scale=4.0), neuron.amp.GradScaler(init_scale=4.0)):
        assert scaler.is_enabled()
        before = linear.weight.detach().clone()
        with torch.autocast("neuron", dtype=torch.float16):
            loss = linear(x).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert not torch.equal(linear.weight, before)
        assert scaler.get_scale() == 4.0


def test_grad_scaler_skips_steps_with_infinite_gradients(x):
    linear = torch.nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("neuron", init_scale=4.0)
    before = linear.weight.detach().clone()
    scaler.scale((linear(x) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(linear.weight, before)
    assert scaler.get_scale() == 2.0


def test_custom_functions(x):
    class Square(torch.autograd.Function):
        @staticmethod
        @neuron.amp.custom_fwd
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a @ a

        @staticmethod
        @neuron.amp.custom_bwd
        def backward(ctx, grad):
            (a,) = ctx.saved_tensors
            return grad @ a.t() + a.t() @ grad

    x.requires_grad_()
    with torch.autocast("neuron", dtype=torch.bfloat16):
        y = Square.apply(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("grouped", [False, True])
def test_attention_with_masks_and_grouped_heads(mask, grouped):
    torch.manual_seed(0)
    q = torch.randn(2, 4, 5, 160)
    k, v = torch.randn(2, 2 if grouped else 4, 7, 160), torch.randn(2, 2 if grouped else 4, 7, 160)
    m = {None: None, "bool": torch.rand(2, 1, 5, 7) > 0.3, "float": torch.randn(5, 7)}[mask]
    if mask == "bool":
        m[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=grouped)
    moved = [t.to("neuron") if t is not None else None for t in (q, k, v, m)]
    for t in moved[:3]:
        t.requires_grad_()
    result = F.scaled_dot_product_attention(*moved[:3], attn_mask=moved[3], enable_gqa=grouped)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)
    result.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in moved[:3])


def test_attention_honours_the_chosen_backend():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 1, 3, 8).to("neuron")
    for backend in (SDPBackend.MATH, SDPBackend.OVERRIDEABLE):
        with sdpa_kernel(backend):
            assert F.scaled_dot_product_attention(q, q, q).shape == q.shape
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="backend"):
        F.scaled_dot_product_attention(q, q, q)


def test_attention_with_a_gradient_for_the_bias():
    q = torch.randn(1, 2, 3, 8).to("neuron")
    bias = torch.zeros(3, 3, device="neuron", requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, attn_mask=bias).sum().backward()
    assert bias.grad.shape == (3, 3)
