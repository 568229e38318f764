// Reports which tensors an operator of LibTorch is about to use, in forward() and backward()
// (docs/internals/fully-sharded.md).
//
// A watched tensor and its views have DispatchKey::DeferredInit, above autograd and autocast;
// results and gradients do not. The key's kernel notifies the watcher of each operator's watched
// arguments, unless the operator only creates a view or needs only shape and type (zeros_like).
//
// attach_memory() and detach_memory() also affect views, and tensors saved by autograd. data_ptr()
// of a detached tensor throws an exception with a given text. Errors: unsupported before LibTorch
// 2.12.
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

  // Called before the operator, on its thread, with the distinct ids of the watched arguments. The
  // operator rethrows an exception of this function.
  virtual void touched(const std::vector<std::size_t>& ids) = 0;
};

struct WatchedForm {
  at::IntArrayRef sizes;
  at::ScalarType type;
  c10::Device device;
};

// Makes `parameter` a watched, contiguous tensor without memory; its handles remain valid. Errors:
// unsupported if the key has another kernel.
void watch_tensor(const at::Tensor& parameter, const WatchedForm& form,
                  const std::weak_ptr<TouchWatcher>& watcher, std::size_t id);

// `memory` keeps `data` alive.
void attach_memory(const at::Tensor& watched, void* data, std::shared_ptr<const void> memory);
void detach_memory(const at::Tensor& watched, const std::string& text);

// For code that intercepts operators: notifies the watchers of arguments, also of arguments that
// lack the key but share a watched tensor's memory.
void touch_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// For code that uses a tensor's memory, watched or not, without an operator.
void touch(const at::Tensor& tensor);

// The action of the key's kernel on threads without an OperatorInterception.
void run_touching(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack);

}  // namespace lockstep
