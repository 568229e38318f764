// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/point_to_point.h"

#include <unistd.h>

#include "lockstep/comm/error.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {
namespace {

bool is_complete(const Message& message) {
  return message.complete.load(std::memory_order_acquire);
}

Error timed_out(const std::string& what) {
  return Error(Fault::timeout, what + ": the other side did not come in time");
}

}  // namespace

PointToPoint::PointToPoint(Backend& backend, std::function<void(std::exception_ptr)> failed)
    : backend_(backend), failed_(std::move(failed)), pid_(::getpid()) {}

PointToPoint::~PointToPoint() {
  if (::getpid() != pid_) {  // fork() copied us without our thread.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void PointToPoint::post(std::shared_ptr<Message> message) {
  const std::lock_guard lock(backend_mutex_);
  backend_.post(std::move(message));
}

void PointToPoint::progress() {
  const std::lock_guard lock(backend_mutex_);
  backend_.progress();
}

void PointToPoint::run(const std::shared_ptr<Message>& message, const std::string& what,
                       Deadline deadline) {
  try {
    post(message);
    while (true) {
      progress();
      if (is_complete(*message)) break;
      if (Clock::now() >= deadline) throw timed_out(what);
      backend_.await_progress();
    }
    if (message->error) std::rethrow_exception(message->error);
  } catch (...) {
    failed_(std::current_exception());
    throw;
  }
}

Work PointToPoint::start(std::shared_ptr<Message> message, std::string what, Deadline deadline,
                         std::function<void()> done) {
  auto work = std::make_shared<Work::State>();
  post(message);
  const std::lock_guard lock(mutex_);
  started_.push_back({std::move(message), std::move(what), deadline, std::move(done), work});
  if (!thread_.joinable()) thread_ = std::thread(&PointToPoint::loop, this);
  changed_.notify_all();
  return Work(std::move(work));
}

void PointToPoint::loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !started_.empty(); });
      if (stopping_) break;
    }
    try {
      progress();
      std::unique_lock lock(mutex_);
      std::erase_if(started_, [&](Started& started) { return settle(started); });
      if (started_.empty()) continue;
      for (const Started& started : started_)
        if (Clock::now() >= started.deadline) throw timed_out(started.what);
      lock.unlock();
      backend_.await_progress();
    } catch (...) {
      failed_(std::current_exception());
      fail_all(std::current_exception());
    }
  }
  fail_all(std::make_exception_ptr(
      Error(Fault::aborted, "the group was given up before this message went through")));
}

// Whether it has ended.
bool PointToPoint::settle(Started& started) {
  if (!is_complete(*started.message)) return false;
  started.done();
  started.done = nullptr;  // What it keeps alive goes before anybody learns that it is complete.
  if (started.message->error) failed_(started.message->error);
  if (started.message->operation == Operation::recv)
    started.work->source_rank = started.message->peer;
  started.work->complete(started.message->error);
  return true;
}

void PointToPoint::fail_all(std::exception_ptr error) {
  std::vector<Started> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(started_);
  }
  for (Started& started : ended) started.work->complete(error);
}

}  // namespace lockstep
