// Intercepts a thread's operators, above autograd, by DispatchKey::DeferredInit, which LibTorch
// does not use. Tensors may have the key too: touched_tensors.h.
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

// While it exists, a function handles each operator of this thread. The innermost one applies.
class OperatorInterception {
 public:
  // Calls op.callBoxed(stack), and may change arguments or read results. Operators that it calls
  // are not intercepted.
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

// Registers the key's kernel at the first call; until then, other libraries can take the key.
// Errors: unsupported if another library has registered one.
void take_dispatch_key();

// Calls an operator so that it creates tensors on the meta device, unless it takes tensors or a
// device, or is aten::scalar_tensor.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace lockstep::tensor
