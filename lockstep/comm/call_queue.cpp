// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/call_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/takeover.h"
#include "lockstep/comm/work_state.h"

namespace lockstep::comm {

class CallQueue::Shared final : public Runner {
 public:
  // `work` is null for a blocking call, which only its own thread runs.
  struct Call {
    std::function<void()> run = {};
    std::shared_ptr<Work::State> work = {};
    std::chrono::milliseconds timeout = {};
    const void* waiter = nullptr;
  };

  bool try_turn() { return queued_.load() == 0 && !busy_.exchange(true); }
  bool take_turn(std::chrono::milliseconds timeout, Deadline deadline);
  void end_turn();
  void submit(Call call, bool is_long);
  void help(const Work::State& work) override;
  void hurry() override;

  void run_as_thread();
  void stop();
  bool wait_for_the_end();

 private:
  // Counts a thread that waits for `moved_`, from before it checks whether it must.
  class Waiting {
   public:
    explicit Waiting(Shared& shared) : shared_(shared) { shared_.waiting_.fetch_add(1); }
    ~Waiting() { shared_.waiting_.fetch_sub(1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Shared& shared_;
  };

  using Lock = std::unique_lock<std::mutex>;

  bool has_work() const { return !calls_.empty() && calls_.front().work != nullptr; }
  Call pop();
  void run_front(Lock& lock);
  void remove(const void* waiter);
  void hurry_locked();

  std::atomic<bool> busy_{false};
  std::atomic<int> queued_{0};   // Size of `calls_`.
  std::atomic<int> waiting_{0};  // Threads to wake when `busy_` ends or `calls_` moves.
  std::mutex mutex_;             // Guards the rest.
  std::condition_variable moved_;
  std::deque<Call> calls_;  // Not started.
  std::thread::id runner_;  // Runs an asynchronous call.
  bool stopping_ = false;
  Takeover takeover_;
};

// --- Turns ---------------------------------------------------------------------------------------

bool CallQueue::Shared::take_turn(std::chrono::milliseconds timeout, Deadline deadline) {
  const Waiting waiting(*this);
  Lock lock(mutex_);
  calls_.push_back({.waiter = &waiting});
  queued_.fetch_add(1);
  while (true) {
    const bool is_next = calls_.front().waiter == &waiting;
    const bool helps = has_work() && calls_.front().timeout <= timeout;
    if (has_work() && !helps) hurry_locked();
    if (!is_next && Clock::now() >= deadline) {
      remove(&waiting);
      return false;
    }
    if ((is_next || helps) && !busy_.exchange(true)) {
      if (is_next) return pop(), true;
      run_front(lock);
    } else if (deadline == no_deadline) {
      moved_.wait(lock);
    } else if (moved_.wait_until(lock, deadline) == std::cv_status::timeout && is_next) {
      if (!busy_.exchange(true)) return pop(), true;
      remove(&waiting);
      return false;
    }
  }
}

void CallQueue::Shared::end_turn() {
  busy_.store(false);  // Before the load: a thread about to wait must not be missed.
  if (waiting_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  moved_.notify_all();
}

CallQueue::Shared::Call CallQueue::Shared::pop() {
  Call call = std::move(calls_.front());
  calls_.pop_front();
  queued_.fetch_sub(1);
  if (has_work()) takeover_.rouse();
  return call;
}

void CallQueue::Shared::remove(const void* waiter) {
  std::erase_if(calls_, [&](const Call& call) { return call.waiter == waiter; });
  queued_.fetch_sub(1);
  if (has_work()) takeover_.rouse();
  moved_.notify_all();
}

// --- Asynchronous calls --------------------------------------------------------------------------

void CallQueue::Shared::submit(Call call, bool is_long) {
  const Lock lock(mutex_);
  if (calls_.empty()) takeover_.give_time();
  calls_.push_back(std::move(call));
  queued_.fetch_add(1);
  takeover_.note_call();
  is_long ? takeover_.hurry() : takeover_.rouse();
}

// Called with `busy_` set. Releases what the call keeps alive before its completion is visible.
void CallQueue::Shared::run_front(Lock& lock) {
  Call call = pop();
  call.work->begun = true;
  runner_ = std::this_thread::get_id();
  const bool stopping = stopping_;
  lock.unlock();
  std::exception_ptr error;
  try {
    if (stopping) throw Error(Fault::aborted, "the group was aborted before this operation ran");
    call.run();
  } catch (...) {
    error = std::current_exception();
  }
  call.run = nullptr;
  auto acts = call.work->finish(std::move(error));
  lock.lock();
  runner_ = {};
  lock.unlock();
  end_turn();
  for (const auto& act : acts) act();
  acts.clear();  // They may hold the group's last handle.
  call = {};
  lock.lock();
}

void CallQueue::Shared::help(const Work::State& work) {
  const Waiting waiting(*this);
  Lock lock(mutex_);
  while (!work.begun) {
    if (has_work() && !busy_.exchange(true))
      run_front(lock);
    else
      moved_.wait(lock);
  }
}

void CallQueue::Shared::hurry() {
  const std::lock_guard lock(mutex_);
  hurry_locked();
}

void CallQueue::Shared::hurry_locked() {
  if (!calls_.empty()) takeover_.hurry();
}

// --- The thread ----------------------------------------------------------------------------------

void CallQueue::Shared::run_as_thread() {
  Lock lock(mutex_);
  while (!stopping_ || has_work()) {
    if (!stopping_ && (!has_work() || !takeover_.is_due())) {
      takeover_.sleep(lock, has_work());
      continue;
    }
    const Waiting waiting(*this);
    if (!busy_.exchange(true))
      run_front(lock);
    else
      moved_.wait(lock);
  }
}

void CallQueue::Shared::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  takeover_.hurry();
  moved_.notify_all();
}

// False within a call, which may destroy the queue.
bool CallQueue::Shared::wait_for_the_end() {
  const Waiting waiting(*this);
  Lock lock(mutex_);
  if (runner_ == std::this_thread::get_id()) return false;
  while (!calls_.empty() || runner_ != std::thread::id()) {
    if (has_work() && !busy_.exchange(true))
      run_front(lock);
    else
      moved_.wait(lock);
  }
  return true;
}

void CallQueue::Turn::End::operator()(Shared* shared) const { shared->end_turn(); }

CallQueue::CallQueue() : shared_(std::make_shared<Shared>()) {}

CallQueue::~CallQueue() {
  shared_->stop();
  const bool has_ended = shared_->wait_for_the_end();
  if (!thread_.joinable()) return;
  has_ended && !thread_.is_current() ? thread_.join() : thread_.detach();
}

CallQueue::Turn CallQueue::try_turn() {
  return Turn(shared_->try_turn() ? shared_.get() : nullptr);
}

CallQueue::Turn CallQueue::take_turn(std::chrono::milliseconds timeout, Deadline deadline) {
  return Turn(shared_->take_turn(timeout, deadline) ? shared_.get() : nullptr);
}

Work CallQueue::submit(std::function<void()> call, Options options) {
  {
    const std::lock_guard lock(starting_);
    if (!thread_.joinable()) thread_ = start_thread(&Shared::run_as_thread, shared_);
  }
  auto work = std::make_shared<Work::State>(shared_);
  shared_->submit({.run = std::move(call), .work = work, .timeout = options.timeout},
                  options.is_long);
  return Work(std::move(work));
}

}  // namespace lockstep::comm
