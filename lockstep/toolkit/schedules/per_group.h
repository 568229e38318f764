// An option of a schedule that may differ between param groups.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// One number for all param groups, or one for each: `.max_lr = {0.1, 0.2}`.
class LOCKSTEP_API PerGroup {
 public:
  PerGroup(double number) : numbers_(1, number), is_list_(false) {}
  PerGroup(std::initializer_list<double> numbers) : PerGroup(std::vector(numbers)) {}
  PerGroup(std::vector<double> numbers) : numbers_(std::move(numbers)), is_list_(true) {}

  bool is_list() const { return is_list_; }

  // One number per param group of `optimizer`. Errors: misuse for a list of another length.
  std::vector<double> of(const torch::optim::Optimizer& optimizer, const char* option) const;

 private:
  std::vector<double> numbers_;
  bool is_list_;
};

}  // namespace lockstep
