"""Device memory, pinned memory and storages."""

import gc

import pytest
import torch

neuron = torch.neuron
MB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    neuron.synchronize()
    neuron.empty_cache()
    neuron.reset_peak_memory_stats()


def test_allocated_follows_tensors():
    before = neuron.memory_allocated()
    tensor = torch.empty(8 * MB, dtype=torch.uint8, device="neuron")
    assert neuron.memory_allocated() - before >= 8 * MB
    assert neuron.max_memory_allocated() - before >= 8 * MB
    del tensor
    assert neuron.memory_allocated() == before
    assert neuron.max_memory_allocated() - before >= 8 * MB
    neuron.reset_peak_memory_stats()
    assert neuron.max_memory_allocated() == before


def test_allocated_active_and_reserved_are_ordered():
    tensors = [torch.empty(n, dtype=torch.uint8, device="neuron") for n in (1, 1000, MB, 3 * MB)]
    stats = neuron.memory_stats()
    allocated, active, reserved = (stats[f"{k}_bytes"]["current"] for k in ("allocated", "active", "reserved"))
    assert reserved >= active >= allocated >= 4 * MB + 1001
    del tensors


def test_empty_cache_gives_memory_back():
    tensor = torch.empty(64 * MB, dtype=torch.uint8, device="neuron")
    reserved = neuron.memory_reserved()
    assert reserved >= 64 * MB
    del tensor
    assert neuron.memory_reserved() == reserved
    neuron.empty_cache()
    assert neuron.memory_reserved() <= reserved - 64 * MB


def test_freed_blocks_are_reused():
    first = torch.empty(4 * MB, dtype=torch.uint8, device="neuron")
    address = first.data_ptr()
    del first
    assert torch.empty(4 * MB, dtype=torch.uint8, device="neuron").data_ptr() == address


def test_a_training_loop_does_not_fragment():
    def step():
        sizes = [3 * MB + 17, 256, 7 * MB, 100_000, 2 * MB]
        kept = [torch.empty(s, dtype=torch.uint8, device="neuron") for s in sizes]
        del kept[::2]
        return torch.empty(5 * MB, dtype=torch.uint8, device="neuron")

    step()
    reserved = neuron.memory_reserved()
    for _ in range(50):
        step()
    assert neuron.memory_reserved() == reserved


def test_stats_have_both_kinds_of_keys():
    tensor = torch.empty(MB, dtype=torch.uint8, device="neuron")
    stats = neuron.memory_stats(0)
    assert set(stats["allocated_bytes"]) == {"current", "peak", "allocated", "freed"}
    assert stats["allocated_bytes"]["current"] == stats["allocated_bytes.all.current"] >= MB
    for quantity in ("allocation", "segment", "active", "inactive_split", "reserved_bytes", "requested_bytes"):
        for pool in ("all", "small_pool", "large_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert stats[f"{quantity}.{pool}.{metric}"] >= 0
    for counter in ("num_alloc_retries", "num_ooms", "num_tensor_frees", "allocation_requests", "num_device_alloc"):
        assert stats[counter] >= 0
    assert stats["allocation_requests"] > 0
    del tensor


def test_accelerator_sees_the_same_numbers():
    tensor = torch.empty(MB, dtype=torch.uint8, device="neuron")
    assert torch.accelerator.memory_allocated() == neuron.memory_allocated()
    assert torch.accelerator.max_memory_allocated() == neuron.max_memory_allocated()
    assert torch.accelerator.memory_reserved() == neuron.memory_reserved()
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == neuron.memory_allocated()
    assert torch.accelerator.get_memory_info() == neuron.mem_get_info()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    del tensor


def test_accumulated_stats_reset():
    torch.empty(MB, dtype=torch.uint8, device="neuron")
    neuron.reset_accumulated_memory_stats()
    assert neuron.memory_stats()["allocated_bytes"]["allocated"] == 0
    torch.empty(MB, dtype=torch.uint8, device="neuron")
    assert neuron.memory_stats()["allocated_bytes"]["allocated"] >= MB


def test_each_device_has_its_own_memory():
    before = [neuron.memory_allocated(i) for i in range(4)]
    tensor = torch.empty(MB, dtype=torch.uint8, device="neuron:2")
    after = [neuron.memory_allocated(f"neuron:{i}") for i in range(4)]
    assert [a - b >= MB for a, b in zip(after, before, strict=True)] == [False, False, True, False]
    del tensor


def test_free_and_total():
    free, total = neuron.mem_get_info()
    assert 0 < free <= total
    tensor = torch.empty(32 * MB, dtype=torch.uint8, device="neuron")
    assert neuron.mem_get_info()[0] <= free - 32 * MB
    del tensor


def test_out_of_memory():
    total = neuron.mem_get_info()[1]
    ooms = neuron.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="memory"):
        torch.empty(total + MB, dtype=torch.uint8, device="neuron")
    assert neuron.memory_stats()["num_ooms"] == ooms + 1
    # The device is usable afterwards.
    assert torch.ones(3, device="neuron").tolist() == [1.0] * 3


def test_summary():
    tensor = torch.empty(2 * MB, dtype=torch.uint8, device="neuron")
    summary = neuron.memory_summary()
    assert "Memory of neuron:0" in summary
    assert "large pool" in summary
    assert "large pool" not in neuron.memory_summary(0, abbreviated=True)
    assert len({len(line) for line in summary.splitlines()}) == 1, "every line is as wide"
    del tensor


def test_nothing_is_started_by_asking(run_python):
    program = """
        import torch
        n = torch.neuron
        n.is_available(), n.device_count(), n.current_device(), n.get_device_properties(0), n.current_stream()
        n.memory_stats(), n.mem_get_info(), n.empty_cache(), n.Event(), n.synchronize()
        torch.manual_seed(1), n.manual_seed_all(3), n.get_rng_state(), torch.Generator("neuron")
        torch.accelerator.memory_stats(), torch.accelerator.current_stream()
        torch.profiler.profile(), torch.randn(3).sum().item(), torch.ones(2).is_pinned()
        assert not n.is_initialized()
        assert not torch.accelerator.memory_stats()
        torch.empty(1, device="neuron")
        assert n.is_initialized()
    """
    run_python(program)


def test_empty_tensors_take_no_memory():
    before = neuron.memory_allocated()
    tensors = [torch.empty(0, device="neuron"), torch.empty(3, 0, 2, device="neuron")]
    assert neuron.memory_allocated() == before
    assert [t.numel() for t in tensors] == [0, 0]
    assert all(t.device.index == 0 for t in tensors)


def test_storage_resize_keeps_what_fits():
    tensor = torch.arange(8, dtype=torch.uint8, device="neuron")
    storage = tensor.untyped_storage()
    storage.resize_(16)
    assert storage.nbytes() == 16
    assert tensor.tolist() == list(range(8))
    storage.resize_(4)
    assert tensor[:4].tolist() == list(range(4))


def test_storage_freed_and_allocated_again_as_fsdp_does():
    tensor = torch.ones(MB, device="neuron")
    before = neuron.memory_allocated()
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert neuron.memory_allocated() <= before - 4 * MB
    assert storage.data_ptr() == 0
    storage.resize_(4 * MB)
    tensor.fill_(2)
    assert tensor.sum().item() == 2 * MB
    assert tensor.device.index == 0


def test_tensors_larger_than_their_pool_of_views():
    base = torch.zeros(100, device="neuron")
    view = base[10:20]
    view.fill_(1)
    assert base.sum().item() == 10
    assert view.data_ptr() == base.data_ptr() + 40
    assert view.untyped_storage().data_ptr() == base.data_ptr()


# --- pinned host memory ---


def test_pinned_memory_is_the_devices():
    pinned = torch.arange(10.0).pin_memory()
    assert pinned.is_pinned()
    assert pinned.device.type == "cpu"
    assert not torch.arange(10.0).is_pinned()
    assert pinned[3:].is_pinned(), "views are pinned too"
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert pinned.tolist() == list(map(float, range(10)))


def test_non_blocking_copies_through_pinned_memory():
    source = torch.arange(100_000.0).pin_memory()
    for _ in range(10):
        on_device = source.to("neuron", non_blocking=True)
        back = torch.empty_like(source, device="cpu", pin_memory=True)
        back.copy_(on_device * 2, non_blocking=True)
        neuron.synchronize()
        assert torch.equal(back, source * 2)


def test_pinned_memory_is_not_reused_while_a_copy_reads_it():
    results = []
    for value in range(30):
        staging = torch.full((50_000,), float(value)).pin_memory()
        results.append(staging.to("neuron", non_blocking=True))
        del staging
    neuron.synchronize()
    for value, result in enumerate(results):
        assert (result == value).all()


def test_non_blocking_copies_from_pageable_memory():
    results = []
    for value in range(20):
        source = torch.full((10_000,), float(value))
        results.append(source.to("neuron", non_blocking=True))
        source.fill_(-1)
    for value, result in enumerate(results):
        assert (result == value).all()


def test_data_loader_pins_for_the_device():
    data = torch.utils.data.TensorDataset(torch.arange(16.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
    total = 0.0
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.to("neuron", non_blocking=True).sum().item()
    assert total == 120


def test_host_memory_stats():
    pinned = torch.empty(MB, dtype=torch.uint8, pin_memory=True)
    stats = neuron.host_memory_stats()
    assert stats["active_bytes.current"] >= MB
    assert stats["num_host_alloc"] >= 1
    del pinned
    torch.accelerator.empty_host_cache()
    assert neuron.host_memory_stats()["allocated_bytes.current"] <= stats["allocated_bytes.current"] - MB


def test_profiling_memory():
    with torch.profiler.profile(profile_memory=True) as profile:
        made = torch.ones(MB // 4, device="neuron").add(1)
        del made
    allocated = {e.name: e.device_memory_usage for e in profile.events()}
    assert allocated["aten::add"] >= MB
