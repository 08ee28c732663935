// What the extension module runs when it is loaded, once its static registrations are in place.
#include "module.h"

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
