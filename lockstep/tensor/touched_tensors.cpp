// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/touched_tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/operator_interception.h"
#include "lockstep/tensor/torch_version.h"

namespace lockstep {
namespace {

constexpr c10::DispatchKey key = watched_key;

struct Context {
  std::weak_ptr<TouchWatcher> watcher;
  std::size_t id;
  std::shared_ptr<const void> memory;
};

void free_context(void* context) { delete static_cast<Context*>(context); }

c10::DataPtr data_of(void* data, c10::Device device, Context context) {
  return {data, new Context(std::move(context)), &free_context, device};
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Null for an unwatched storage, as of a view copied with its key.
const Context* context_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return storage_of(tensor)._mutable_data_ptr_no_checks().cast_context<Context>(&free_context);
}

template <class Visit>
void visit_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack, Visit visit) {
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef())
        if (element.isTensor()) visit(element.toTensor());
    }
  }
}

// Whether the operator uses no element: it creates a view, perhaps by other, intercepted operators,
// or needs only shapes and types.
bool reads_nothing(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = schema.name();
  if (name.ends_with("_like") || name.starts_with("aten::new_")) return true;
  if (name == "aten::_has_compatible_shallow_copy_type") return true;  // From set_data().
  if (schema.arguments().empty()) return true;
  const c10::AliasInfo* const alias = schema.arguments().front().alias_info();
  return alias != nullptr && !alias->isWrite() && !schema.returns().empty();
}

}  // namespace

void touch_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<std::pair<std::shared_ptr<TouchWatcher>, std::vector<std::size_t>>> told;
  visit_arguments(op, stack, [&](const at::Tensor& tensor) {
    const Context* const context = context_of(tensor);
    if (context == nullptr) return;
    auto watcher = context->watcher.lock();
    if (watcher == nullptr) return;
    const auto same = [&](const auto& one) { return one.first == watcher; };
    auto found = std::ranges::find_if(told, same);
    if (found == told.end()) found = told.insert(told.end(), {std::move(watcher), {}});
    std::vector<std::size_t>& ids = found->second;
    if (std::ranges::find(ids, context->id) == ids.end()) ids.push_back(context->id);
  });
  for (const auto& [watcher, ids] : told) watcher->touched(ids);
}

void touch(const at::Tensor& tensor) {
  const Context* const context = context_of(tensor);
  if (context == nullptr) return;
  if (const auto watcher = context->watcher.lock()) watcher->touched({context->id});
}

void run_touching(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack) {
  const auto after = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
  if (reads_nothing(op)) return op.redispatchBoxed(after, &stack);
  touch_arguments(op, stack);
  const c10::impl::ExcludeDispatchKeyGuard told(key);  // For operators that this one calls.
  op.redispatchBoxed(after, &stack);
}

void watch_tensor(const at::Tensor& parameter, const WatchedForm& form,
                  const std::weak_ptr<TouchWatcher>& watcher, std::size_t id) {
  tensor::take_dispatch_key();
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(form.sizes)) * c10::elementSize(form.type);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<std::int64_t>(bytes)),
      data_of(nullptr, form.device, {watcher, id, nullptr}), /*allocator=*/nullptr,
      /*resizable=*/false);
  const c10::DispatchKeySet keys(
      {c10::computeDispatchKey(form.type, at::kStrided, form.device), key});
  auto tensor = c10::make_intrusive<at::TensorImpl>(c10::Storage(std::move(storage)), keys,
                                                    c10::scalarTypeToTypeMeta(form.type));
  tensor->set_sizes_contiguous(form.sizes);
  const at::NoGradGuard no_grad;
  if (parameter.is_meta())
    parameter.unsafeGetTensorImpl()->shallow_copy_from(tensor);
  else
    parameter.set_data(at::Tensor(std::move(tensor)));
}

void attach_memory(const at::Tensor& watched, void* data, std::shared_ptr<const void> memory) {
  const Context* const found = context_of(watched);
  check(found != nullptr, "a tensor that is not watched gets memory");
  const Context& old = *found;
  c10::StorageImpl& storage = storage_of(watched);
  storage.set_data_ptr_noswap(
      data_of(data, watched.device(), {old.watcher, old.id, std::move(memory)}));
  clear_access_error(storage);
}

void detach_memory(const at::Tensor& watched, const std::string& text) {
  if (context_of(watched) == nullptr) return;  // It was given other memory.
  attach_memory(watched, nullptr, nullptr);
  set_access_error(storage_of(watched), text);
}

}  // namespace lockstep
