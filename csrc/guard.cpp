// Devices, streams and events as c10 sees them; torch.Stream, torch.Event and torch.accelerator rest on this.
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "errors.h"

namespace neuron {
namespace {

c10::Device device(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index};
}

c10::Stream stream_of(c10::DeviceIndex index, uint64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, device(index), static_cast<c10::StreamId>(id));
}

uint64_t id_of(const c10::Stream& stream) {
  return static_cast<uint64_t>(stream.id());
}

// Devices without an index are the current one.
c10::DeviceIndex index_of(c10::Device d) {
  TORCH_CHECK(d.type() == c10::DeviceType::PrivateUse1, "Expected a neuron device, got ", d);
  return d.has_index() ? d.index() : static_cast<c10::DeviceIndex>(neuron_current_device());
}

struct NeuronGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::DeviceType::PrivateUse1;
  }

  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device previous = getDevice();
    if (d.has_index() && d.index() != previous.index()) {
      setDevice(d);
    }
    return previous;
  }

  c10::Device getDevice() const override {
    return device(static_cast<c10::DeviceIndex>(neuron_current_device()));
  }

  void setDevice(c10::Device d) const override {
    check(neuron_set_device(index_of(d)));
  }

  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) {
      // Guards restore a device that was current before, so this cannot fail; a destructor could not report it.
      static_cast<void>(neuron_set_device(d.index()));
    }
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(neuron_device_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device d) const override {
    check(neuron_check_device(index_of(d)));
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& types = capability.capability_data.supported_scalar_types;
    types.has_Byte = types.has_Char = types.has_Short = types.has_Int = types.has_Long = 1;
    types.has_Half = types.has_BFloat16 = types.has_Float = types.has_Double = types.has_Bool = 1;
    return capability;
  }

  // --- streams ---

  c10::Stream getStream(c10::Device d) const override {
    const c10::DeviceIndex index = index_of(d);
    return stream_of(index, neuron_current_stream(index));
  }

  c10::Stream getDefaultStream(c10::Device d) const override {
    return stream_of(index_of(d), 0);
  }

  c10::Stream getStreamFromGlobalPool(c10::Device d, bool high_priority) const override {
    return getNewStream(d, high_priority ? -1 : 0);
  }

  c10::Stream getNewStream(c10::Device d, int priority) const override {
    const c10::DeviceIndex index = index_of(d);
    uint64_t id = 0;
    check(neuron_stream_new(index, priority, &id));
    return stream_of(index, id);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    check(neuron_set_current_stream(stream.device_index(), id_of(stream)));
    return previous;
  }

  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(id_of(stream));
  }

  bool queryStream(const c10::Stream& stream) const override {
    bool done = false;
    check(neuron_stream_query(stream.device_index(), id_of(stream), &done));
    return done;
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    check_waiting([&] { return neuron_stream_synchronize(stream.device_index(), id_of(stream)); });
  }

  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const c10::DeviceIndex target = index_of(device(index));
    check_waiting([&] { return neuron_device_synchronize(target); });
  }

  bool isStreamCapturing(const c10::Stream&) const override {
    return false;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    // Memory that came from elsewhere (from_blob, DLPack) is not the allocator's to keep.
    if (neuron_device_of(data.get()) >= 0) {
      check(neuron_record_stream(data.get(), stream.device_index(), id_of(stream)));
    }
  }

  // --- events ---

  void record(
      void** event, const c10::Stream& stream, const c10::DeviceIndex index, const c10::EventFlag flag) const override {
    if (*event == nullptr) {
      NeuronEvent* created = nullptr;
      check(neuron_event_create(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT, &created));
      *event = created;
    }
    check(neuron_event_record(static_cast<NeuronEvent*>(*event), stream.device_index(), id_of(stream)));
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      check(neuron_event_block(static_cast<NeuronEvent*>(event), stream.device_index(), id_of(stream)));
    }
  }

  bool queryEvent(void* event) const override {
    bool done = true;
    if (event != nullptr) {
      check(neuron_event_query(static_cast<NeuronEvent*>(event), &done));
    }
    return done;
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      check_waiting([&] { return neuron_event_synchronize(static_cast<NeuronEvent*>(event)); });
    }
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr, "Both events must be recorded before the time between them is known");
    double milliseconds = 0;
    check_waiting([&] {
      return neuron_event_elapsed(static_cast<NeuronEvent*>(start), static_cast<NeuronEvent*>(end), &milliseconds);
    });
    return milliseconds;
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    neuron_event_destroy(static_cast<NeuronEvent*>(event));
  }
};

} // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuardImpl)

} // namespace neuron
