// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp/optimizer.h"

#include <lockstep/optim/optimizers.h>
#include <lockstep/parallel/shard/zero_redundancy_optimizer.h>
#include <lockstep/parallel/shared_parameters/shared_optimizer.h>

#include <stdexcept>

std::vector<std::string> optimizer_names() { return {"adam", "shared", "zero1", "zero2"}; }

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Workload& work, const Options& options,
    const std::optional<lockstep::ProcessGroup>& world) {
  using lockstep::Adam;
  const auto& parameters = work.parameters;
  const torch::optim::AdamOptions adam(1e-4);
  if (options.optimizer == "adam") return std::make_unique<Adam>(parameters, adam);
  if (options.optimizer == "shared")
    return std::make_unique<lockstep::SharedOptimizer<Adam>>(*work.ddp, parameters, adam);
  if (options.optimizer == "zero1" || options.optimizer == "zero2") {
    using Zero = lockstep::ZeroRedundancyOptimizer<Adam>;
    auto zero = std::make_unique<Zero>(parameters, *world, adam);
    if (options.optimizer == "zero2")
      dynamic_cast<lockstep::DistributedDataParallelBase&>(*work.ddp).shard_gradients(*zero);
    return zero;
  }
  throw std::runtime_error("there is no optimizer " + options.optimizer);
}
