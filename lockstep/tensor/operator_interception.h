// Intercepts the operators that a thread calls, above autograd. It uses a dispatch key that
// LibTorch defines for deferred initialization of modules but does not use
// (DispatchKey::DeferredInit). Tensors may have the key too: see touched_tensors.h.
//
// Thread safety: an interception applies to its thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

namespace c10 {
class OperatorHandle;
}

namespace lockstep::tensor {

// During its lifetime, a function handles each call of an operator. The innermost interception of a
// thread applies.
class OperatorInterception {
 public:
  // Calls the operator, op.callBoxed(stack), and may change its arguments or read its results.
  // Operators that it calls are not intercepted.
  using Call = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

  // Errors: unsupported if another library intercepts operators with the same key.
  explicit OperatorInterception(Call call);
  ~OperatorInterception();
  OperatorInterception(const OperatorInterception&) = delete;
  OperatorInterception& operator=(const OperatorInterception&) = delete;

  // Returns whether operators of this thread are intercepted, and how.
  static bool is_under_way();
  static void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  const Call call_;
  const OperatorInterception* const outer_;
  const c10::impl::IncludeDispatchKeyGuard included_;
};

// Registers the key's kernel at first use; a process that does not need the key leaves it to other
// libraries. Errors: unsupported if another library has registered one.
void take_dispatch_key();

// Calls an operator so that the tensors that it creates are on the meta device, unless it takes
// tensors, or is given a value or a device.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace lockstep::tensor
