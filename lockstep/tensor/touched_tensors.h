// Tells which tensors an operator of LibTorch is about to use, in forward() and in backward(),
// without hooks or wrapped modules.
//
// A watched tensor has a dispatch key that LibTorch defines and does not use (DeferredInit). Its
// kernel for all operators finds the watched ones among their arguments, and tells their watcher.
// The key is above autograd and autocast. Views of a watched tensor have it too; results of
// operators and gradients do not. Operators that only make a view, or need only shape and type
// (zeros_like), tell nobody. An operator that reads and writes no watched tensor costs nothing.
//
// The memory of a watched tensor may come and go: attach_memory() gives it some, and
// detach_memory() takes it away. Tensors that autograd has saved, and views, follow. Whoever uses a
// detached tensor's memory without an operator, by data_ptr(), gets an exception with a text.
//
// Thread safety: operators may run on any thread. attach_memory() and detach_memory() while none
// uses the tensor.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace lockstep {

constexpr c10::DispatchKey watched_key = c10::DispatchKey::DeferredInit;

class TouchWatcher {
 public:
  virtual ~TouchWatcher() = default;

  // Before the operator runs, on its thread. `ids` are those of the watched arguments, each once.
  // What it throws leaves the operator.
  virtual void touched(const std::vector<std::size_t>& ids) = 0;
};

struct WatchedForm {
  at::IntArrayRef sizes;
  at::ScalarType type;
  c10::Device device;
};

// Makes `parameter` a watched, contiguous tensor without memory. It stays the same tensor for all
// who have it. A `watcher` that is gone is as one that attaches nothing.
// Errors: unsupported if the process has another kernel for the dispatch key.
void watch_tensor(const at::Tensor& parameter, const WatchedForm& form,
                  const std::weak_ptr<TouchWatcher>& watcher, std::size_t id);

// `memory` keeps the memory from `data` on alive.
void attach_memory(const at::Tensor& watched, void* data, std::shared_ptr<const void> memory);
void detach_memory(const at::Tensor& watched, const std::string& text);

// Tells the watchers of the tensors among an operator's arguments, also of tensors without the key
// that share a watched one's memory: for code that intercepts operators.
void touch_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// As an operator on `tensor` would, which need not be watched: for code that uses its memory
// without one.
void touch(const at::Tensor& tensor);

// The kernel of the key, for operators that are not intercepted (operator_interception.h).
void run_touching(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack);

}  // namespace lockstep
