// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/gloo/loop_thread.h"

#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace lockstep::plugin {
namespace {

constexpr std::size_t most_name_bytes = 16;  // For a thread's name, including its final zero.

// Does not change the nice value or the slice.
bool set_policy(pid_t thread, int policy) {
  const sched_param parameters = {};
  return ::sched_setscheduler(thread, policy, &parameters) == 0;
}

// Gives a new thread a name and a policy to inherit: Gloo does not say which thread it starts.
class Inherited {
 public:
  explicit Inherited(const std::string& name) {
    ::pthread_getname_np(::pthread_self(), name_.data(), name_.size());
    ::pthread_setname_np(::pthread_self(), name.c_str());
    is_batch_ =
        ::sched_getscheduler(this_thread) == SCHED_OTHER && set_policy(this_thread, SCHED_BATCH);
  }
  ~Inherited() {
    if (is_batch_) set_policy(this_thread, SCHED_OTHER);
    ::pthread_setname_np(::pthread_self(), name_.data());
  }
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;

  bool is_batch() const { return is_batch_; }

 private:
  static constexpr pid_t this_thread = 0;

  std::array<char, most_name_bytes> name_{};
  bool is_batch_ = false;
};

// Returns 0 when there is none.
pid_t thread_of_name(const std::string& name) {
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/self/task", error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::string found;
    std::getline(std::ifstream(task->path() / "comm"), found);
    if (found == name) return std::stoi(task->path().filename());
  }
  return 0;
}

}  // namespace

LoopThread LoopThread::started_by(const std::function<void()>& start) {
  static std::atomic<unsigned> number = 0;
  const std::string name = "gloo " + std::to_string(number++);
  bool is_batch = false;
  {
    const Inherited inherited(name);
    is_batch = inherited.is_batch();
    start();
  }
  LoopThread thread;
  if (is_batch) thread.id_ = thread_of_name(name);
  return thread;
}

LoopThread::Preempting::Preempting(const LoopThread& thread) : id_(thread.id_) {
  if (id_ != 0) set_policy(id_, SCHED_OTHER);
}

LoopThread::Preempting::~Preempting() {
  if (id_ != 0) set_policy(id_, SCHED_BATCH);
}

}  // namespace lockstep::plugin
