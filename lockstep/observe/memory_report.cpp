// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/memory_report.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/observe/process_memory.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {
namespace {

using observe::Mapping;
using Extents = std::vector<observe::Extent>;

// In the order of MemoryParts.
enum Part : std::size_t { parameters, gradients, optimizer_state, buckets, caches };
constexpr std::array all_parts{parameters, gradients, optimizer_state, buckets, caches};

struct Found {
  std::array<Extents, all_parts.size()> extents;
  ResidentMemory resident;
  int state_tensors = 0;  // Maximum over the parameters.
};

// --- Tensors ------------------------------------------------------------------------------------

const torch::optim::Optimizer& local(const torch::optim::Optimizer& optimizer) {
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  return sharded != nullptr ? sharded->local() : optimizer;
}

MemorySharing sharing_of(const DataParallelBase& ddp, const DataParallelStats& stats,
                         const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const FullyShardedBase*>(&ddp) != nullptr) return MemorySharing::fully_sharded;
  if (dynamic_cast<const SharedOptimizerBase*>(&optimizer) != nullptr)
    return MemorySharing::shared_parameters;
  if (dynamic_cast<const WholeParameterOptimizer*>(&optimizer) == nullptr)
    return MemorySharing::none;
  return stats.shards_gradients ? MemorySharing::zero_stage_2 : MemorySharing::zero_stage_1;
}

std::vector<std::string> unit_patterns_of(const DataParallelBase& ddp) {
  const auto* sharded = dynamic_cast<const FullyShardedBase*>(&ddp);
  return sharded != nullptr ? sharded->unit_patterns() : std::vector<std::string>{};
}

const DeterministicBase* deterministic_of(const DataParallelBase& ddp) {
  return dynamic_cast<const DeterministicBase*>(&ddp);
}

int microbatches_of(const DataParallelBase& ddp) {
  const auto* deterministic = deterministic_of(ddp);
  return deterministic != nullptr ? deterministic->microbatches() : 0;
}

class Finder {
 public:
  Finder(const DataParallelBase& ddp, const DataParallelStats& stats,
         const torch::optim::Optimizer& optimizer, const std::vector<RegisteredMemory>& given)
      : mappings_(observe::mappings_of_this_process()) {
    for (const RegisteredMemory& memory : given) add(caches, memory.data(), memory.bytes());
    for (const RegisteredMemory& memory : stats.gradient_memory)
      add(buckets, memory.data(), memory.bytes());
    if (const auto* deterministic = deterministic_of(ddp))
      for (const at::Tensor& sums : deterministic->microbatch_memory()) add(buckets, sums);
    if (const auto* shared = dynamic_cast<const SharedOptimizerBase*>(&optimizer))
      for (const at::Tensor& flat : shared->gradient_memory()) add(buckets, flat);
    for (const auto& [name, parameter] : named_parameters(ddp.replica())) {
      add(parameters, parameter);
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined() && !is_in_buckets(gradient)) add(gradients, gradient);
    }
    for (const auto& [parameter, state] : local(optimizer).state()) add(*state);
    found_.resident = {observe::proportional_bytes_of_this_process(), resident(parameters),
                       resident(buckets)};
  }

  const Found& found() const { return found_; }

 private:
  void add(Part part, const void* data, std::size_t bytes) {
    if (bytes > 0) found_.extents[part].push_back(observe::extent_of(data, bytes, mappings_));
  }

  void add(Part part, const at::Tensor& tensor) {
    add(part, tensor.storage().data(), tensor.storage().nbytes());
  }

  void add(torch::optim::OptimizerParamState& state) {
    int count = 0;
    for (const auto& [name, tensor] : parts_of(state).tensors) {
      if (!tensor->defined()) continue;
      add(optimizer_state, *tensor);
      ++count;
    }
    found_.state_tensors = std::max(found_.state_tensors, count);
  }

  bool is_in_buckets(const at::Tensor& tensor) const {
    const observe::Extent extent = observe::extent_of(tensor.data_ptr(), 1, mappings_);
    return std::any_of(found_.extents[buckets].begin(), found_.extents[buckets].end(),
                       [&](const observe::Extent& bucket) {
                         return bucket.device == extent.device && bucket.inode == extent.inode &&
                                bucket.begin <= extent.begin &&
                                extent.begin < bucket.begin + bucket.bytes;
                       });
  }

  bool has(Part part, const Mapping& mapping) const {
    const auto& extents = found_.extents[part];
    return std::any_of(extents.begin(), extents.end(), [&](const observe::Extent& extent) {
      return mapping.is_shared && extent.device == mapping.device &&
             extent.inode == mapping.inode && mapping.offset <= extent.begin &&
             extent.begin < mapping.offset + (mapping.end - mapping.begin);
    });
  }

  std::optional<std::size_t> resident(Part part) const {
    const auto& extents = found_.extents[part];
    const auto is_private = [](const observe::Extent& extent) {
      return extent.device == observe::no_device;
    };
    if (extents.empty() || std::any_of(extents.begin(), extents.end(), is_private)) return {};
    std::size_t bytes = 0;
    for (const Mapping& mapping : mappings_) {
      if (!has(part, mapping)) continue;
      for (const Part other : all_parts)
        if (other != part && has(other, mapping)) return {};
      bytes += mapping.proportional_bytes;
    }
    return bytes;
  }

  const std::vector<Mapping> mappings_;
  Found found_;
};

// --- Of all ranks -------------------------------------------------------------------------------

std::vector<Extents> gather(const Extents& mine, const ProcessGroup& group) {
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()),
                               mine.size() * sizeof(observe::Extent));
  std::vector<Extents> all;
  for (const std::string& theirs : all_gather_bytes(bytes, group)) {
    Extents& extents = all.emplace_back(theirs.size() / sizeof(observe::Extent));
    if (!extents.empty()) std::memcpy(extents.data(), theirs.data(), theirs.size());
  }
  return all;
}

std::size_t& bytes_of(Part part, MemoryParts& all) {
  const std::array<std::size_t*, all_parts.size()> members{
      &all.parameters, &all.gradients, &all.optimizer_state, &all.buckets, &all.caches};
  return *members[part];
}

MemoryTable measure(const Found& mine, const ProcessGroup& group) {
  MemoryTable table;
  table.ranks.resize(static_cast<std::size_t>(group.size()));
  for (const Part part : all_parts) {
    Extents host;
    const std::vector<Extents> ranks = gather(mine.extents[part], group);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      bytes_of(part, table.ranks[r]) = observe::bytes_of_union(ranks[r]);
      host.insert(host.end(), ranks[r].begin(), ranks[r].end());
    }
    bytes_of(part, table.host) = observe::bytes_of_union(std::move(host));
  }
  return table;
}

// The first replica provides the host's.
MemoryTable gather(const MemoryTable& mine, const ProcessGroup& replicas, const ProcessGroup& all) {
  MemoryTable table;
  table.ranks = all_gather_value(mine.ranks[static_cast<std::size_t>(replicas.rank())], all);
  const MemoryParts hosts = replicas.rank() == 0 ? mine.host : MemoryParts();
  for (MemoryParts& host : all_gather_value(hosts, all))
    for (const Part part : all_parts) bytes_of(part, table.host) += bytes_of(part, host);
  return table;
}

void predict_caches(MemoryReport& report) {
  for (std::size_t rank = 0; rank < report.predicted.ranks.size(); ++rank)
    report.predicted.ranks[rank].caches = report.measured.ranks[rank].caches;
  report.predicted.host.caches = report.measured.host.caches;
}

void add(std::optional<std::size_t>& sum, const std::optional<std::size_t>& bytes) {
  if (bytes) sum = sum.value_or(0) + *bytes;
}

// Ranks that are threads share their process's memory, which counts once.
ResidentMemory sum_of(const std::vector<ResidentMemory>& ranks, const std::vector<pid_t>& pids) {
  ResidentMemory sum;
  std::set<pid_t> seen;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!seen.insert(pids[r]).second) continue;
    sum.process += ranks[r].process;
    add(sum.parameters, ranks[r].parameters);
    add(sum.buckets, ranks[r].buckets);
  }
  return sum;
}

}  // namespace

MemoryReport memory_report(const DataParallelBase& ddp, const torch::optim::Optimizer& optimizer) {
  return memory_report(ddp, optimizer, ddp.group());
}

MemoryReport memory_report(const DataParallelBase& ddp, const torch::optim::Optimizer& optimizer,
                           const ProcessGroup& all) {
  return memory_report(ddp, optimizer, all, {});
}

MemoryReport memory_report(const DataParallelBase& ddp, const torch::optim::Optimizer& optimizer,
                           const ProcessGroup& all, const std::vector<RegisteredMemory>& given) {
  if (all.local_size() != all.size())
    throw Error(Fault::unsupported, "memory_report: all ranks must be on one host");
  for (const auto& [name, parameter] : named_parameters(ddp.replica()))
    if (!parameter.is_cpu())
      throw Error(Fault::unsupported, "memory_report: only CPU memory is measured, but parameter " +
                                          name + " is on " + parameter.device().str());
  // While all ranks are here, none accesses new memory.
  all.barrier({.label = "memory_report"});
  const DataParallelStats stats = ddp.stats();
  const Found mine = Finder(ddp, stats, optimizer, given).found();
  const auto state_tensors = all_gather_value(mine.state_tensors, all);

  MemoryReport report;
  const MemoryPlan plan{
      .ranks = ddp.group().size(),
      .sharing = sharing_of(ddp, stats, optimizer),
      .state_tensors = *std::max_element(state_tensors.begin(), state_tensors.end()),
      .microbatches = microbatches_of(ddp),
      .units = unit_patterns_of(ddp),
      .gradient_as_bucket_view = stats.has_gradient_views};
  report.predicted = gather(predict_memory(ddp.replica(), plan), ddp.group(), all);
  report.measured = measure(mine, all);
  predict_caches(report);
  report.resident = all_gather_value(mine.resident, all);
  report.resident_host = sum_of(report.resident, all_gather_value(getpid(), all));
  return report;
}

}  // namespace lockstep
