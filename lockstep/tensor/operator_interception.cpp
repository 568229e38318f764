// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/operator_interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/touched_tensors.h"

namespace lockstep::tensor {
namespace {

constexpr auto key = watched_key;

thread_local const OperatorInterception* innermost = nullptr;

void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (OperatorInterception::is_under_way())
    OperatorInterception::intercept(op, *stack);
  else
    run_touching(op, keys, *stack);
}

const OperatorInterception* after_taking_the_key(const OperatorInterception* outer) {
  take_dispatch_key();
  return outer;
}

bool has_tensors(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined();
  return value.isTensorList() || value.isOptionalTensorList();
}

}  // namespace

OperatorInterception::OperatorInterception(Call call)
    : call_(std::move(call)), outer_(after_taking_the_key(innermost)), included_(key) {
  innermost = this;
}

OperatorInterception::~OperatorInterception() { innermost = outer_; }

bool OperatorInterception::is_under_way() { return innermost != nullptr; }

void OperatorInterception::intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(key);
  innermost->call_(op, stack);
}

void take_dispatch_key() {
  static const auto* const library = [] {
    auto* const registration =
        new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    try {
      registration->fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
    } catch (const c10::Error& error) {
      delete registration;
      throw Error(Fault::unsupported,
                  "another library has taken LibTorch's dispatch key DeferredInit: " +
                      std::string(error.what_without_backtrace()));
    }
    return registration;
  }();
  static_cast<void>(library);
}

void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = stack.end() - static_cast<std::ptrdiff_t>(arguments.size());
  const bool is_given_a_value = op.schema().name() == "aten::scalar_tensor";
  if (!is_given_a_value && std::none_of(values, stack.end(), has_tensors))
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = values[static_cast<std::ptrdiff_t>(i)];
      if (arguments[i].name() == "device" && value.isNone()) value = c10::Device(c10::kMeta);
    }
  op.callBoxed(stack);
}

}  // namespace lockstep::tensor
