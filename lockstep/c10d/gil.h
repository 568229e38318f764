// Python's lock, which one thread holds while it runs Python's code, and the thread states that
// Python has of threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>

namespace lockstep::c10d {

// While it exists, its thread does not hold the GIL, whether it did before or not.
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

// Gives the calling thread a thread state of Python for the rest of its life, unless it has one.
// Every thread of this library calls this before it first runs what may take the GIL: callbacks of
// futures, and destructors of tensors, which may belong to an object of Python.
//
// Otherwise Python makes a state each time that the thread takes the GIL, and holds a lock of its
// own meanwhile, without the GIL. Before 3.11.8, the child of a fork() at that moment waits for
// that lock for ever: https://github.com/python/cpython/issues/112275. There, the state that this
// makes is made while nobody forks.
//
// The thread takes the GIL at its end: nobody joins it with the GIL.
void keep_thread_state();

// Calls `body`, which may take the GIL, on a thread that keeps its thread state. Returns false
// without calling it once Python is about to end: Python then ends each thread that asks for the
// GIL by an exception, which no destructor lets through.
bool before_python_ends(const std::function<void()>& body);

// Python is about to end, so no such body begins any more. Waits for those under way, a second at
// most. To be called without the GIL.
void expect_end_of_python();

// While it exists, its thread holds the GIL. Keeps the thread state.
class WithGil {
 private:
  struct Kept {
    Kept() { keep_thread_state(); }
  };

  Kept kept_;  // First.
  py::gil_scoped_acquire gil_;
};

}  // namespace lockstep::c10d
