// Converts Errors to Python's lockstep.Error.
//
// LibTorch passes Python exceptions through, but converts other C++ exceptions to RuntimeError.
//
// Thread safety: any thread, with or without the GIL.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace lockstep::torch_backend {

// Returns other exceptions unchanged.
std::exception_ptr in_python(const std::exception_ptr& error);

// On Python's main thread, runs handlers of pending signals and throws their exceptions, such as
// KeyboardInterrupt.
void throw_if_interrupted();

[[noreturn]] void rethrow_in_python(const std::exception_ptr& error);

template <class Act>
auto throwing_in_python(const Act& act) {
  try {
    return act();
  } catch (...) {
    rethrow_in_python(std::current_exception());
  }
}

}  // namespace lockstep::torch_backend
