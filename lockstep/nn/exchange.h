// Replaces a module that a torch::nn::Sequential runs.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::nn {

// A lockstep::nn layer that computes the same as `module` and shares its parameters; empty if none
// can.
LOCKSTEP_API torch::nn::AnyModule exchanged(const torch::nn::Module& module);

class LOCKSTEP_API Exchange {
 public:
  // Changes nothing. Empty if `owner` is not a Sequential, or does not run its child `key`.
  // Lifetime: `owner` outlives the result.
  static std::optional<Exchange> of(torch::nn::Module& owner, const std::string& key,
                                    torch::nn::AnyModule replacement);

  void apply() const;

 private:
  Exchange(torch::nn::SequentialImpl& sequential, std::string key,
           torch::nn::AnyModule replacement);

  torch::nn::SequentialImpl* sequential_;
  std::string key_;
  torch::nn::AnyModule replacement_;
  std::vector<torch::nn::AnyModule*> elements_;
};

}  // namespace lockstep::nn
