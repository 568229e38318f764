// Reports which tensors an operator of LibTorch is about to use, in forward() and backward(),
// without hooks or wrapped modules: docs/internals/fully-sharded.md.
//
// A watched tensor and its views have DispatchKey::DeferredInit, above autograd and autocast;
// results of operators and gradients do not. The key's kernel notifies the watcher of each
// operator's watched arguments, unless the operator only creates a view, or needs only shape and
// type (zeros_like).
//
// attach_memory() and detach_memory() also affect views, and tensors saved by autograd. Access to a
// detached tensor by data_ptr() throws an exception with a text.
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
// destroyed `watcher` attaches nothing. Errors: unsupported if the key has another kernel.
void watch_tensor(const at::Tensor& parameter, const WatchedForm& form,
                  const std::weak_ptr<TouchWatcher>& watcher, std::size_t id);

// `memory` keeps `data` alive.
void attach_memory(const at::Tensor& watched, void* data, std::shared_ptr<const void> memory);
void detach_memory(const at::Tensor& watched, const std::string& text);

// For code that intercepts operators: notifies the watchers of arguments, also of those that lack
// the key but share the memory of a watched tensor.
void touch_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// For code that uses the memory of `tensor`, watched or not, without an operator.
void touch(const at::Tensor& tensor);

// The key's kernel, for operators that are not intercepted (operator_interception.h).
void run_touching(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack);

}  // namespace lockstep
