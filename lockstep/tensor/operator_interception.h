// Intercepts the operators that a thread calls, above autograd, by DispatchKey::DeferredInit, which
// LibTorch defines but does not use. Tensors may have the key too: touched_tensors.h.
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

// While it exists, a function handles each call of an operator on this thread. The innermost
// interception applies.
class OperatorInterception {
 public:
  // Calls the operator, op.callBoxed(stack), and may change its arguments or read its results.
  // Operators that it calls are not intercepted.
  using Call = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

  // Errors: unsupported if another library has taken the key.
  explicit OperatorInterception(Call call);
  ~OperatorInterception();
  OperatorInterception(const OperatorInterception&) = delete;
  OperatorInterception& operator=(const OperatorInterception&) = delete;

  static bool is_under_way();
  static void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  const Call call_;
  const OperatorInterception* const outer_;
  const c10::impl::IncludeDispatchKeyGuard included_;
};

// Registers the key's kernel at first use, so that other libraries can use the key in other
// processes. Errors: unsupported if another library has registered one.
void take_dispatch_key();

// Calls an operator so that the tensors that it creates are on the meta device, unless it takes
// tensors, a value or a device.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace lockstep::tensor
