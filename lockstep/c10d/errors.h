// Converts Errors to Python's lockstep.Error, with attributes for the fault and the lost rank.
//
// An Error is converted before it reaches LibTorch. LibTorch passes Python exceptions through
// unchanged, also out of backward(), but turns unknown C++ exceptions into RuntimeError.
//
// Thread safety: any thread may call any function, with or without the GIL, which is acquired
// briefly.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace lockstep::c10d {

// Converts an Error to its Python exception. Returns other exceptions unchanged.
std::exception_ptr in_python(const std::exception_ptr& error);

// On Python's main thread: runs the handlers of pending signals, and throws what they raise, such
// as KeyboardInterrupt. Does nothing on other threads.
void throw_if_interrupted();

[[noreturn]] void rethrow_in_python(const std::exception_ptr& error);

// Calls `act`, and throws its Errors as Python exceptions.
template <class Act>
auto throwing_in_python(const Act& act) {
  try {
    return act();
  } catch (...) {
    rethrow_in_python(std::current_exception());
  }
}

}  // namespace lockstep::c10d
