// Pinned host memory as ATen sees it: pin_memory, non-blocking copies, data loaders, offloading.
#include <ATen/core/CachingHostAllocator.h>

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

struct NeuronHostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t size) override {
    void* address = nullptr;
    if (size != 0) {
      check(neuron_host_alloc(size, &address));
    }
    return {address, address, &neuron_host_free, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &neuron_host_free;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  // True if the memory is this allocator's, so that it will wait for the stream before it is used again.
  bool record_event(void* address, void*, c10::Stream stream) override {
    if (!neuron_host_is_pinned(address)) {
      return false;
    }
    check(neuron_host_record(address, stream.device_index(), static_cast<uint64_t>(stream.id())));
    return true;
  }

  void empty_cache() override {
    check(neuron_host_empty_cache());
  }

  at::HostStats get_stats() override {
    NeuronHostStats from;
    check(neuron_host_stats(&from));
    at::HostStats to;
    to.active_requests = stat(from.allocations);
    to.active_bytes = stat(from.allocated_bytes);
    to.allocations = stat(from.segments);
    to.allocated_bytes = stat(from.reserved_bytes);
    to.num_host_alloc = from.num_host_alloc;
    to.num_host_free = from.num_host_free;
    return to;
  }

  void reset_accumulated_stats() override {
    neuron_host_reset_stats(false, true);
  }

  void reset_peak_stats() override {
    neuron_host_reset_stats(true, false);
  }
};

NeuronHostAllocator host_allocator;
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &host_allocator)

} // namespace
} // namespace neuron
