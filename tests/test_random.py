"""The generators of the devices: Philox, 16 bytes of state, seed and offset as CUDA's."""

import itertools
import struct
import threading

import pytest
import torch

neuron = torch.neuron


def state_of(seed, offset):
    return torch.frombuffer(bytearray(struct.pack("<Qq", seed, offset)), dtype=torch.uint8)


def test_state_is_seed_and_offset():
    neuron.manual_seed(0x0123456789ABCDEF)
    state = neuron.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    assert state.shape == (16,)
    assert struct.unpack("<Qq", bytes(state.tolist())) == (0x0123456789ABCDEF, 0)


def test_drawing_moves_the_offset_by_multiples_of_four():
    neuron.manual_seed(1)
    generator = neuron.default_generators[0]
    offsets = [generator.get_offset()]
    for size in (1, 5, 1000):
        torch.rand(size, device="neuron")
        offsets.append(generator.get_offset())
    assert offsets[0] == 0
    assert all(b > a and b % 4 == 0 for a, b in itertools.pairwise(offsets))
    assert generator.initial_seed() == 1


def test_a_state_set_again_draws_the_same():
    neuron.manual_seed(5)
    torch.rand(3, device="neuron")
    state = neuron.get_rng_state()
    first = torch.randn(100, device="neuron")
    second = torch.randn(100, device="neuron")
    neuron.set_rng_state(state)
    assert torch.equal(torch.randn(100, device="neuron"), first)
    assert torch.equal(torch.randn(100, device="neuron"), second)
    assert not torch.equal(first, second)


def test_device_drawing_leaves_the_hosts_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    torch.rand(100, device="neuron")
    torch.randn(100, device="neuron")
    torch.nn.functional.dropout(torch.ones(100, device="neuron"))
    assert torch.equal(torch.get_rng_state(), before)


def test_eight_bytes_are_a_seed():
    neuron.manual_seed(3)
    torch.rand(3, device="neuron")
    neuron.set_rng_state(torch.frombuffer(bytearray(struct.pack("<Q", 77)), dtype=torch.uint8))
    assert neuron.initial_seed() == 77
    assert neuron.default_generators[0].get_offset() == 0


@pytest.mark.parametrize("size", [0, 1, 15, 17, 5056])
def test_states_of_the_wrong_size(size):
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        neuron.set_rng_state(torch.zeros(size, dtype=torch.uint8))


def test_offsets_are_multiples_of_four():
    generator = torch.Generator("neuron")
    generator.set_offset(8)
    assert generator.get_offset() == 8
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_state(state_of(1, 3))


def test_states_may_come_from_the_device():
    neuron.manual_seed(11)
    neuron.set_rng_state(neuron.get_rng_state().to("neuron"))
    assert neuron.initial_seed() == 11


def test_torch_manual_seed_seeds_every_device():
    torch.manual_seed(123)
    assert [g.initial_seed() for g in neuron.default_generators] == [123] * 4
    a = torch.rand(5, device="neuron:1")
    torch.manual_seed(123)
    assert torch.equal(a, torch.rand(5, device="neuron:1"))


def test_seeding_one_device():
    torch.manual_seed(1)
    with neuron.device(2):
        neuron.manual_seed(9)
    assert [g.initial_seed() for g in neuron.default_generators] == [1, 1, 9, 1]
    neuron.seed()
    assert neuron.initial_seed() != 1
    neuron.seed_all()
    assert len({g.initial_seed() for g in neuron.default_generators}) == 1


def test_negative_seeds_wrap_as_elsewhere():
    neuron.manual_seed(-1)
    assert neuron.initial_seed() == torch.Generator().manual_seed(-1).initial_seed()


def test_states_of_all_devices():
    torch.manual_seed(4)
    states = neuron.get_rng_state_all()
    assert len(states) == 4
    before = [torch.rand(3, device=f"neuron:{i}") for i in range(4)]
    neuron.set_rng_state_all(states)
    assert all(torch.equal(torch.rand(3, device=f"neuron:{i}"), before[i]) for i in range(4))
    assert torch.equal(neuron.get_rng_state("neuron:2"), neuron.get_rng_state(2))


def test_generators_of_ones_own():
    generator = torch.Generator("neuron").manual_seed(42)
    assert generator.device == torch.device("neuron:0")
    default = neuron.get_rng_state()
    a = torch.rand(10, device="neuron", generator=generator)
    assert torch.equal(neuron.get_rng_state(), default), "the default generator is untouched"
    assert torch.equal(a, torch.rand(10, device="neuron", generator=torch.Generator("neuron").manual_seed(42)))
    assert torch.Generator("neuron:3").device.index == 3


def test_clones_and_shared_states():
    generator = torch.Generator("neuron").manual_seed(6)
    copied = generator.clone_state()
    shared = generator.graphsafe_get_state()
    torch.rand(10, device="neuron", generator=generator)
    assert copied.get_offset() == 0
    assert shared.get_offset() == generator.get_offset() > 0
    copied.graphsafe_set_state(generator)
    copied.manual_seed(8)
    assert generator.initial_seed() == 8


def test_philox_state():
    generator = torch.Generator("neuron").manual_seed(6)
    seed, offset, intragraph = generator.philox_state(5)
    assert (seed.item(), offset.item() + intragraph.item()) == (6, 0)
    assert generator.get_offset() == 8


def test_a_cpu_generator_is_refused():
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="neuron", generator=torch.Generator())


def test_fork_rng_restores_the_devices():
    torch.manual_seed(2)
    state = neuron.get_rng_state()
    with torch.random.fork_rng(device_type="neuron"):
        torch.rand(10, device="neuron")
        assert not torch.equal(neuron.get_rng_state(), state)
    assert torch.equal(neuron.get_rng_state(), state)


def test_freeze_rng_state_of_torchs_own_tests():
    from torch.testing._internal.common_utils import freeze_rng_state

    torch.manual_seed(2)
    before = neuron.get_rng_state()
    with freeze_rng_state():
        torch.rand(10, device="neuron")
    assert torch.equal(neuron.get_rng_state(), before)


def test_checkpointing_draws_the_same_dropout_twice():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    x = torch.ones(1000, device="neuron", requires_grad=True)
    for reentrant in (True, False):
        x.grad = None
        y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=reentrant)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach()), "the mask of the backward pass is that of the forward pass"


def test_dtensors_tracker_accepts_the_state():
    from torch.distributed.tensor._random import _PhiloxState

    neuron.manual_seed(21)
    state = _PhiloxState(neuron.get_rng_state())
    assert state.seed.item() == 21
    state.offset = torch.tensor([16])
    neuron.set_rng_state(state.state)
    assert neuron.default_generators[0].get_offset() == 16


def test_the_generator_is_thread_safe():
    generator = torch.Generator("neuron").manual_seed(0)

    def draw():
        for _ in range(200):
            torch.rand(4, device="neuron", generator=generator)

    one = torch.Generator("neuron").manual_seed(0)
    torch.rand(4, device="neuron", generator=one)
    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert generator.get_offset() == 800 * one.get_offset()


def test_default_generators_are_a_sequence():
    assert len(neuron.default_generators) == 4
    assert neuron.default_generators[0] is neuron.default_generators[0]
    assert neuron.default_generators[-1].device.index == 3
    with pytest.raises(IndexError):
        _ = neuron.default_generators[4]


def test_a_default_generator_differs_between_processes(run_python):
    program = "import torch; print(torch.neuron.initial_seed())"
    assert run_python(program) != run_python(program)


def on_device(*shape, dtype=torch.float32):
    return torch.empty(*shape, device="neuron", dtype=dtype)


def test_moments_of_the_distributions(no_fallback):
    n = 100_000
    assert on_device(n).geometric_(0.25).mean().item() == pytest.approx(4, rel=0.02)
    assert on_device(n, dtype=torch.int64).geometric_(0.25).min().item() == 1
    assert on_device(n).log_normal_(0.5, 0.25).log().mean().item() == pytest.approx(0.5, abs=0.01)
    assert (on_device(n).cauchy_(2.0, 3.0) < 2.0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    mean, std = torch.full((n,), 3.0, device="neuron"), torch.full((n,), 0.5, device="neuron")
    for drawn in (torch.normal(mean, std), torch.normal(mean, 0.5), torch.normal(3.0, std)):
        assert drawn.mean().item() == pytest.approx(3, abs=0.02)
        assert drawn.std().item() == pytest.approx(0.5, abs=0.02)
    for rate in (0.5, 30.0):
        drawn = torch.poisson(torch.full((n,), rate, device="neuron"))
        assert drawn.mean().item() == pytest.approx(rate, rel=0.03)
        assert drawn.var().item() == pytest.approx(rate, rel=0.05)
    assert torch._standard_gamma(torch.full((n,), 2.5, device="neuron")).mean().item() == pytest.approx(2.5, rel=0.02)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_multinomial_follows_the_weights(replacement, dtype, no_fallback):
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0], dtype=dtype, device="neuron").expand(20_000, 4)
    drawn = torch.multinomial(weights, 2, replacement)
    assert drawn.shape == (20_000, 2)
    share = torch.bincount(drawn[:, 0].cpu(), minlength=4) / 20_000
    torch.testing.assert_close(share, torch.tensor([0.125, 0, 0.25, 0.625]), atol=0.02, rtol=0)
    if not replacement:
        assert bool((drawn[:, 0] != drawn[:, 1]).all())
    one = torch.multinomial(torch.tensor([0.0, 1.0, 0.0], device="neuron"), 1)
    assert one.tolist() == [1]


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, float("inf")], [1.0, float("nan")], [0.0, 0.0]])
def test_weights_that_are_none(weights):
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.tensor(weights, device="neuron"), 1).cpu()
    assert torch.ones(1, device="neuron").item() == 1


def test_probabilities_and_deviations_out_of_range():
    for draw in (
        lambda: torch.bernoulli(torch.tensor([1.5], device="neuron")),
        lambda: torch.normal(torch.zeros(1, device="neuron"), torch.tensor([-1.0], device="neuron")),
        lambda: torch.poisson(torch.tensor([-1.0], device="neuron")),
    ):
        with pytest.raises(RuntimeError):
            draw().cpu()


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_permutations(n, no_fallback):
    p = torch.randperm(n, device="neuron")
    assert p.dtype == torch.int64
    assert sorted(p.tolist()) == list(range(n))
    assert sorted(torch.randperm(n, device="neuron", dtype=torch.int32).tolist()) == list(range(n))


def test_integers_of_the_whole_range(no_fallback):
    lowest = torch.iinfo(torch.int64).min
    drawn = on_device(1000, dtype=torch.int64).random_(lowest, None)
    assert (drawn < 0).sum().item() in range(400, 600)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_uniform_half_floats_stay_below_one(dtype):
    x = torch.rand(1 << 20, dtype=dtype, device="neuron")
    assert x.max().item() < 1
    assert x.min().item() == 0
    assert abs(x.float().mean().item() - 0.5) < 0.005
    assert (-torch.log(1 - x)).isfinite().all().item()
