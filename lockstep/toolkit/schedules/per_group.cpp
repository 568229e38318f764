// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/per_group.h"

#include <cstddef>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<double> PerGroup::of(const torch::optim::Optimizer& optimizer,
                                 const char* option) const {
  const std::size_t groups = optimizer.param_groups().size();
  if (!is_list_) return std::vector<double>(groups, numbers_.front());
  require(numbers_.size() == groups, [&] {
    return std::string(option) + " has " + std::to_string(numbers_.size()) +
           " numbers, and the optimizer has " + std::to_string(groups) + " param groups";
  });
  return numbers_;
}

}  // namespace lockstep
