// Converts Errors to Python's lockstep.Error, with attributes for the fault and the lost rank.
//
// LibTorch passes Python exceptions through, but turns other C++ exceptions into RuntimeError.
//
// Thread safety: any thread, with or without the GIL, which is taken briefly.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace lockstep::c10d {

// Returns other exceptions unchanged.
std::exception_ptr in_python(const std::exception_ptr& error);

// On Python's main thread, runs the handlers of pending signals and throws their exceptions, such
// as KeyboardInterrupt.
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

}  // namespace lockstep::c10d
