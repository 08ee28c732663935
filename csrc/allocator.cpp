// Device memory as c10 sees it. May run with or without the interpreter's lock, and never takes it.
#include "allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "errors.h"

namespace neuron {
namespace {

c10::CachingAllocator::Stat stat(const NeuronStat& from) {
  c10::CachingAllocator::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

c10::CachingAllocator::StatArray pools(const NeuronStat (&from)[3]) {
  return {stat(from[0]), stat(from[1]), stat(from[2])};
}

// Zeros where there is no such device: freeing must not throw.
NeuronMemoryStats stats_or_zeros(int32_t device) noexcept {
  NeuronMemoryStats stats{};
  return neuron_memory_stats(device, &stats) == NEURON_OK ? stats : NeuronMemoryStats{};
}

void report(void* address, int64_t size, int32_t device) {
  const NeuronMemoryStats stats = stats_or_zeros(device);
  c10::reportMemoryUsageToProfiler(
      address, size, static_cast<size_t>(stats.allocated_bytes[0].current),
      static_cast<size_t>(stats.reserved_bytes[0].current),
      {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)});
}

void free_block(void* address) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) {
    neuron_free(address);
    return;
  }
  const int32_t device = neuron_device_of(address);
  const int64_t before = stats_or_zeros(device).allocated_bytes[0].current;
  neuron_free(address);
  report(address, stats_or_zeros(device).allocated_bytes[0].current - before, device);
}

struct NeuronAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    return allocate_block(size, static_cast<c10::DeviceIndex>(neuron_current_device()));
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_block;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    copy_bytes(to, from, count);
  }

  bool initialized() override {
    return neuron_is_initialized();
  }

  void emptyCache(c10::MempoolId_t) override {
    check(neuron_empty_cache(-1));
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    // Memory that came from elsewhere (from_blob, DLPack) is not the allocator's to keep.
    if (neuron_device_of(data.get()) >= 0) {
      check(neuron_record_stream(data.get(), stream.device_index(), static_cast<uint64_t>(stream.id())));
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    NeuronMemoryStats from;
    check(neuron_memory_stats(device, &from));
    c10::CachingDeviceAllocator::DeviceStats to;
    to.allocation = pools(from.allocation);
    to.segment = pools(from.segment);
    to.active = pools(from.active);
    to.inactive_split = pools(from.inactive_split);
    to.allocated_bytes = pools(from.allocated_bytes);
    to.reserved_bytes = pools(from.reserved_bytes);
    to.active_bytes = pools(from.active_bytes);
    to.inactive_split_bytes = pools(from.inactive_split_bytes);
    to.requested_bytes = pools(from.requested_bytes);
    to.num_alloc_retries = from.num_alloc_retries;
    to.num_ooms = from.num_ooms;
    to.num_device_alloc = from.num_device_alloc;
    to.num_device_free = from.num_device_free;
    to.max_split_size = from.max_split_size;
    return to;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check(neuron_reset_accumulated_stats(device));
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    check(neuron_reset_peak_stats(device));
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    uint64_t available = 0;
    uint64_t total = 0;
    check(neuron_memory_info(device, &available, &total));
    return {available, total};
  }
};

NeuronAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

at::Tensor bytes_at(void* address, size_t count) {
  const c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(neuron_device_of(address)));
  return at::for_blob(address, {static_cast<int64_t>(count)})
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

} // namespace

c10::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device) {
  void* address = nullptr;
  check(neuron_alloc(device, neuron_current_stream(device), bytes, &address));
  if (C10_UNLIKELY(c10::memoryProfilingEnabled()) && address != nullptr) {
    report(address, static_cast<int64_t>(bytes), device);
  }
  return {address, address, &free_block, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

void copy_bytes(void* to, const void* from, size_t count) {
  if (count > 0) {
    bytes_at(to, count).copy_(bytes_at(const_cast<void*>(from), count), /*non_blocking=*/true);
  }
}
} // namespace neuron
