// Where the memory of data-parallel training goes, on each rank and on the host: predicted, and
// measured.
//
//   loss.backward();
//   adam.step();
//   const auto report = lockstep::memory_report(ddp, adam);          // on all ranks
//   if (world.rank() == 0) std::cout << to_string(report);
//
//   // And for a machine that is not there yet:
//   std::cout << to_string(lockstep::predict_memory(
//       *net, {.ranks = 8, .sharing = MemorySharing::one_copy}));
//
// Bytes are those of storages: what several tensors share counts once, and so does on the host what
// several ranks have mapped. Activations, the module's buffers (running means, say) and LibTorch
// itself are no part of the table, but of each process's resident memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

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
  // The module's parameters, frozen ones too; of a rank those it has mapped, whoever else has.
  std::size_t parameters = 0;

  // `.grad` of these, but for what lies in the buckets.
  std::size_t gradients = 0;

  // Tensors that the optimizer keeps for parameters: two of each parameter's size for Adam.
  std::size_t optimizer_state = 0;

  // Memory for gradients: the buckets of small ones and the pool of large ones, a rank's
  // own part of it; with `deterministic` the sums over pieces. Gradients lie there after
  // backward(), and it stays when they are undefined.
  std::size_t buckets = 0;

  std::size_t total() const { return parameters + gradients + optimizer_state + buckets; }
};

struct MemoryTable {
  std::vector<MemoryParts> ranks;
  MemoryParts host;  // Of all ranks.
};

// How the ranks of a host divide parameters, gradients and optimizer state.
enum class MemorySharing {
  none,          // DistributedDataParallel: each has all.
  one_copy,      // share_parameters and SharedOptimizer: one copy of the weights, and of the state.
  zero_stage_1,  // ZeroRedundancyOptimizer: each has the state of its own parameters.
  zero_stage_2,  // And the gradients of these alone, with shard_gradients().
};

struct MemoryPlan {
  int ranks = 1;
  MemorySharing sharing = MemorySharing::none;

  // That the optimizer keeps of each parameter, in its type and size: 2 for Adam and AdamW, 3 with
  // amsgrad, 1 for SGD with momentum, 0 for SGD without.
  int state_tensors = 2;

  int deterministic = 0;  // Pieces, as the option of that name.
};

// The table as it will be between the optimizer's step() and zero_grad(), if every parameter that
// requires a gradient has one and all are in one param group. A parameter with several names, such
// as the weights of a tied embedding, counts once. Exact but for some cache lines, and for large
// gradients that autograd adds up from several, as it does for a parameter that is used twice: the
// pool has no room for the sum. That is told by a parameter's several names only.
// Errors: misuse when there are no ranks, or a negative number of state tensors.
LOCKSTEP_API MemoryTable predict_memory(const torch::nn::Module& module, const MemoryPlan& plan);

// Proportional set size, in bytes: pages that are in memory, each divided by the number of
// processes that have touched it. On the host the sum over its processes, so what they share counts
// once.
struct ResidentMemory {
  std::size_t process = 0;  // All of it.

  // Of the mappings in which these parts lie, where these are the parts' own; nothing where they
  // lie among other things, in memory from malloc() say.
  std::optional<std::size_t> parameters = {};
  std::optional<std::size_t> buckets = {};
};

struct MemoryReport {
  MemoryTable predicted;
  MemoryTable measured;                  // The bytes of the tensors that are there now.
  std::vector<ResidentMemory> resident;  // Of each rank,
  ResidentMemory resident_host;          // and of all.
};

// Of `ddp`'s module and `optimizer`, as they are now, on all ranks of its group: the same on each.
// Collective; reads /proc/self/smaps, which takes some ms.
// Errors: unsupported for ranks on several hosts, for parameters on a device, and for an optimizer
// whose state is none of LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad; system when /proc cannot
// be read; those of ProcessGroup.
LOCKSTEP_API MemoryReport memory_report(const DataParallelBase& ddp,
                                        const torch::optim::Optimizer& optimizer);

// Tables of some lines for each rank and for the host, in MiB.
LOCKSTEP_API std::string to_string(const MemoryTable& predicted);
LOCKSTEP_API std::string to_string(const MemoryReport& report);

}  // namespace lockstep
