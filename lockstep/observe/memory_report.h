// The memory of data-parallel training per rank and host: predicted and measured.
//
//   const auto report = lockstep::memory_report(ddp, adam);  // After adam.step(), on all ranks.
//   if (world.rank() == 0) std::cout << to_string(report);
//
// Byte counts are sizes of storages. Memory that tensors share counts once; on the host, also
// memory that ranks share. Each rank counts its part of a cut parameter. The table excludes
// activations, the module's buffers and LibTorch itself; resident memory includes them.

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
  // Including frozen ones. For a rank: all that it has mapped.
  std::size_t parameters = 0;

  // `.grad` of these parameters outside the buckets.
  std::size_t gradients = 0;

  // For Adam, two tensors of each parameter's size.
  std::size_t optimizer_state = 0;

  // Memory for small gradients, memory shared with other ranks for large ones, and with
  // DeterministicDataParallel the sums over microbatches. Allocated even while gradients are
  // undefined.
  std::size_t buckets = 0;

  // Those passed to memory_report().
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

  // Per parameter: 2 for Adam and AdamW, 3 with amsgrad, 1 for SGD with momentum, 0 without.
  int state_tensors = 2;

  int microbatches = 0;  // With DeterministicDataParallel.

  std::vector<std::string> units = {};  // FullyShardedOptions::units.

  bool gradient_as_bucket_view = false;  // As the option of that name.
};

// Predicts the memory after step() and before zero_grad(). Assumptions: all plan.ranks ranks have
// this `module`, or equal parts of it. Every parameter that requires a gradient has one. The
// optimizer has one param group.
// Exact except for padding to cache lines, and for large parameters that forward() uses several
// times under one name. Autograd sums their gradients in memory that is not counted.
// Errors: misuse for no ranks, negative state_tensors, or microbatches that ranks do not divide.
LOCKSTEP_API MemoryTable predict_memory(const torch::nn::Module& module, const MemoryPlan& plan);

// Proportional set size, in bytes: each resident page divided by the number of processes that have
// accessed it. Shared memory thus counts once in the host's sum.
struct ResidentMemory {
  std::size_t process = 0;

  // Bytes of mappings that contain only parameters, or only buckets. Empty if other data shares the
  // mappings, as in memory from malloc().
  std::optional<std::size_t> parameters = {};
  std::optional<std::size_t> buckets = {};
};

struct MemoryReport {
  MemoryTable predicted;
  MemoryTable measured;                  // Bytes of the current tensors.
  std::vector<ResidentMemory> resident;  // By rank.
  ResidentMemory resident_host;          // Sum over all processes.
};

// Reports the memory of all ranks of ddp's group; all get the same report. Collective; reads
// /proc/self/smaps, which takes some ms.
// Errors: unsupported for several hosts, parameters on a device, and states of optimizers other
// than LARS, LAMB and LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad. System if /proc cannot be
// read; those of ProcessGroup.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer);

// For all ranks of `all`, in its order, such as a whole mesh for parameters cut over mesh["tp"].
// `all` contains each rank's whole ddp group.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer,
                                        const ProcessGroup& all);

// Also with caches, such as DecodedImages::cache_memory(). The prediction of a cache is its
// measured value.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer,
                                        const ProcessGroup& all,
                                        const std::vector<RegisteredMemory>& caches);

// Tables in MiB.
LOCKSTEP_API std::string to_string(const MemoryTable& predicted);
LOCKSTEP_API std::string to_string(const MemoryReport& report);

}  // namespace lockstep
