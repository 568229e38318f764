// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/graph_task.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using torch::autograd::GraphTask;

// LibTorch exposes a member of the current graph task, but not the task itself.
const GraphTask& current_graph_task() {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  check(info != nullptr, "this thread is in no backward()");
#pragma GCC diagnostic push
// GCC and Clang know the offset of such types too.
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr std::size_t offset = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto& task =
      *reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(info) - offset);
  check(static_cast<int>(task.id_) == torch::autograd::get_current_graph_task_id(),
        "LibTorch's graph task is not what its header says");
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

}  // namespace lockstep
