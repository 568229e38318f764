// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/point_to_point.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/mailbox.h"
#include "lockstep/comm/core/pipe.h"
#include "lockstep/comm/takeover.h"
#include "lockstep/comm/work_state.h"

namespace lockstep::comm {
namespace {

bool is_complete(const Message& message) {
  return message.complete.load(std::memory_order_acquire);
}

// Whether its result does not concern the rest of the group.
bool has_own_end(const Message& message) {
  return is_complete(message) && (!message.error || message.peer_left);
}

}  // namespace

class PointToPoint::Shared final : public Runner {
 public:
  struct Started {
    std::shared_ptr<Message> message;
    Deadline deadline;
    Done done;
    std::shared_ptr<Work::State> work;
  };

  Shared(std::shared_ptr<Backend> backend, const std::string& group)
      : pipes(backend->pipes()),
        backend_(std::move(backend)),
        group_(group),
        mailbox_(pipes, group) {}

  void post(std::shared_ptr<Message> message);
  void progress();
  void end(std::exception_ptr error);
  std::exception_ptr timed_out(const Message& message);
  std::size_t pending();

  void start(Started started);
  void help(const Work::State& work) override;
  void hurry() override;
  void run_as_thread();
  void stop();
  bool is_driven_by_this_thread();

  Pipes& pipes;

 private:
  using Lock = std::unique_lock<std::mutex>;

  using Acts = std::vector<std::function<void()>>;

  bool advance();
  void await(std::uint32_t seen);
  std::vector<Started> take_ended(std::exception_ptr& failure);
  static Acts complete(Started& started, const std::exception_ptr& failure);
  template <class GoesOn>
  void drive(Lock& lock, GoesOn goes_on);
  bool is_driven() const { return driver_ != std::thread::id(); }
  bool may_drive() const { return !is_driven() || driver_ == std::this_thread::get_id(); }
  bool needs_thread() const { return !started_.empty() && (helpers_ == 0 || stopping_); }

  const std::shared_ptr<Backend> backend_;  // Owns the pipes.
  const std::string group_;

  std::mutex moving_;  // Guards the mailbox and `over_`. Locked after `mutex_`.
  Mailbox mailbox_;
  std::exception_ptr over_;  // Why messages no longer move; null while they do.

  std::atomic<int> ending_{0};  // Threads that complete Works.

  std::mutex mutex_;  // Guards the members below. Not held while user code runs.
  std::condition_variable changed_;
  std::vector<Started> started_;
  int helpers_ = 0;         // Threads in help().
  std::thread::id driver_;  // One of them, or the background thread: it advances all messages.
  bool stopping_ = false;
  Takeover takeover_;
};

// --- All messages --------------------------------------------------------------------------------

void PointToPoint::Shared::post(std::shared_ptr<Message> message) {
  const std::lock_guard lock(moving_);
  if (over_) std::rethrow_exception(over_);
  mailbox_.post(std::move(message));
}

void PointToPoint::Shared::progress() {
  const std::lock_guard lock(moving_);
  if (over_) std::rethrow_exception(over_);
  mailbox_.progress();
}

void PointToPoint::Shared::end(std::exception_ptr error) {
  const std::lock_guard lock(moving_);
  if (over_) return;
  over_ = std::move(error);
  mailbox_.drop();
}

// Null if `message` has completed meanwhile. Until then, another thread may set its peer and tag.
std::exception_ptr PointToPoint::Shared::timed_out(const Message& message) {
  const std::lock_guard lock(moving_);
  if (is_complete(message)) return nullptr;
  std::vector<int> absent;
  if (message.peer >= 0) absent.push_back(message.peer);  // With any_source it may be any rank.
  return std::make_exception_ptr(Error(
      Fault::timeout,
      describe_message(message, group_, pipes.rank()) + ": the other side did not come in time",
      std::move(absent)));
}

std::size_t PointToPoint::Shared::pending() {
  const std::lock_guard lock(moving_);
  return mailbox_.pending();
}

// --- Asynchronous messages -----------------------------------------------------------------------

PointToPoint::Shared::Acts PointToPoint::Shared::complete(Started& one,
                                                          const std::exception_ptr& failure) {
  const std::exception_ptr error = has_own_end(*one.message) ? one.message->error : failure;
  one.done(error);
  one.done = nullptr;  // Releases what it keeps alive before the completion is visible.
  if (one.message->operation == Operation::recv && !error)
    one.work->source = {one.message->peer, one.message->tag};
  return one.work->finish(error);
}

// The complete messages. After a failure, a timeout, or with `failure`, returns all and sets
// `failure`. One that fails after its check stays for the next call.
std::vector<PointToPoint::Shared::Started> PointToPoint::Shared::take_ended(
    std::exception_ptr& failure) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (const Started& one : started_) {
    if (failure) break;
    if (is_complete(*one.message))
      failure = one.message->peer_left ? nullptr : one.message->error;
    else if (now >= one.deadline)
      failure = timed_out(*one.message);
  }
  const auto goes_on = std::stable_partition(
      started_.begin(), started_.end(),
      [&](const auto& one) { return !failure && !has_own_end(*one.message); });
  std::vector<Started> ended(std::make_move_iterator(goes_on),
                             std::make_move_iterator(started_.end()));
  started_.erase(goes_on, started_.end());
  return ended;
}

bool PointToPoint::Shared::advance() {
  ending_.fetch_add(1);
  std::exception_ptr failure;
  try {
    progress();
  } catch (...) {
    failure = std::current_exception();
  }
  auto ended = take_ended(failure);
  if (failure) end(failure);
  std::vector<Acts> acts;
  for (auto& one : ended) acts.push_back(complete(one, failure));
  ending_.fetch_sub(1);
  for (const auto& of_one : acts)
    for (const auto& act : of_one) act();
  return !ended.empty();
}

void PointToPoint::Shared::await(std::uint32_t seen) {
  try {
    pipes.await(seen);
  } catch (...) {
    end(std::current_exception());
  }
}

void PointToPoint::Shared::start(Started started) {
  {
    const std::lock_guard lock(mutex_);
    if (started_.empty()) takeover_.give_time();
    started_.push_back(std::move(started));
    takeover_.note_call();
  }
  advance();
  const std::lock_guard lock(mutex_);
  if (needs_thread()) takeover_.rouse();
}

// --- Who advances them ---------------------------------------------------------------------------

// Another thread may have moved the last bytes and rung the bell, and complete the Work afterwards.
// An act of advance() may wait for a message, and then drives inside the outer call.
template <class GoesOn>
void PointToPoint::Shared::drive(Lock& lock, GoesOn goes_on) {
  const auto outer = std::exchange(driver_, std::this_thread::get_id());
  while (goes_on()) {
    lock.unlock();
    const std::uint32_t seen = pipes.bell();
    const bool is_idle = !advance() && ending_.load() == 0;
    lock.lock();
    if (!is_idle && helpers_ > 1) changed_.notify_all();
    if (!is_idle || !goes_on()) continue;
    lock.unlock();
    await(seen);
    lock.lock();
  }
  driver_ = outer;
  takeover_.give_time();
  changed_.notify_all();
}

void PointToPoint::Shared::help(const Work::State& work) {
  Lock lock(mutex_);
  ++helpers_;  // The background thread lets this one drive.
  while (!work.completed) {
    if (may_drive())
      drive(lock, [&] { return !work.completed; });
    else
      changed_.wait_for(lock, wait_slice);
  }
  --helpers_;
  if (needs_thread()) takeover_.rouse();
}

void PointToPoint::Shared::hurry() {
  const std::lock_guard lock(mutex_);
  takeover_.hurry();
}

void PointToPoint::Shared::run_as_thread() {
  Lock lock(mutex_);
  while (!stopping_ || !started_.empty()) {
    const bool has_work = needs_thread() && !is_driven();
    if (has_work && (stopping_ || takeover_.is_due()))
      drive(lock, [this] { return needs_thread(); });
    else if (stopping_)
      changed_.wait(lock);
    else
      takeover_.sleep(lock, has_work);
  }
}

void PointToPoint::Shared::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  takeover_.hurry();
  changed_.notify_all();
}

bool PointToPoint::Shared::is_driven_by_this_thread() {
  const std::lock_guard lock(mutex_);
  return driver_ == std::this_thread::get_id();
}

PointToPoint::PointToPoint(std::shared_ptr<Backend> backend, const std::string& group)
    : shared_(std::make_shared<Shared>(std::move(backend), group)) {}

PointToPoint::~PointToPoint() {
  end(std::make_exception_ptr(
      Error(Fault::aborted, "the group was aborted before this message was complete")));
  if (!thread_.joinable()) return;
  shared_->stop();
  // A message's keep_alive may have dropped the last handle.
  const bool is_within = thread_.is_current() || shared_->is_driven_by_this_thread();
  is_within ? thread_.detach() : thread_.join();
}

void PointToPoint::end(std::exception_ptr error) { shared_->end(std::move(error)); }

std::size_t PointToPoint::pending() const { return shared_->pending(); }

void PointToPoint::run(const std::shared_ptr<Message>& message, Deadline deadline) {
  const auto shared = shared_;  // Another thread may end the group meanwhile.
  try {
    shared->post(message);
    while (true) {
      const std::uint32_t seen = shared->pipes.bell();
      try {
        shared->progress();
      } catch (...) {  // An error of other messages; this one may have completed before.
        if (!is_complete(*message)) throw;
      }
      if (is_complete(*message)) break;
      if (Clock::now() < deadline)
        shared->pipes.await(seen);
      else if (const auto error = shared->timed_out(*message))
        std::rethrow_exception(error);
    }
    if (!has_own_end(*message)) std::rethrow_exception(message->error);
  } catch (...) {
    shared->end(std::current_exception());
    throw;
  }
  if (message->error) std::rethrow_exception(message->error);
}

Work PointToPoint::start(std::shared_ptr<Message> message, Deadline deadline, Done done) {
  {
    const std::lock_guard lock(starting_);
    if (!thread_.joinable()) thread_ = start_thread(&Shared::run_as_thread, shared_);
  }
  auto work = std::make_shared<Work::State>(shared_);
  try {
    shared_->post(message);
  } catch (...) {
    shared_->end(std::current_exception());
    throw;
  }
  shared_->start({std::move(message), deadline, std::move(done), work});
  return Work(std::move(work));
}

}  // namespace lockstep::comm
