"""Streams order work of a device; events mark points in them."""

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import _get_device_index
from torch_neuronx.neuron.devices import _exchange_device


class Stream(torch.Stream):
    """A queue of work of one device, executed in the order it was issued.

    Args:
        device: where; the current device if ``None``.
        priority: negative for high, 0 for normal priority.

    Streams come from a pool, round robin: after many, two of them are the same queue. Also constructed from
    ``stream_id``, ``device_index`` and ``device_type``, for a stream that exists.
    """

    def __new__(cls, device: torch.types.Device = None, priority: int = 0, **kwargs: int) -> "Stream":
        if kwargs:
            return super().__new__(cls, **kwargs)
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("neuron", index), priority=priority)

    @classmethod
    def _of(cls, stream: torch.Stream) -> "Stream":
        return cls(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    @property
    def priority(self) -> int:
        """Negative for high, 0 for normal priority."""
        return _C.stream_priority(self.stream_id)

    def wait_event(self, event: torch.Event) -> None:
        """Work issued to this stream from now on waits for ``event``. Does not block the host."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Work issued to this stream from now on waits for all work of ``stream`` so far. Does not block the host."""
        event = Event()
        event.record(stream)
        event.wait(self)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Marks the work issued to this stream so far with ``event``, a new one if ``None``, and returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.neuron.Stream(device={self.device}, stream_id={self.stream_id:#x})"


class Event(torch.Event):
    """A mark in a stream that the host and other streams can wait for.

    Args:
        enable_timing: whether :meth:`elapsed_time` may be asked.
        blocking: accepted for compatibility; waiting always parks the thread after a short spin.
        interprocess: not supported, ``ValueError``.

    An event belongs to the device it is first recorded on; before, its ``device`` has no index.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        if interprocess:
            raise ValueError("neuron events cannot be shared between processes")
        return super().__new__(cls, torch.device("neuron"), enable_timing=enable_timing, blocking=blocking)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks the work issued to ``stream`` so far; the current stream if ``None``."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Work issued to ``stream`` from now on waits for this event. Does not block the host."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds of device time from this event to ``end_event``.

        ``ValueError`` unless both were made with ``enable_timing=True`` and recorded; ``RuntimeError`` if the devices
        differ or the work before them still runs.
        """
        return _C.elapsed_time(self, end_event)

    def __repr__(self) -> str:
        return f"torch.neuron.Event(device={self.device}, event_id={self.event_id:#x})"


class StreamContext:
    """Context manager: ``stream`` and its device are current inside. ``None`` changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, Stream]] = []

    def __enter__(self) -> "StreamContext":
        if self.stream is not None:
            device = _exchange_device(self.stream.device_index)
            self._previous.append((device, current_stream(self.stream.device_index)))
            set_stream(self.stream)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            device, stream = self._previous.pop()
            set_stream(stream)
            _exchange_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: ``stream`` and its device are current inside. ``None`` changes nothing."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` and its device current for the calling thread. ``None`` changes nothing."""
    if stream is not None:
        if stream.device.type != "neuron":
            raise ValueError(f"Expected a stream of a neuron device, but got one of {stream.device}")
        torch._C._accelerator_setStream(stream)
        _exchange_device(stream.device_index)


def current_stream(device: torch.types.Device = None) -> Stream:
    """The calling thread's current stream of a device."""
    return Stream._of(torch._C._accelerator_getStream(_get_device_index(device, optional=True)))


def default_stream(device: torch.types.Device = None) -> Stream:
    """The stream that is current unless another one is made so."""
    template = torch._C._accelerator_getStream(_get_device_index(device, optional=True))
    return Stream(stream_id=0, device_index=template.device_index, device_type=template.device_type)


def synchronize(device: torch.types.Device = None) -> None:
    """Waits for all work of a device, and raises the error of work that failed. Ctrl-C ends the wait."""
    torch._C._accelerator_synchronizeDevice(_get_device_index(device, optional=True))


def _sleep(cycles: int) -> None:
    """Occupies the current stream for so many cycles of 1.4 GHz. Does not block the host; for tests of ordering."""
    _C.sleep(cycles)


def wait_stream(stream: torch.Stream) -> None:
    """``current_stream().wait_stream(stream)``"""
    current_stream().wait_stream(stream)


def wait_event(event: torch.Event) -> None:
    """``current_stream().wait_event(event)``"""
    current_stream().wait_event(event)


def record_event(event: torch.Event | None = None) -> torch.Event:
    """``current_stream().record_event(event)``"""
    return current_stream().record_event(event)


def query() -> bool:
    """True if all work of the current stream is done."""
    return current_stream().query()
