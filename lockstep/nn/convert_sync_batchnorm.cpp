// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/exchange.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/tensor/script_module.h"

namespace lockstep {
namespace {

using torch::nn::AnyModule;
using torch::nn::Module;
using torch::nn::SequentialImpl;

bool is_batch_norm(const Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

template <class BatchNorm>
std::shared_ptr<SyncBatchNormImpl> synced_if(const Module& module) {
  if (typeid(module) != typeid(BatchNorm)) return nullptr;
  const auto& plain = static_cast<const BatchNorm&>(module);
  torch::nn::BatchNormOptions as_made = plain.options;  // May have changed since.
  as_made.affine(plain.weight.defined()).track_running_stats(plain.running_mean.defined());
  auto sync = std::make_shared<SyncBatchNormImpl>(as_made);
  sync->options = plain.options;
  sync->share(
      {plain.weight, plain.bias, plain.running_mean, plain.running_var, plain.num_batches_tracked});
  sync->train(plain.is_training());
  return sync;
}

// Null for derived classes, which may differ.
std::shared_ptr<SyncBatchNormImpl> synced(const Module& module) {
  auto sync = synced_if<torch::nn::BatchNorm1dImpl>(module);
  if (!sync) sync = synced_if<torch::nn::BatchNorm2dImpl>(module);
  if (!sync) sync = synced_if<torch::nn::BatchNorm3dImpl>(module);
  return sync;
}

// Complete before any change.
class Conversion {
 public:
  void plan(Module& module, const std::string& path) {
    if (!visited_.insert(&module).second) return;
    if (auto* const sync = module.as<SyncBatchNormImpl>()) named_.emplace_back(sync, path);
    if (const auto* const script = dynamic_cast<const ScriptModule*>(&module)) {
      for (const std::string& name : script->batch_norms())
        refuse(path.empty() || name.empty() ? path + name : path + "." + name);
      return;
    }
    auto* const sequential = module.as<SequentialImpl>();
    for (const auto& child : module.named_children()) {
      const std::string name = path.empty() ? child.key() : path + "." + child.key();
      if (!is_batch_norm(*child.value()))
        plan(*child.value(), name);
      else if (sequential == nullptr ||
               !plan_element(*sequential, child.key(), child.value(), name))
        refuse(name);
    }
  }

  void require_possible() const {
    if (refused_.empty()) return;
    throw Error(Fault::unsupported,
                "convert_sync_batchnorm: only elements of a torch::nn::Sequential can be "
                "replaced, and these are not: " +
                    refused_ + ". Declare them as lockstep::SyncBatchNorm. Nothing was changed");
  }

  void apply(const ProcessGroup& group) {
    for (auto& [sync, path] : named_)
      sync->synchronize(sync->has_own_group() ? *sync->group() : group, std::move(path));
    for (const nn::Exchange& exchange : exchanges_) exchange.apply();
  }

 private:
  void refuse(const std::string& path) { refused_ += (refused_.empty() ? "" : ", ") + path; }

  // False unless the Sequential runs `child`.
  bool plan_element(SequentialImpl& sequential, const std::string& key,
                    const std::shared_ptr<Module>& child, const std::string& path) {
    auto& sync = replacements_[child.get()];
    const bool is_new = sync == nullptr;
    if (is_new) sync = synced(*child);
    if (!sync) return false;
    auto exchange = nn::Exchange::of(sequential, key, AnyModule(sync));
    if (!exchange) return false;
    exchanges_.push_back(std::move(*exchange));
    if (is_new) named_.emplace_back(sync.get(), path);
    return true;
  }

  std::set<const Module*> visited_;
  std::map<const Module*, std::shared_ptr<SyncBatchNormImpl>> replacements_;
  std::vector<std::pair<SyncBatchNormImpl*, std::string>> named_;
  std::vector<nn::Exchange> exchanges_;
  std::string refused_;
};

}  // namespace

void convert_sync_batchnorm(Module& module, const ProcessGroup& group) {
  if (is_batch_norm(module))
    throw Error(
        Fault::unsupported,
        "convert_sync_batchnorm: the module is itself a BatchNorm and cannot be replaced in its "
        "owner: declare it as lockstep::SyncBatchNorm");
  Conversion conversion;
  conversion.plan(module, "");
  conversion.require_possible();
  conversion.apply(group);
}

}  // namespace lockstep
