// The memory of data-parallel training on each rank and on the host: predicted and measured.
//
//   loss.backward();
//   adam.step();
//   const auto report = lockstep::memory_report(ddp, adam);          // on all ranks
//   if (world.rank() == 0) std::cout << to_string(report);
//
//   // With parameters that are cut over mesh["tp"]: all ranks, not those of mesh["dp"] alone.
//   memory_report(ddp, adam, world);
//
//   // And for a machine that is not there yet:
//   std::cout << to_string(lockstep::predict_memory(
//       *net, {.ranks = 8, .sharing = MemorySharing::shared_parameters}));
//
// Byte counts are sizes of storages. Memory that several tensors share counts once; on the host,
// memory that several ranks have mapped counts once. For a parameter that is cut over ranks, each
// rank counts its part; each rank counts whole parameters. The table excludes activations, the
// module's buffers (for example running means) and LibTorch itself; resident memory includes them.

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
  // The module's parameters, including frozen ones. For a rank: all that it has mapped, also if
  // others have mapped it too.
  std::size_t parameters = 0;

  // `.grad` of these parameters, without those in the buckets.
  std::size_t gradients = 0;

  // Tensors of the optimizer for parameters: for Adam, two of each parameter's size.
  std::size_t optimizer_state = 0;

  // Memory for gradients: the buckets of small ones and a rank's own part of the pool of large
  // ones; with `deterministic` also the sums over microbatches. It contains the gradients after
  // backward(), and stays allocated while they are undefined.
  std::size_t buckets = 0;

  // Memory for data, such as decoded images (HostCache), if it is passed to memory_report().
  std::size_t caches = 0;

  std::size_t total() const { return parameters + gradients + optimizer_state + buckets + caches; }
};

struct MemoryTable {
  std::vector<MemoryParts> ranks;
  MemoryParts host;  // Over all ranks.
};

// How the ranks of a host divide parameters, gradients and optimizer state.
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

  // Tensors of the optimizer per parameter, in its type and size: 2 for Adam and AdamW, 3 with
  // amsgrad, 1 for SGD with momentum, 0 for SGD without.
  int state_tensors = 2;

  int deterministic = 0;  // Number of microbatches, as in the option of that name.

  std::vector<std::string> units = {};  // FullyShardedOptions::units.

  bool gradient_as_bucket_view = false;  // As the option of that name.
};

// Predicts the table between the optimizer's step() and zero_grad(), for the replicas of `module`:
// if its parameters are cut, for the ranks that have the same parts. Assumes that every parameter
// that requires a gradient has one, and that all are in one param group. A parameter with several
// names, such as a tied embedding's weights, counts once.
// Exact except for some cache lines, and for large gradients that autograd sums from several uses
// of one parameter: the sum is outside the pool. Only a parameter with several names is recognised
// as used several times.
// Errors: misuse for no ranks or a negative number of state tensors.
LOCKSTEP_API MemoryTable predict_memory(const torch::nn::Module& module, const MemoryPlan& plan);

// Proportional set size, in bytes: resident pages, each divided by the number of processes that
// have accessed it. The host's value is the sum over its processes, so shared memory counts once.
struct ResidentMemory {
  std::size_t process = 0;  // The whole process.

  // Bytes of the mappings that contain only these parts. Empty if the parts share mappings with
  // other data, for example in memory from malloc().
  std::optional<std::size_t> parameters = {};
  std::optional<std::size_t> buckets = {};
};

struct MemoryReport {
  MemoryTable predicted;
  MemoryTable measured;                  // Bytes of the current tensors.
  std::vector<ResidentMemory> resident;  // One entry per rank.
  ResidentMemory resident_host;          // Sum over all processes.
};

// Reports on the current state of `ddp`'s module and `optimizer`, for all ranks of ddp's group; the
// result is equal on each rank. Collective; reads /proc/self/smaps, which takes some ms.
// Errors: unsupported for ranks on several hosts, for parameters on a device, and for optimizers
// other than LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad, determined by the type of their
// state. System if /proc cannot be read; those of ProcessGroup.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer);

// Like memory_report(), for all ranks of `all`, such as those of a whole mesh, in its order. Each
// belongs to its own ddp's group, and `all` contains these groups completely.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer,
                                        const ProcessGroup& all);

// Like memory_report(), with the memory of caches, such as DecodedImages::cache_memory(). Their
// prediction is their measured value. Caches that all ranks have mapped count once on the host.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer,
                                        const ProcessGroup& all,
                                        const std::vector<RegisteredMemory>& caches);

// Formats tables in MiB, with some lines for each rank and for the host.
LOCKSTEP_API std::string to_string(const MemoryTable& predicted);
LOCKSTEP_API std::string to_string(const MemoryReport& report);

}  // namespace lockstep
