// Random numbers: Philox4x32-10 with a seed and an offset, laid out as CUDA's generator so that checkpoints, DTensor's
// offset tracker and fork_rng work unchanged.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace neuron {

// The generator that operators of a device use when none is given; -1: the current device.
const at::Generator& default_generator(c10::DeviceIndex device);

// An independent generator with the default seed; -1: the current device.
at::Generator new_generator(c10::DeviceIndex device);

// Takes `increment` values of the generator (the device's default one if none is given) and returns the seed and the
// offset to draw them at. Offsets are multiples of 4, the width of one Philox block. Thread-safe.
std::pair<uint64_t, uint64_t> reserve_philox(
    const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint64_t increment);

} // namespace neuron
