"""Streams and events."""

import threading
import time

import pytest
import torch

neuron = torch.neuron
MILLISECOND = 1_400_000  # cycles


def busy(size=600):
    """Work that takes a while, on the current stream."""
    x = torch.rand(size, size, device="neuron")
    for _ in range(4):
        x = x @ x
        x = x / x.abs().max()
    return x


def test_streams_are_torch_streams():
    stream = neuron.Stream()
    assert isinstance(stream, torch.Stream)
    assert isinstance(neuron.current_stream(), neuron.Stream)
    assert stream.device == torch.device("neuron:0")
    assert stream != neuron.current_stream()
    assert neuron.Stream(device="neuron:1").device_index == 1
    assert torch.Stream(device="neuron").device.type == "neuron"


def test_equality_hash_and_reconstruction():
    stream = neuron.Stream()
    again = neuron.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
    assert stream == again
    assert hash(stream) == hash(again)
    assert stream != neuron.default_stream()
    assert len({stream, again, neuron.default_stream()}) == 2
    assert "neuron:0" in repr(stream)


def test_priorities():
    assert neuron.Stream().priority == 0
    assert neuron.Stream(priority=-1).priority == -1
    assert neuron.default_stream().priority == 0


def test_default_and_current_streams():
    assert neuron.current_stream() == neuron.default_stream()
    assert neuron.current_stream().stream_id == 0
    assert neuron.default_stream(2).device_index == 2
    stream = neuron.Stream()
    neuron.set_stream(stream)
    assert neuron.current_stream() == stream == torch.accelerator.current_stream()
    neuron.set_stream(None)
    assert neuron.current_stream() == stream


def test_stream_context_nests_and_restores():
    outer, inner = neuron.Stream(), neuron.Stream()
    with neuron.stream(outer):
        with neuron.stream(inner):
            assert neuron.current_stream() == inner
        assert neuron.current_stream() == outer
        with neuron.stream(None):
            assert neuron.current_stream() == outer
        with pytest.raises(KeyError), neuron.StreamContext(inner):
            raise KeyError
        assert neuron.current_stream() == outer
    assert neuron.current_stream() == neuron.default_stream()


def test_stream_context_of_another_device():
    with neuron.stream(neuron.Stream(device=1)):
        assert neuron.current_device() == 1
        assert torch.empty(1, device="neuron").device.index == 1
    assert neuron.current_device() == 0
    assert neuron.current_stream(1) == neuron.default_stream(1)


def test_torch_streams_are_context_managers():
    with torch.Stream(device="neuron") as stream:
        assert torch.accelerator.current_stream() == stream
    assert neuron.current_stream() == neuron.default_stream()


def test_set_stream_refuses_other_devices():
    with pytest.raises(ValueError, match="neuron device"):
        neuron.set_stream(torch.Stream(stream_id=0, device_index=0, device_type=1))


def test_the_current_stream_is_of_the_thread():
    neuron.set_stream(neuron.Stream())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(neuron.current_stream()))
    thread.start()
    thread.join()
    assert seen == [neuron.default_stream()]


def test_query_and_synchronize():
    stream = neuron.Stream()
    with neuron.stream(stream):
        result = busy()
    stream.synchronize()
    assert stream.query()
    assert neuron.query()
    torch.accelerator.synchronize()
    neuron.synchronize("neuron:0")
    assert torch.isfinite(result.cpu()).all()


def test_events_order_streams():
    producer, consumer = neuron.Stream(), neuron.Stream()
    for _ in range(20):
        with neuron.stream(producer):
            made = busy(100) * 0 + 7
            event = producer.record_event()
        with neuron.stream(consumer):
            consumer.wait_event(event)
            seen = made.clone()
            made.record_stream(consumer)
        consumer.synchronize()
        assert (seen == 7).all()


def test_wait_stream():
    producer = neuron.Stream()
    with neuron.stream(producer):
        made = busy(200) * 0 + 3
    neuron.current_stream().wait_stream(producer)
    assert (made.clone() == 3).all()
    neuron.wait_stream(producer)
    event = neuron.record_event()
    neuron.wait_event(event)
    event.synchronize()
    assert event.query()


def test_streams_of_different_devices_wait_for_each_other():
    with neuron.device(1):
        made = torch.full((1000,), 5.0, device="neuron")
        event = neuron.current_stream().record_event()
    neuron.current_stream(0).wait_event(event)
    assert made.to("neuron:0").tolist() == [5.0] * 1000


def test_recording_on_the_accelerators_stream():
    event = torch.Event(device="neuron")
    event.record(torch.accelerator.current_stream())
    event.synchronize()
    assert event.query()


def test_an_event_that_was_never_recorded():
    event = neuron.Event()
    assert isinstance(event, torch.Event)
    assert event.query()
    event.wait()
    event.synchronize()
    assert "neuron" in repr(event)
    assert event.device == torch.device("neuron")
    with pytest.raises(ValueError, match="recorded"):
        neuron.Event(enable_timing=True).elapsed_time(neuron.Event(enable_timing=True))


@pytest.mark.parametrize("milliseconds", [30, 120])
def test_elapsed_time_is_the_devices(milliseconds):
    start, end = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    begin = time.perf_counter()
    start.record()
    neuron._sleep(milliseconds * MILLISECOND)
    end.record()
    end.synchronize()
    wall = (time.perf_counter() - begin) * 1e3
    elapsed = start.elapsed_time(end)
    assert milliseconds <= elapsed <= wall * 1.01
    assert end.elapsed_time(start) == pytest.approx(-elapsed)
    assert isinstance(elapsed, float)


def test_elapsed_time_between_classes():
    start, end = torch.Event("neuron", enable_timing=True), neuron.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert neuron.Event.elapsed_time(start, end) >= 0


def test_recording_does_not_wait():
    begin = time.perf_counter()
    neuron._sleep(300 * MILLISECOND)
    event = neuron.current_stream().record_event()
    issued = time.perf_counter() - begin
    pending = not event.query()
    event.synchronize()
    assert issued < 0.25
    assert pending
    assert time.perf_counter() - begin >= 0.3


def test_elapsed_time_needs_timing():
    start, end = neuron.Event(), neuron.Event()
    start.record()
    end.record()
    end.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        start.elapsed_time(end)


def test_events_belong_to_one_device():
    event = neuron.Event()
    event.record()
    with pytest.raises(RuntimeError, match="does not match"):
        event.record(neuron.default_stream(1))


def test_interprocess_events_are_refused():
    with pytest.raises(ValueError, match="between processes"):
        neuron.Event(interprocess=True)


def test_record_stream_keeps_memory_until_the_stream_is_done():
    stream = neuron.Stream()
    for _ in range(20):
        tensor = torch.full((1 << 16,), 9.0, device="neuron")
        stream.wait_stream(neuron.current_stream())
        with neuron.stream(stream):
            busy(200)
            seen = tensor.clone()
            tensor.record_stream(stream)
        del tensor
        # What is allocated now must not be the memory that `seen` is still being copied from.
        for _ in range(4):
            torch.full((1 << 16,), -1.0, device="neuron")
        stream.synchronize()
        assert (seen == 9).all()


def test_many_streams_from_the_pool():
    streams = [neuron.Stream() for _ in range(100)]
    results = []
    for index, stream in enumerate(streams):
        with neuron.stream(stream):
            results.append(torch.full((10,), index, device="neuron"))
    neuron.synchronize()
    assert [r[0].item() for r in results] == list(range(100))
    assert neuron.default_stream() not in streams


def test_threads_with_streams_of_their_own():
    def work(index):
        with neuron.stream(neuron.Stream()):
            for _ in range(10):
                results[index] = torch.full((100,), float(index), device="neuron").sum().item()

    results = [None] * 8
    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [100.0 * index for index in range(8)]


def test_waiting_gives_way_to_other_threads():
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    neuron._sleep(300 * MILLISECOND)
    neuron.synchronize()
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(begin < t < end for t in ticks) > 5


def test_fsdp_makes_its_streams_through_the_module():
    handle = torch.get_device_module("neuron")
    streams = [handle.Stream(priority=-1) for _ in range(4)]
    event = streams[0].record_event()
    streams[1].wait_event(event)
    with handle.stream(streams[2]):
        assert handle.current_stream() == streams[2]
    handle.current_stream().wait_stream(streams[2])


def test_native_handle():
    assert neuron.Stream().native_handle is not None
