"""Random numbers of the devices.

Every device has a Philox generator of its own. Its state is a CPU tensor of 16 bytes, a 64-bit seed and a 64-bit offset
in multiples of 4, as CUDA's; checkpointing, ``torch.random.fork_rng(device_type="neuron")`` and DTensor rely on it.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import _get_device_index


class _DefaultGenerators(Sequence):
    """The default generators of the devices, made when they are asked for."""

    def __len__(self) -> int:
        return _C.device_count()

    def __getitem__(self, index: int) -> torch.Generator:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} neuron devices, got index {index}")
        return _generator(index % len(self))

    def __iter__(self) -> Iterator[torch.Generator]:
        return map(_generator, range(len(self)))


default_generators = _DefaultGenerators()


def _generator(index: int) -> torch.Generator:
    return torch._C._accelerator_getDefaultGenerator(index)


def _get_generator(device: torch.types.Device = None) -> torch.Generator:
    return _generator(_get_device_index(device, optional=True))


def get_rng_state(device: torch.types.Device = "neuron") -> torch.Tensor:
    """The state of a device's generator, a CPU tensor of 16 bytes."""
    return _generator(_get_device_index(device, optional=True)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: torch.types.Device = "neuron") -> None:
    """Sets the state of a device's generator.

    8 bytes set the seed and an offset of 0; ``RuntimeError`` for other sizes.
    """
    state = new_state.to("cpu").clone(memory_format=torch.contiguous_format)
    _generator(_get_device_index(device, optional=True)).set_state(state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator. Starts nothing."""
    _generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices, which ``torch.manual_seed`` does too. Starts nothing."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    _generator(_C.current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    if len(default_generators):
        manual_seed_all(default_generators[0].seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(_C.current_device()).initial_seed()
