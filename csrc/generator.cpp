#include "generator.h"

#include <ATen/Functions.h>
#include <ATen/Utils.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <deque>
#include <mutex>

#include "errors.h"

namespace neuron {
namespace {

constexpr uint64_t block = 4;

// Shared between generators by graphsafe_get_state; locked by itself because not every caller locks the generator.
struct PhiloxState final : c10::intrusive_ptr_target {
  mutable std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

struct NeuronGenerator final : c10::GeneratorImpl {
  explicit NeuronGenerator(
      c10::DeviceIndex device, c10::intrusive_ptr<PhiloxState> state = c10::make_intrusive<PhiloxState>())
      : c10::GeneratorImpl(
            c10::Device(c10::DeviceType::PrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        state_(std::move(state)) {}

  static c10::DeviceType device_type() {
    return c10::DeviceType::PrivateUse1;
  }

  void set_current_seed(uint64_t seed) override {
    const std::lock_guard lock(state_->mutex);
    state_->seed = seed;
    state_->offset = 0;
  }

  uint64_t current_seed() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->seed;
  }

  uint64_t seed() override {
    const uint64_t random = c10::detail::getNonDeterministicRandom(true);
    set_current_seed(random);
    return random;
  }

  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % block == 0, "offset must be a multiple of 4, got ", offset);
    const std::lock_guard lock(state_->mutex);
    state_->offset = offset;
  }

  uint64_t get_offset() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->offset;
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    uint64_t words[2];
    {
      const std::lock_guard lock(state_->mutex);
      words[0] = state_->seed;
      words[1] = state_->offset;
    }
    at::Tensor tensor = at::empty({sizeof(words)}, at::TensorOptions().device(at::kCPU).dtype(at::kByte));
    std::memcpy(tensor.mutable_data_ptr(), words, sizeof(words));
    return tensor.getIntrusivePtr();
  }

  // 16 bytes: seed and offset. 8 bytes: the seed alone, as older checkpoints have it.
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    uint64_t words[2] = {0, 0};
    TORCH_CHECK(
        state.numel() == sizeof(words) || state.numel() == sizeof(words[0]),
        "RNG state is wrong size: expected 16 or 8 bytes, got ", state.numel());
    std::memcpy(words, state.data(), static_cast<size_t>(state.numel()));
    TORCH_CHECK(words[1] % block == 0, "RNG state is wrong: the offset must be a multiple of 4, got ", words[1]);
    const std::lock_guard lock(state_->mutex);
    state_->seed = words[0];
    state_->offset = words[1];
  }

  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* generator = dynamic_cast<NeuronGenerator*>(other.get());
    TORCH_CHECK(generator != nullptr, "Expected the state of a neuron generator");
    state_ = generator->state_;
  }

  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<NeuronGenerator>(device().index(), state_);
  }

  void philox_state(uint64_t increment, at::Tensor& seed, at::Tensor& offset, at::Tensor& intragraph) override {
    const auto [s, o] = reserve(increment);
    const auto word = [](uint64_t bits) { return at::full({1}, static_cast<int64_t>(bits), at::kLong); };
    seed = word(s);
    offset = word(o);
    intragraph = word(0);
  }

  std::pair<uint64_t, uint64_t> reserve(uint64_t increment) {
    const std::lock_guard lock(state_->mutex);
    const uint64_t offset = state_->offset;
    state_->offset += (increment / block + (increment % block != 0)) * block;
    return {state_->seed, offset};
  }

 private:
  NeuronGenerator* clone_impl() const override {
    auto copy = c10::make_intrusive<PhiloxState>();
    {
      const std::lock_guard lock(state_->mutex);
      copy->seed = state_->seed;
      copy->offset = state_->offset;
    }
    return new NeuronGenerator(device().index(), std::move(copy));
  }

  c10::intrusive_ptr<PhiloxState> state_;
};

c10::DeviceIndex checked(c10::DeviceIndex device) {
  const int32_t index = device == -1 ? neuron_current_device() : device;
  check(neuron_check_device(index));
  return static_cast<c10::DeviceIndex>(index);
}

} // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  // A deque, because references to generators must survive its growth. Never destroyed: Python may outlive it.
  static auto& generators = *new std::deque<at::Generator>();
  const auto index = static_cast<size_t>(checked(device));
  const std::lock_guard lock(mutex);
  while (generators.size() <= index) {
    auto generator = at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(generators.size()));
    generator.seed();
    generators.push_back(std::move(generator));
  }
  return generators[index];
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<NeuronGenerator>(checked(device));
}

std::pair<uint64_t, uint64_t> reserve_philox(
    const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint64_t increment) {
  return at::get_generator_or_default<NeuronGenerator>(generator, default_generator(device))->reserve(increment);
}

} // namespace neuron
