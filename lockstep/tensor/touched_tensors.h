// Reports which tensors an operator of LibTorch is about to use, in forward() and in backward(),
// without hooks or wrapped modules.
//
// A watched tensor has a dispatch key that LibTorch defines and does not use (DeferredInit). The
// key's kernel for all operators finds the watched arguments and notifies their watcher. The key is
// above autograd and autocast. Views of a watched tensor have it too; results of operators and
// gradients do not. Operators that only create a view, or need only shape and type (zeros_like),
// notify nobody. An operator without watched arguments costs nothing.
//
// attach_memory() and detach_memory() change whether a watched tensor has memory. Views, and
// tensors saved by autograd, follow. Access to a detached tensor without an operator, by
// data_ptr(), throws an exception with a text.
//
// Thread safety: operators may run on any thread. No operator may use the tensor during
// attach_memory() and detach_memory().

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

  // Called before the operator, on its thread. `ids` are those of the watched arguments, each once.
  // The operator rethrows its exceptions.
  virtual void touched(const std::vector<std::size_t>& ids) = 0;
};

struct WatchedForm {
  at::IntArrayRef sizes;
  at::ScalarType type;
  c10::Device device;
};

// Makes `parameter` a watched, contiguous tensor without memory; its handles remain valid. A
// `watcher` that was destroyed attaches nothing.
// Errors: unsupported if the process has another kernel for the dispatch key.
void watch_tensor(const at::Tensor& parameter, const WatchedForm& form,
                  const std::weak_ptr<TouchWatcher>& watcher, std::size_t id);

// `memory` keeps the memory at `data` alive.
void attach_memory(const at::Tensor& watched, void* data, std::shared_ptr<const void> memory);
void detach_memory(const at::Tensor& watched, const std::string& text);

// Notifies the watchers of an operator's arguments, including arguments that lack the key but share
// the memory of a watched tensor. For code that intercepts operators.
void touch_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Does what an operator on `tensor` would do; `tensor` need not be watched. For code that uses its
// memory without an operator.
void touch(const at::Tensor& tensor);

// The kernel of the key, for operators that are not intercepted (operator_interception.h).
void run_touching(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack);

}  // namespace lockstep
