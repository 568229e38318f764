// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/gil.h"

#include <pthread.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lockstep::torch_backend {
namespace {

struct Use {
  std::mutex mutex;  // A forking thread holds it, too.
  std::condition_variable changed;
  int bodies = 0;
  bool ended = false;
};

Use& use = *new Use;  // Never destroyed: threads use it at exit.

thread_local int own_bodies = 0;  // Nesting depth on this thread.

[[maybe_unused]] const int registered =
    ::pthread_atfork([] { use.mutex.lock(); }, [] { use.mutex.unlock(); },
                     [] {
                       use.bodies = own_bodies;
                       use.mutex.unlock();
                     });

bool python_runs() { return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0; }

// True if the body may run. Python does not finalize while it exists.
class Body {
 public:
  Body() {
    const std::lock_guard lock(use.mutex);
    begun_ = (!use.ended || own_bodies > 0) && python_runs();
    if (!begun_) return;
    ++use.bodies;
    ++own_bodies;
  }
  ~Body() {
    if (!begun_) return;
    const std::lock_guard lock(use.mutex);
    --own_bodies;
    --use.bodies;
    use.changed.notify_all();
  }
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;
  explicit operator bool() const { return begun_; }

 private:
  bool begun_ = false;
};

class ThreadState {
 public:
  // Needs no GIL, which a forking thread may hold. Python 3.12 made this safe against forks. Since
  // 3.13, Python forks while holding the lock that this call takes: the caller must hold no other
  // lock.
  ThreadState() {
    std::unique_lock lock(use.mutex, std::defer_lock);
    if (PY_VERSION_HEX < 0x030C0000) lock.lock();
    state_ = PyThreadState_New(PyInterpreterState_Main());
  }

  // Python deletes the remaining states when it finalizes.
  ~ThreadState() {
    const Body body;
    if (state_ == nullptr || !body) return;
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

bool before_python_ends(const std::function<void()>& body) {
  const Body ours;
  if (!ours) return false;
  keep_thread_state();
  body();
  return true;
}

void expect_end_of_python() {
  constexpr std::chrono::seconds patience{1};
  std::unique_lock lock(use.mutex);
  use.ended = true;
  use.changed.wait_for(lock, patience, [] { return use.bodies == own_bodies; });
}

}  // namespace lockstep::torch_backend
