// What the extension module runs when it is loaded, once its static registrations are in place.
#include "module.h"

#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>

#include "errors.h"
#include "hooks.h"
#include "register.h"

extern "C" bool neuron_glue_initialize() {
  HANDLE_TH_ERRORS
  neuron::register_hooks();
  neuron::install_interrupt_check();
  neuron::register_operators();
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

extern "C" PyObject* neuron_elapsed_time(PyObject* start, PyObject* end) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(THPEvent_Check(start) && THPEvent_Check(end), "expected two torch.Event objects");
  const auto& from = reinterpret_cast<THPEvent*>(start)->event;
  return PyFloat_FromDouble(from.elapsedTime(reinterpret_cast<THPEvent*>(end)->event));
  END_HANDLE_TH_ERRORS
}
