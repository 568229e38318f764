// The memory of data-parallel training on each rank and on the host: predicted and measured.
//
//   const auto report = lockstep::memory_report(ddp, adam);  // After adam.step(), on all ranks.
//   if (world.rank() == 0) std::cout << to_string(report);
//
// Byte counts are sizes of storages. Memory that several tensors share counts once; on the host,
// memory that several ranks have mapped counts once. Each rank counts its part of a parameter that
// is cut over ranks. The table excludes activations, the module's buffers and LibTorch itself;
// resident memory includes them.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class DataParallelBase;

// In bytes.
struct MemoryParts {
  // The module's parameters, including frozen ones. For a rank: all that it has mapped.
  std::size_t parameters = 0;

  // `.grad` of these parameters outside the buckets.
  std::size_t gradients = 0;

  // The optimizer's tensors for parameters: for Adam, two of each parameter's size.
  std::size_t optimizer_state = 0;

  // The buckets of small gradients and a rank's part of the pool of large ones. With
  // `deterministic` also the sums over microbatches. Stays allocated while the gradients are
  // undefined.
  std::size_t buckets = 0;

  // Memory for data, such as decoded images (HostCache), if it is passed to memory_report().
  std::size_t caches = 0;

  std::size_t total() const { return parameters + gradients + optimizer_state + buckets + caches; }
};

struct MemoryTable {
  std::vector<MemoryParts> ranks;
  MemoryParts host;  // Over all ranks.
};

enum class MemorySharing {
  none,               // DistributedDataParallel: each rank has everything.
  shared_parameters,  // share_parameters and SharedOptimizer: shared weights and state.
  zero_stage_1,       // ZeroRedundancyOptimizer: each rank has the state of its own parameters.
  zero_stage_2,       // Also only the gradients of its own parameters, with shard_gradients().
  fully_sharded,  // FullyShardedDataParallel: as shared_parameters, with gradients of two units.
  one_copy [[deprecated("renamed to shared_parameters")]] = shared_parameters,
};

struct MemoryPlan {
  int ranks = 1;
  MemorySharing sharing = MemorySharing::none;

  // Tensors of the optimizer per parameter: 2 for Adam and AdamW, 3 with amsgrad, 1 for SGD with
  // momentum, 0 for SGD without.
  int state_tensors = 2;

  int deterministic = 0;  // Number of microbatches.

  std::vector<std::string> units = {};  // FullyShardedOptions::units.

  bool gradient_as_bucket_view = false;  // As the option of that name.
};

// Predicts the table between the optimizer's step() and zero_grad(), for the replicas of `module`:
// the ranks that have the same parts. Assumes that every parameter that requires a gradient has
// one, and that all are in one param group. A parameter with several names counts once.
// Exact except for some cache lines, and for large gradients that autograd sums from several uses
// of one parameter, outside the pool. Only a parameter with several names is recognised as used
// several times. Errors: misuse for no ranks or a negative number of state tensors.
LOCKSTEP_API MemoryTable predict_memory(const torch::nn::Module& module, const MemoryPlan& plan);

// Proportional set size, in bytes: resident pages, each divided by the number of processes that
// have accessed it. Shared memory therefore counts once in the host's sum.
struct ResidentMemory {
  std::size_t process = 0;  // The whole process.

  // Bytes of the mappings that contain only these parts. Empty if other data shares the mappings,
  // for example in memory from malloc().
  std::optional<std::size_t> parameters = {};
  std::optional<std::size_t> buckets = {};
};

struct MemoryReport {
  MemoryTable predicted;
  MemoryTable measured;                  // Bytes of the current tensors.
  std::vector<ResidentMemory> resident;  // One entry per rank.
  ResidentMemory resident_host;          // Sum over all processes.
};

// Reports on all ranks of ddp's group, with the same result on each. Collective; reads
// /proc/self/smaps, which takes some ms.
// Errors: unsupported for ranks on several hosts and for parameters on a device. Also for states of
// other optimizers than LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad. System if /proc cannot be
// read; those of ProcessGroup.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer);

// The same for all ranks of `all`, in its order, such as a whole mesh if parameters are cut over
// mesh["tp"]. `all` contains the group of each rank's ddp completely.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer,
                                        const ProcessGroup& all);

// The same with the memory of caches, such as DecodedImages::cache_memory(). Their prediction is
// their measured value. Caches that all ranks have mapped count once on the host.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer,
                                        const ProcessGroup& all,
                                        const std::vector<RegisteredMemory>& caches);

// Tables in MiB, with some lines for each rank and for the host.
LOCKSTEP_API std::string to_string(const MemoryTable& predicted);
LOCKSTEP_API std::string to_string(const MemoryReport& report);

}  // namespace lockstep
