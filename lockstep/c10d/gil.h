// Python's global interpreter lock (GIL) and Python's thread states.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>

namespace lockstep::c10d {

// While it exists, its thread does not hold the GIL, even if it did before.
class WithoutGil {
 public:
  WithoutGil() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const saved_;
};

// Gives this thread a Python thread state until it ends. Every thread of this library calls it
// before code that may take the GIL, such as callbacks and destructors of tensors. The thread takes
// the GIL when it ends: do not join it while holding the GIL.
//
// Otherwise, Python creates a state each time. Before 3.11.8, a child that is forked at that moment
// waits forever: https://github.com/python/cpython/issues/112275. Before 3.12, the state is created
// while no thread forks.
void keep_thread_state();

// Calls `body` after keep_thread_state(). False, without a call, once Python finalizes: Python then
// ends threads that request the GIL by an exception, which in a destructor terminates the process.
bool before_python_ends(const std::function<void()>& body);

// Call it without the GIL before Python finalizes. Prevents further bodies of before_python_ends(),
// and waits up to a second for running ones.
void expect_end_of_python();

// While it exists, its thread holds the GIL. Keeps the thread state.
class WithGil {
 private:
  struct Kept {
    Kept() { keep_thread_state(); }
  };

  Kept kept_;  // Must be the first member.
  py::gil_scoped_acquire gil_;
};

}  // namespace lockstep::c10d
