"""What happens when ``torch.multiprocessing`` meets a neuron tensor."""

from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions


def _reduce_untyped_storage(storage: torch.UntypedStorage) -> tuple:
    if storage.device.type == "neuron":
        raise RuntimeError(
            f"Cannot send a tensor on {storage.device} to another process: device memory belongs to the process that "
            "allocated it. Send `tensor.cpu()` and move it to the device on the other side."
        )
    return reductions.reduce_storage(storage)


def register() -> None:
    """Every tensor and storage is pickled as an untyped storage in the end, so this one place suffices."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_untyped_storage)
