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

// Gives the calling thread a Python thread state until the thread ends, unless it has one. Every
// thread of this library calls it before it runs code that may take the GIL: callbacks of futures,
// and destructors of tensors, which may belong to a Python object.
//
// Otherwise, Python creates a state each time that the thread takes the GIL, under a lock of its
// own but without the GIL. Before 3.11.8, a child that is forked at that moment waits for this lock
// forever: https://github.com/python/cpython/issues/112275. On those versions, this function
// creates the state while no thread forks.
//
// The thread takes the GIL when it ends: do not join it while holding the GIL.
void keep_thread_state();

// Calls `body`, which may take the GIL, on a thread that keeps its thread state. Once Python
// finalizes, returns false without calling it: Python then ends each thread that requests the GIL
// by an exception, which terminates the process if it reaches a destructor.
bool before_python_ends(const std::function<void()>& body);

// Call it without the GIL when Python is about to finalize. Prevents further bodies of
// before_python_ends(), and waits for running ones, for at most a second.
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
