// Intercepts the operators that a thread calls, above autograd. LibTorch has a dispatch key for
// this, for deferred initialization of modules (DispatchKey::DeferredInit), and does not use it.
// Tensors may have the key, too: see touched_tensors.h.
//
// Thread safety: an interception is of its thread alone.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

namespace c10 {
class OperatorHandle;
}

namespace lockstep::tensor {

// While it lives, each call of an operator goes to a function. The innermost one of a thread
// counts.
class OperatorInterception {
 public:
  // Calls the operator, op.callBoxed(stack): with other arguments, or with a look at its results.
  // Operators that are called within are not intercepted.
  using Call = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

  // Errors: unsupported if another library intercepts operators by the same key.
  explicit OperatorInterception(Call call);
  ~OperatorInterception();
  OperatorInterception(const OperatorInterception&) = delete;
  OperatorInterception& operator=(const OperatorInterception&) = delete;

  // Whether operators of this thread are intercepted, and what is done with them.
  static bool is_under_way();
  static void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  const Call call_;
  const OperatorInterception* const outer_;
  const c10::impl::IncludeDispatchKeyGuard included_;
};

// Registers the key's kernel at first use, so that a process which does not need the key leaves it
// to others. Errors: unsupported if another library has taken it.
void take_dispatch_key();

// Calls an operator so that the tensors that it makes are on the meta device: unless it takes
// tensors, or is given a value or a device.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace lockstep::tensor
