// What ATen asks any accelerator.
#include "hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include "allocator.h"
#include "errors.h"
#include "generator.h"

namespace neuron {
namespace {

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return neuron_device_count() > 0;
  }

  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return neuron_is_initialized();
  }

  // PyTorch calls this for as little as looking at a generator: the runtime starts with the first memory or work.
  void init() const override {
    check(neuron_in_bad_fork() ? neuron_init() : NEURON_OK);
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(neuron_device_count());
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(neuron_current_device());
  }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    check(neuron_set_device(device));
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = getCurrentDevice();
    setCurrentDevice(device);
    return previous;
  }

  // A negative index leaves the device as it is.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex previous = getCurrentDevice();
    if (device >= 0) {
      setCurrentDevice(device);
    }
    return previous;
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device);
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    const int32_t device = neuron_device_of(data);
    TORCH_CHECK(device >= 0, "The address ", data, " is not neuron device memory");
    return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)};
  }

  bool isPinnedPtr(const void* data) const override {
    return neuron_host_is_pinned(data);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return at::getHostAllocator(c10::DeviceType::PrivateUse1);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    const c10::Device device = storage.device();
    const c10::DeviceGuard guard(device);
    c10::DataPtr resized = c10::GetAllocator(device.type())->allocate(size);
    const size_t kept = std::min(size, storage.nbytes());
    if (kept > 0) {
      copy_bytes(resized.get(), storage.data(), kept);
      // The old block may belong to another stream, and is freed before the copy has run.
      check(neuron_record_stream(storage.mutable_data(), device.index(), neuron_current_stream(device.index())));
    }
    impl->set_data_ptr_noswap(std::move(resized));
    impl->set_nbytes(size);
  }
};

} // namespace

void register_hooks() {
  // PyTorch keeps the pointer until the process ends.
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks());
}

} // namespace neuron
