// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/sink_choice.h"

#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>
#include <sched.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/gradients/bucketed_gradients.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/kept_gradients.h"
#include "lockstep/parallel/gradients/owned_gradients.h"
#include "lockstep/parallel/gradients/sparse_gradients.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep::parallel {
namespace {

void require_reducible_gradient(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.is_cpu() && !parameter.is_cuda())
    throw Error(Fault::unsupported,
                "gradients are averaged in CPU and CUDA memory only, and parameter " + name +
                    " is on " + parameter.device().str());
  try {
    reducible_dtype(c10::toRealValueType(parameter.scalar_type()));
  } catch (const Error& error) {
    throw Error(error.fault(), "the gradient of parameter " + name + ": " + error.what());
  }
}

NamedTensors only_trained(NamedTensors all) {
  NamedTensors parameters = trained_parameters(std::move(all));
  require(!parameters.empty(), "the module has no parameter that requires a gradient");
  for (const auto& [name, parameter] : parameters) require_reducible_gradient(name, parameter);
  return parameters;
}

std::vector<bool> which_are_in(const std::vector<at::Tensor>& tensors,
                               const NamedTensors& parameters) {
  std::vector<bool> found;
  for (const auto& [name, parameter] : parameters)
    found.push_back(std::ranges::any_of(
        tensors, [&](const at::Tensor& tensor) { return tensor.is_same(parameter); }));
  return found;
}

// For calls concurrent with the caller's.
ProcessGroup group_of_its_own(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *group.new_group(ranks);
}

bool checks_finite(const DistributedDataParallelOptions& options) {
  return options.non_finite != NonFinite::ignore;
}

struct Cores {
  int threads;  // Including one that would reduce.
  cpu_set_t allowed;
};

Cores own_cores() {
  Cores own{};
  own.threads = at::get_num_threads() + 1;
  ::sched_getaffinity(0, sizeof own.allowed, &own.allowed);  // Empty if it fails.
  return own;
}

bool suffice(const std::vector<Cores>& all) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int threads = 0;
  for (const Cores& cores : all) {
    CPU_OR(&allowed, &allowed, &cores.allowed);
    threads += cores.threads;
  }
  return CPU_COUNT(&allowed) >= threads;
}

}  // namespace

bool agree_on_overlap(const DistributedDataParallelOptions& options, const ProcessGroup& group,
                      c10::Device device) {
  if (!device.is_cpu()) return options.overlap.value_or(group.size() > 1);
  const auto all = all_gather_value(own_cores(), group, {.label = "cores"});
  // Networks transfer without cores: overlap helps even if none is idle.
  const bool spans_hosts = group.local_size() < group.size();
  return options.overlap.value_or(spans_hosts || (group.size() > 1 && suffice(all)));
}

SinkChoice::SinkChoice(NamedTensors parameters, const std::vector<at::Tensor>& sparse,
                       const ProcessGroup& group, const DistributedDataParallelOptions& options,
                       bool needs_own_group)
    : options_(options),
      parameters_(only_trained(std::move(parameters))),
      is_sparse_(which_are_in(sparse, parameters_)),
      overlapped_(!options.share_parameters &&
                  agree_on_overlap(options, group, parameters_.front().second.device())),
      group_(overlapped_ || needs_own_group ? group_of_its_own(group) : group) {}

std::unique_ptr<GradientSink> SinkChoice::sink() const {
  if (std::ranges::none_of(is_sparse_, std::identity())) return dense_sink();
  return std::make_unique<SparseGradients>(parameters_, is_sparse_, group_, checks_finite(options_),
                                           dense_sink());
}

std::unique_ptr<GradientSink> SinkChoice::dense_sink() const {
  const bool check = checks_finite(options_);
  if (options_.share_parameters)
    return std::make_unique<PooledGradients>(parameters_, group_, check);
  if (group_.size() == 1) return std::make_unique<KeptGradients>(parameters_, check);
  return std::make_unique<BucketedGradients>(
      parameters_, group_,
      BucketedGradients::Settings{.overlapped = overlapped_,
                                  .check_finite = check,
                                  .as_views = options_.gradient_as_bucket_view});
}

SinkChoice::Chosen SinkChoice::with_hook(CommunicationHook hook) const {
  // A hook's exception aborts its group, which must not be the caller's.
  const ProcessGroup group = overlapped_ ? group_ : group_of_its_own(group_);
  return {.sink = std::make_unique<BucketedGradients>(
              parameters_, group,
              BucketedGradients::Settings{.overlapped = overlapped_,
                                          .check_finite = checks_finite(options_),
                                          .as_views = options_.gradient_as_bucket_view,
                                          .hook = std::move(hook)}),
          .group = group};
}

SinkChoice::Chosen SinkChoice::with_owners(std::vector<int> owners) const {
  const ProcessGroup group = group_of_its_own(group_);
  return {.sink = std::make_unique<OwnedGradients>(parameters_, std::move(owners), group,
                                                   checks_finite(options_)),
          .group = group};
}

}  // namespace lockstep::parallel
