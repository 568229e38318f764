// SPDX-License-Identifier: Apache-2.0
#include "lockstep/c10d/gil.h"

#include <pthread.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <mutex>

namespace lockstep::c10d {
namespace {

std::mutex making;  // Held while a thread state is made, and by a thread that forks.

// When the module is loaded, before there are such threads.
[[maybe_unused]] const int registered =
    ::pthread_atfork([] { making.lock(); }, [] { making.unlock(); }, [] { making.unlock(); });

bool python_runs() { return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0; }

class ThreadState {
 public:
  // Needs no GIL, which a thread that forks may hold.
  ThreadState() {
    const std::lock_guard lock(making);
    state_ = PyThreadState_New(PyInterpreterState_Main());
  }

  // Python deletes the states that are left when it ends.
  ~ThreadState() {
    if (state_ == nullptr || !python_runs()) return;
    PyEval_RestoreThread(state_);
    PyThreadState_Clear(state_);
    PyThreadState_DeleteCurrent();
  }

  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace

void keep_thread_state() {
  if (!python_runs() || PyGILState_GetThisThreadState() != nullptr) return;
  thread_local const ThreadState ours;
}

}  // namespace lockstep::c10d
