// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/kept_results.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "lockstep/base/error.h"

namespace lockstep::tensor {
namespace {

using torch::jit::Stack;

constexpr auto key = c10::DispatchKey::Fake;

void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

// Whether the operator only returns new tensors.
bool is_pure(const c10::FunctionSchema& schema) {
  if (schema.is_mutable()) return false;
  bool has_tensor = false;
  for (const c10::Argument& result : schema.returns()) {
    const c10::TypeKind kind = result.type()->kind();
    if (result.alias_info() != nullptr || kind == c10::TypeKind::ListType) return false;
    has_tensor = has_tensor || kind == c10::TypeKind::TensorType;
  }
  return has_tensor;
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// A new tensor without autograd, which detects in-place changes.
at::Tensor alias_of(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

}  // namespace

class KeptResults::Session {
 public:
  explicit Session(const KeptResults& its_owner) : owner(its_owner), outer_(current_) {
    require_fallback();
    current_ = this;
  }
  virtual ~Session() { current_ = outer_; }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Ignores operators that kernels call.
  static void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard kernels(key);
    if (current_ != nullptr)
      current_->run(op, keys, stack);
    else
      call_below(op, keys, stack);
  }

 protected:
  bool is_kept(const c10::OperatorHandle& op) const {
    return is_pure(op.schema()) && owner.keep_(op.schema().name());
  }

  const KeptResults& owner;

 private:
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) = 0;

  static void require_fallback() {
    static const bool is_ours = [] {
      if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return false;
      // Never destroyed: the dispatcher may be destroyed earlier.
      auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&Session::on_operator>());
      return true;
    }();
    if (!is_ours)
      throw Error(Fault::unsupported,
                  "activation_checkpoint: keep needs DispatchKey::Fake, which is in use");
  }

  static thread_local Session* current_;

  Session* const outer_;
  const c10::impl::IncludeDispatchKeyGuard sees_operators_{key};
};

thread_local KeptResults::Session* KeptResults::Session::current_ = nullptr;

class KeptResults::Recording final : public Session {
 public:
  Recording(KeptResults& results, Tensors& kept)
      : Session(results), results_(results), kept_(kept) {}

  // Call it before changing the memory of `tensor`.
  void copy_kept_memory_of(const at::Tensor& tensor) {
    const auto found = by_storage_.find(storage_of(tensor));
    if (found == by_storage_.end()) return;
    const c10::impl::ExcludeDispatchKeyGuard own_copies(key);
    for (const std::size_t position : found->second) {
      kept_[position] = kept_[position].clone();
      results_.is_changed_[position] = true;
    }
    by_storage_.erase(found);
  }

 private:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) override {
    copy_before_changes(op.schema(), *stack);
    call_below(op, keys, stack);
    if (is_kept(op)) keep(op, *stack);
  }

  void copy_before_changes(const c10::FunctionSchema& schema, const Stack& stack) {
    if (by_storage_.empty()) return;
    const auto& arguments = schema.arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* alias = arguments[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      const c10::IValue& value = stack[stack.size() - arguments.size() + i];
      if (value.isTensor()) copy_kept_memory_of(value.toTensor());
      if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) copy_kept_memory_of(tensor);
    }
  }

  void keep(const c10::OperatorHandle& op, const Stack& stack) {
    Call call{.name = op.schema().name(), .returns = {}, .after = {}};
    const std::size_t count = op.schema().returns().size();
    for (auto value = stack.end() - static_cast<std::ptrdiff_t>(count); value != stack.end();
         ++value) {
      if (!value->isTensor() || !value->toTensor().defined()) {
        call.returns.push_back({.tensor = {}, .value = *value});
        continue;
      }
      call.returns.push_back({.tensor = kept_.size(), .value = {}});
      by_storage_[storage_of(value->toTensor())].push_back(kept_.size());
      kept_.push_back(alias_of(value->toTensor()));
      results_.is_changed_.push_back(false);
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded)) call.after.emplace(owner.generators_);
    results_.calls_.push_back(std::move(call));
  }

  KeptResults& results_;
  Tensors& kept_;
  std::unordered_map<const c10::StorageImpl*, std::vector<std::size_t>> by_storage_;
};

class KeptResults::Replay final : public Session {
 public:
  Replay(const KeptResults& results, const Tensors& kept) : Session(results), kept_(kept) {}

  void require_all_used() const {
    require(next_ == owner.calls_.size(), [&] {
      return owner.name_ + ": the second forward calls " + std::to_string(next_) +
             " operators that are kept, the first one called " +
             std::to_string(owner.calls_.size());
    });
  }

 private:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) override {
    if (!is_kept(op)) return call_below(op, keys, stack);
    const std::string& name = op.schema().name();
    require(next_ < owner.calls_.size() && owner.calls_[next_].name == name, [&] {
      return owner.name_ + ": the second forward calls " + name + " where the first one called " +
             (next_ < owner.calls_.size() ? owner.calls_[next_].name : "no operator that is kept");
    });
    const Call& call = owner.calls_[next_++];
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (const Return& result : call.returns)
      stack->push_back(result.tensor ? c10::IValue(tensor(*result.tensor)) : result.value);
    if (call.after) call.after->restore();
  }

  at::Tensor tensor(std::size_t position) const {
    const at::Tensor& kept = kept_[position];
    return owner.is_changed_[position] ? kept.clone() : alias_of(kept);
  }

  const Tensors& kept_;
  std::size_t next_ = 0;
};

KeptResults::KeptResults(std::function<bool(std::string_view)> keep, Generators generators,
                         std::string name)
    : keep_(std::move(keep)), generators_(std::move(generators)), name_(std::move(name)) {}

KeptResults::Tensors KeptResults::record(const Body& body, Tensors& kept) {
  if (!keep_) return body();
  Recording recording(*this, kept);
  Tensors outputs = body();
  for (const at::Tensor& output : outputs) recording.copy_kept_memory_of(output);
  return outputs;
}

KeptResults::Tensors KeptResults::replay(const Body& body, const Tensors& kept) {
  if (!keep_) return body();
  Replay replay(*this, kept);
  Tensors outputs = body();
  replay.require_all_used();
  return outputs;
}

}  // namespace lockstep::tensor
