"""``torch.compile(backend="neuron")``: recorded once, replayed from then on, with the results of eager execution."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
import torch_neuronx
from torch_neuronx.neuron_dynamo_backend import graphs

TIMES = 4  # the first call records, the others replay


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled_graphs():
    """The graphs compiled by the test."""
    before = set(graphs._graphs)
    return lambda: [g for g in graphs._graphs if g not in before]


def compiled(f, **options):
    return torch.compile(f, backend="neuron", **options)


def check(f, *args, **options):
    """Every call gives what eager execution gives; also with other values than those recorded."""
    c = compiled(f, **options)
    for i in range(TIMES):
        given = [a + i if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        torch.testing.assert_close(c(*given), f(*given))
    return c


X = torch.randn(24, 32)


def test_inference(compiled_graphs):
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8), torch.nn.Softmax(-1)
    ).to("neuron")
    with torch.no_grad():
        check(model, X.to("neuron"), fullgraph=True)
    (graph,) = compiled_graphs()
    (recording,) = graph.specialisations
    operators, programs, kernels, _ = recording.graph.summary()
    assert graph.recorded == 1
    assert programs == 1
    assert kernels < operators + 3
    assert "operators in 1 programs" in torch_neuronx.explain_compiled()


def test_training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to("neuron")
    other = copy.deepcopy(model)
    c = compiled(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other)]
    losses = [[], []]
    for _ in range(6):
        for m, optimizer, kept in zip((c, other), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = m(X.to("neuron")).square().mean()
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    torch.testing.assert_close(losses[0], losses[1])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_compiled_optimizer_steps(optimizer):
    """Their counters are in host memory: the graph is split, and lists of tensors pass between its parts."""
    torch.manual_seed(0)
    models = [torch.nn.Linear(8, 8).to("neuron") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [optimizer(m.parameters(), lr=0.01) for m in models]
    steps = [compiled(optimizers[0].step), optimizers[1].step]
    for i in range(6):
        for m, o, step in zip(models, optimizers, steps, strict=True):
            o.zero_grad()
            m(torch.full((4, 8), 0.1 * i, device="neuron")).square().sum().backward()
            step()
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(a, b)


def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(1, 2, 64, 16).to("neuron").requires_grad_() for _ in range(3))
    bias = torch.randn(64).to("neuron")
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 64, 64, device="neuron")
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j], block_mask=mask))
    causal = torch.ones(64, 64, dtype=torch.bool, device="neuron").tril()
    dense = torch.where(causal, bias[None, :], -torch.inf)
    for _ in range(TIMES):
        results = []
        for g in (f, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=dense)):
            out = g(q, k, v)
            results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_dropout_is_reproducible_and_not_constant():
    c = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(64, 64, device="neuron")
    c(x)
    torch.manual_seed(3)
    first = [c(x) for _ in range(3)]
    torch.manual_seed(3)
    again = [c(x) for _ in range(3)]
    torch.manual_seed(3)
    eager = [F.dropout(x, 0.5) + torch.rand_like(x) for _ in range(3)]
    for a, b, e in zip(first, again, eager, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, e)
    assert not torch.equal(first[0], first[1])


def test_mutation_of_inputs_and_buffers():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(8))

        def forward(self, x):
            self.total.add_(x.sum(0))
            x.mul_(2)
            return x + self.total

    a, b = Counter().to("neuron"), Counter().to("neuron")
    c = compiled(a)
    for i in range(TIMES):
        x, y = (torch.full((3, 8), 1.0 + i, device="neuron") for _ in range(2))
        torch.testing.assert_close(c(x), b(y))
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(a.total, b.total)


def test_a_static_cache_is_written_in_place(compiled_graphs):
    cache = torch.zeros(2, 512, 64, 64, device="neuron")

    def step(cache, k, position):
        cache.index_copy_(2, position, k)
        return cache.sum(2)

    expected = cache.clone()
    c = compiled(step, fullgraph=True)
    address = cache.data_ptr()
    for i in range(TIMES):
        k, position = torch.randn(2, 512, 1, 64, device="neuron"), torch.tensor([i], device="neuron")
        torch.testing.assert_close(c(cache, k, position), step(expected, k, position))
        torch.testing.assert_close(cache, expected)
    assert cache.data_ptr() == address
    (graph,) = compiled_graphs()
    assert graph.specialisations[0].graph.summary()[3] < cache.nbytes / 4  # no copy of it


def test_shapes_that_change(compiled_graphs):
    c = compiled(lambda x: (x * 2).softmax(-1), dynamic=True)
    for _ in range(2):
        for n in (3, 5, 17):
            x = torch.randn(4, n, device="neuron")
            torch.testing.assert_close(c(x), (x * 2).softmax(-1))
    (graph,) = compiled_graphs()  # Dynamo traced once
    assert graph.recorded == 3
    assert len(graph.specialisations) == 3


def test_recordings_are_bounded(monkeypatch, compiled_graphs):
    monkeypatch.setattr(graphs, "MOST_SPECIALISATIONS", 2)
    c = compiled(lambda x: x + 1, dynamic=True)
    for n in (3, 4, 5, 6):
        assert c(torch.zeros(n, device="neuron")).tolist() == [1.0] * n
    (graph,) = compiled_graphs()
    assert len(graph.specialisations) == 2


def test_views_and_aliases_of_outputs():
    def f(x):
        y = x * 2
        return y, y.t(), y[1:], x.view(-1), x

    x = torch.randn(6, 4, device="neuron")
    c = compiled(f)
    for _ in range(TIMES):
        y, t, part, flat, same = c(x)
        expected = f(x)
        for got, want in zip((y, t, part, flat, same), expected, strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
        y.zero_()
        assert part.abs().sum().item() == 0  # still the memory of y
        assert flat.data_ptr() == x.data_ptr()


def test_inputs_that_share_memory_once_and_not_again():
    def f(a, b, c):
        return a * 2 + b - c

    c = compiled(f)
    x, y, z = (torch.randn(6, device="neuron") for _ in range(3))
    m, n = torch.randn(4, 6, device="neuron"), torch.randn(4, 6, device="neuron")
    for args in [(m[:, :3], m[:, 3:], m[:, 1:4]), (m[:, :3], n[:, 3:], m[:, 2:5]), (n[:, :3], n[:, 3:], m[:, 1:4])]:
        torch.testing.assert_close(c(*args), f(*args))
    for args in [(x, x.view(6), x.detach()), (x, y, z), (x, x.view(6), z), (y, x, x.view(6)), (x, y, z)]:
        torch.testing.assert_close(c(*args), f(*args))


def test_numbers_of_different_types_are_different():
    c = compiled(lambda x, n: x * n, dynamic=True)
    x = torch.tensor([2, 3], device="neuron")
    for n in (True, 1, 1.0, 2, 2.0, 3, 2.5):
        got = c(x, n)
        torch.testing.assert_close(got, x * n)
        assert got.dtype == (x * n).dtype


def test_memory_that_was_never_written_is_the_replays_own(compiled_graphs):
    """Where it was when the graph was recorded is somebody else's by the next call, or gone from the process."""

    def f(x, i):
        rows = torch.empty(4096, 512, device=x.device)
        return rows.index_copy(0, i, x)[i] + 1

    c = compiled(f)
    i = torch.tensor([3, 1], device="neuron")
    for n in range(TIMES):
        x = torch.full((2, 512), float(n), device="neuron")
        torch.testing.assert_close(c(x, i), x + 1)
        torch.neuron.synchronize()
        torch.neuron.empty_cache()
    (graph,) = compiled_graphs()
    rows = 4096 * 512 * 4
    assert graph.specialisations[0].graph.summary()[3] >= 2 * rows  # they, and what index_copy makes of them


def test_metrics_say_what_compiling_took():
    torch_neuronx.reset_dynamo_metrics()
    c = compiled(lambda x: x.exp() + 1, dynamic=True)
    took = []
    for n in (4, 4, 5):
        c(torch.randn(n, device="neuron"))
        (graph,) = torch_neuronx.get_dynamo_metrics()
        took.append(graph.torch_neuronx_compile_us)
    assert 0 < took[0] == took[1] < took[2]  # a recording for each size


def test_conjugates_and_graphs_without_work():
    c = compiled(lambda x: ((x * 2).conj(), x.conj().imag))
    x = torch.tensor([1 + 2j, 3 - 1j], device="neuron")
    for _ in range(TIMES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex arithmetic runs on the CPU
            for given in (x, x.conj()):
                for a, b in zip(c(given), ((given * 2).conj(), given.conj().imag), strict=True):
                    torch.testing.assert_close(a, b)
    c = compiled(lambda x: x.view(2, 2).t())
    for _ in range(TIMES):
        assert c(torch.arange(4.0, device="neuron")).tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_an_operator_on_the_cpu_is_cut_out(compiled_graphs):
    def f(x):
        y = (x @ x + torch.eye(8, device=x.device) * 9).tanh() + torch.eye(8, device=x.device) * 2
        return torch.linalg.inv(y) * 2 + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(f, torch.randn(8, 8).to("neuron") * 0.1, fullgraph=True)
    (whole,) = [g for g in compiled_graphs() if g.reasons]
    assert any("linalg" in what for what in whole.reasons)
    assert sum(p.recorded for p in whole.parts) >= 1


def test_custom_operators_run_each_time():
    calls = []

    @torch.library.custom_op("neuron_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x * 3

    noted.register_fake(lambda x: torch.empty_like(x))
    check(lambda x: noted(x + 1).relu() - 1, X.to("neuron"), fullgraph=True)
    assert len(calls) == 2 * TIMES


def test_reading_a_value_breaks_the_graph():
    def f(x):
        y = x * 2
        return y + 1 if y.sum().item() > 0 else y - 1

    c = compiled(f)
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.full((4,), sign, device="neuron")
        torch.testing.assert_close(c(x), f(x))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q, k, v = (torch.randn(2, 4, 16, 8).to("neuron") for _ in range(3))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v, fullgraph=True)


def test_autocast():
    layer = torch.nn.Linear(32, 16).to("neuron")

    def f(x):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            return layer(x).float().sum(-1)

    with torch.no_grad():
        check(f, X.to("neuron"))


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.3), torch.nn.GELU()).to("neuron")
    c = compiled(lambda x: checkpoint(block, x, use_reentrant=False).sum())
    for _ in range(TIMES):
        gradients = []
        for f in (c, lambda x: block(x).sum()):
            torch.manual_seed(1)
            block.zero_grad()
            f(X.to("neuron")).backward()
            gradients.append([p.grad.clone() for p in block.parameters()])
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b)


def test_empty_tensors():
    check(lambda x: (x * 2, x.sum(0), torch.cat([x, x])), torch.empty(0, 5, device="neuron"))


def test_an_error_does_not_poison_later_calls():
    def f(x, i):
        return x[i] * 2

    c = compiled(f)
    x = torch.arange(5.0, device="neuron")
    good, bad = torch.tensor([1, 2], device="neuron"), torch.tensor([1, 7], device="neuron")
    for _ in range(2):
        assert c(x, good).tolist() == [2.0, 4.0]
        with pytest.raises(Exception, match="index 7 is out of bounds"):
            c(x, bad).cpu()
    assert c(x, good).tolist() == [2.0, 4.0]


def test_a_sum_of_products_and_residuals():
    w = [torch.randn(32, 32).to("neuron") * 0.1 for _ in range(3)]

    def f(x):
        a = x @ w[0] + x @ w[1]
        b = a + (a @ w[2]).view(4, 6, 32).view(24, 32)
        return b * torch.sigmoid(b), b.mean(-1)

    check(f, X.to("neuron"), fullgraph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_residuals_of_long_rows(dtype):
    """Rows that run on strips, with biases and products around them."""
    w = (torch.randn(256, 256) / 16).to(dtype).to("neuron")

    def f(x):
        y = F.rms_norm(x, (256,)) @ w
        z = x + F.softmax(y.float(), -1).to(y.dtype) * y
        return F.layer_norm(z, (256,)), z.float().var(-1)

    x = torch.randn(1040, 256).to(dtype).to("neuron")
    c = compiled(f)
    for _ in range(TIMES):
        for a, b in zip(c(x), f(x), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=2e-2)


def test_two_devices_and_streams():
    c = compiled(lambda x: x * 2 + 1)
    for device in ("neuron:0", "neuron:1", "neuron:0"):
        x = torch.ones(4, device=device)
        with torch.neuron.device(device):
            assert c(x).tolist() == [3.0] * 4
        with torch.Stream(device):
            y = c(x)
        torch.neuron.synchronize(device)
        assert y.tolist() == [3.0] * 4


def test_stablehlo_of_a_compiled_function():
    layer = torch.nn.Linear(32, 16).to("neuron")
    with torch.no_grad():
        (text,) = torch_neuronx.stablehlo(lambda x: layer(x).softmax(-1), X.to("neuron"))
    assert text.startswith("module")
    assert "stablehlo.dot_general" in text
    assert "tensor<24x16xf32>" in text


def test_the_default_backend_is_chosen_by_device(compiled_graphs):
    c = torch.compile(lambda x: (x * 2).relu() + 1)
    x = torch.randn(8, device="neuron")
    for _ in range(TIMES):
        torch.testing.assert_close(c(x), (x * 2).relu() + 1)
    assert [g.recorded for g in compiled_graphs()] == [1]
    with pytest.warns(UserWarning, match="one mode"):
        torch.compile(lambda x: x - 1, mode="reduce-overhead")(x)
    with pytest.warns(UserWarning, match="are Inductor's"):
        torch.compile(lambda x: x - 3, options={"max_autotune": True})(x)


@pytest.mark.parametrize(
    "f",
    [
        lambda: torch.ones(3).to("neuron") * 2,
        lambda: torch.ones(3).to(device="neuron:0") * 2,
        lambda: torch.ones(3, device=torch.device("neuron", 0)) * 2,
    ],
)
def test_the_default_backend_sees_where_tensors_are_made(f, compiled_graphs):
    c = torch.compile(f)
    for _ in range(TIMES):
        torch.testing.assert_close(c(), f())
    assert compiled_graphs()


def test_the_cpu_keeps_inductor(monkeypatch):
    seen = []
    import torch._inductor.compile_fx

    original = torch._inductor.compile_fx.compile_fx
    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", lambda *a, **k: seen.append(1) or original(*a, **k))
    x = torch.randn(8)
    torch.testing.assert_close(torch.compile(lambda x: x * 3 + 1)(x), x * 3 + 1)
    assert seen
