// SPDX-License-Identifier: Apache-2.0
#include "bench/ddp/optimizer.h"

#include <lockstep/optim/adam.h>

#include <stdexcept>

std::vector<std::string> optimizer_names() { return {"adam"}; }

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Workload& work, const Options& options,
    const std::optional<lockstep::ProcessGroup>& /*world*/) {
  const torch::optim::AdamOptions adam(1e-4);
  if (options.optimizer == "adam") return std::make_unique<lockstep::Adam>(work.parameters, adam);
  throw std::runtime_error("there is no optimizer " + options.optimizer);
}
