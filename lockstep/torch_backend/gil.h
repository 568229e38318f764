// Python's global interpreter lock (GIL) and thread states.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>

namespace lockstep::torch_backend {

// While it exists, its thread does not hold the GIL.
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

// Gives this thread a Python thread state until the thread ends. This library's threads call it
// before code that may take the GIL, such as callbacks and destructors of tensors. The thread takes
// the GIL when it ends: do not join it while holding the GIL.
//
// Otherwise, Python creates a state each time this thread takes the GIL. Before 3.11.8, a child
// forked at that moment waits forever: https://github.com/python/cpython/issues/112275. Before
// 3.12, fork() waits while this function creates the state.
void keep_thread_state();

// Calls `body` after keep_thread_state(). After expect_end_of_python(), or once Python finalizes,
// returns false without a call. Python then unwinds threads that request the GIL, which in a
// destructor terminates the process.
bool before_python_ends(const std::function<void()>& body);

// Call it without the GIL before Python finalizes. Prevents further before_python_ends() bodies,
// and waits up to a second for running ones.
void expect_end_of_python();

// Holds the GIL and keeps the thread state.
class WithGil {
 private:
  struct Kept {
    Kept() { keep_thread_state(); }
  };

  Kept kept_;  // Must be the first member.
  py::gil_scoped_acquire gil_;
};

}  // namespace lockstep::torch_backend
