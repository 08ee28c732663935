// How a failure of the runtime becomes a C++ exception, and how the host waits.
#pragma once

#include <c10/macros/Macros.h>

#include <utility>

#include "neuron.h"

namespace neuron {

// Throws what the status means, with the message of this thread's last failure.
[[noreturn]] void raise(NeuronStatus status);

inline void check(NeuronStatus status) {
  if (C10_UNLIKELY(status != NEURON_OK)) {
    raise(status);
  }
}

// Gives the interpreter to other threads while this one waits; does nothing in a thread that does not hold it.
class ReleaseInterpreter {
 public:
  ReleaseInterpreter();
  // Python ends a daemon thread that asks for the interpreter at exit, by unwinding it through here.
  ~ReleaseInterpreter() noexcept(false);
  ReleaseInterpreter(const ReleaseInterpreter&) = delete;
  ReleaseInterpreter& operator=(const ReleaseInterpreter&) = delete;

 private:
  void* thread_state_;
};

// For calls that may wait for the device.
template <class Call>
void check_waiting(Call&& call) {
  NeuronStatus status;
  {
    ReleaseInterpreter released;
    status = std::forward<Call>(call)();
  }
  check(status);
}

// Lets Ctrl-C end a wait.
void install_interrupt_check();

} // namespace neuron
