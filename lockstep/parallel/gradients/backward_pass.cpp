// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/backward_pass.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::parallel {
namespace {

using torch::autograd::GraphTask;

// LibTorch exposes only a member of the graph task.
const GraphTask& current_graph_task() {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  check(info != nullptr, "this thread is in no backward()");
#pragma GCC diagnostic push
// GCC and Clang define this offset.
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr std::size_t offset = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto& task =
      *reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(info) - offset);
  check(static_cast<int>(task.id_) == torch::autograd::get_current_graph_task_id(),
        "LibTorch's graph task differs from its header");
  return task;
}

}  // namespace

GraphTaskResult GraphTaskResult::of_this_thread() {
  return GraphTaskResult(current_graph_task().future_result_);
}

GraphTaskResult::GraphTaskResult(c10::intrusive_ptr<c10::ivalue::Future> future)
    : future_(std::move(future)) {}

GraphTaskResult::GraphTaskResult(const GraphTaskResult&) = default;

GraphTaskResult::~GraphTaskResult() = default;

std::exception_ptr GraphTaskResult::exception() const {
  return future_ && future_->hasError() ? future_->exception_ptr() : nullptr;
}

void end_with_the_others(const std::exception_ptr& error, const ProcessGroup& own,
                         const ProcessGroup& given, std::chrono::nanoseconds longest_pass,
                         const TakePart& take_part) noexcept {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max<std::chrono::nanoseconds>(std::chrono::seconds(5), 3 * longest_pass));
  try {
    const std::string text =
        error ? exception_text(error) : "an exception that is not derived from std::exception";
    const std::string reason = "a pass of DistributedDataParallel ended with " + text;
    const AbortLater unless_they_come({own, given}, reason, patience);
    try {
      if (take_part(text)) return;
    } catch (...) {
      return own.abort(reason);
    }
    own.abort(reason);
    given.abort(reason);
  } catch (...) {  // No memory or thread: the others detect it when this rank ends.
  }
}

AbortLater::AbortLater(std::vector<ProcessGroup> groups, std::string reason,
                       std::chrono::milliseconds patience)
    : groups_(std::move(groups)),
      reason_(std::move(reason)),
      patience_(patience),
      thread_(start_thread(&AbortLater::wait, this)) {}

AbortLater::~AbortLater() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AbortLater::wait() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, patience_, [this] { return done_; })) return;
  for (const ProcessGroup& group : groups_) group.abort(reason_);
}

}  // namespace lockstep::parallel
