// Errors of this library as Python sees them: lockstep.Error, with the fault and what is known of
// the lost rank as attributes.
//
// An Error becomes an exception of Python before it reaches LibTorch. LibTorch hands such an
// exception through unchanged, also out of backward(), where it would turn a C++ exception of
// another type into a RuntimeError.
//
// Thread safety: any thread may call any function, with or without the GIL, which is taken for a
// moment.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

namespace lockstep::c10d {

// Returns an Error as its exception of Python, any other exception as it is.
std::exception_ptr in_python(const std::exception_ptr& error);

// Throws KeyboardInterrupt, or whatever else Python's handler of a signal raises, if a signal waits
// for that. On Python's main thread; others return.
void throw_if_interrupted();

[[noreturn]] void rethrow_in_python(const std::exception_ptr& error);

// Calls `act`, whose Errors are thrown as exceptions of Python.
template <class Act>
auto throwing_in_python(const Act& act) {
  try {
    return act();
  } catch (...) {
    rethrow_in_python(std::current_exception());
  }
}

}  // namespace lockstep::c10d
