#include "errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

namespace neuron {
namespace {

bool holds_interpreter() {
  return Py_IsInitialized() && PyGILState_Check();
}

// Called by a waiting thread every now and then. Python runs signal handlers in its main thread only; elsewhere this
// finds nothing to do.
int interrupted() {
  if (!Py_IsInitialized()) {
    return 0;
  }
  const PyGILState_STATE held = PyGILState_Ensure();
  const int raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(held);
  return raised;
}

} // namespace

void raise(NeuronStatus status) {
  const char* message = neuron_error_message();
  switch (status) {
    case NEURON_INDEX_ERROR:
      C10_THROW_ERROR(IndexError, message);
    case NEURON_VALUE_ERROR:
      C10_THROW_ERROR(ValueError, message);
    case NEURON_TYPE_ERROR:
      C10_THROW_ERROR(TypeError, message);
    case NEURON_NOT_IMPLEMENTED:
    case NEURON_UNSUPPORTED:
      C10_THROW_ERROR(NotImplementedError, message);
    case NEURON_OUT_OF_MEMORY:
      C10_THROW_ERROR(OutOfMemoryError, message);
    case NEURON_INTERRUPTED:
      // The handler's exception is pending in this thread.
      torch::throw_python_error();
    case NEURON_OK:
    case NEURON_ERROR:
      break;
  }
  C10_THROW_ERROR(Error, message);
}

ReleaseInterpreter::ReleaseInterpreter() : thread_state_(holds_interpreter() ? PyEval_SaveThread() : nullptr) {}

ReleaseInterpreter::~ReleaseInterpreter() noexcept(false) {
  if (thread_state_ != nullptr) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(thread_state_));
  }
}

void install_interrupt_check() {
  neuron_set_interrupt_check(&interrupted);
}

} // namespace neuron
