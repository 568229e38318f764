// Zeros that stay: masks on the parameters of a model, as torch.nn.utils.prune has them.
//
//   lockstep::PruningMasks masks(*model, world);
//   masks.l1_unstructured("linear1.weight", 0.8);  // The smallest 80 %.
//   masks.ln_structured("conv1.weight", 4, /*norm=*/2, /*dim=*/0);  // 4 filters.
//   for (...) {
//     ...
//     adam.step();
//     masks.apply(adam);  // Zeros are zero again, in weights and in Adam's moments.
//   }
//
// Masks equal Python's, bit for bit, for equal weights and, where they are random, equal
// generators. A call on a parameter that has a mask prunes among what is left, as Python does. The
// weights themselves become zero: there is no `weight_orig`, and forward() costs nothing more.
// Masks make no product faster; channels that are removed do (channel_pruner.h).
//
// With a group, masks are those of rank 0, and the calls that prune are collective.
//
// A tied weight has one mask, whichever of its names a call has.
//
// Saved as a part of a checkpoint: TrainingState::add("masks", masks). Loading replaces all masks.
//
// Lifetime: the model outlives it. Thread safety: none.
// Errors: misuse for a parameter that the model lacks or whose elements ranks share, an amount
// outside of [0, 1] or of more than there is, and a `dim` that the parameter lacks; unsupported for
// a model with layers that are cut over ranks; those of ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// How much is pruned: a share, such as 0.3, rounded as Python's round() does; or a number, such as
// 4, of elements or channels.
class PruningAmount {
 public:
  PruningAmount(double share) : amount_(share) {}             // NOLINT(google-explicit-constructor)
  PruningAmount(std::int64_t count) : amount_(count) {}       // NOLINT(google-explicit-constructor)
  PruningAmount(int count) : amount_(std::int64_t{count}) {}  // NOLINT(google-explicit-constructor)

  // Errors: misuse for an amount that is not of `all`.
  LOCKSTEP_API std::int64_t of(std::int64_t all) const;

 private:
  std::variant<double, std::int64_t> amount_;
};

class LOCKSTEP_API PruningMasks final : public Stateful {
 public:
  explicit PruningMasks(torch::nn::Module& model, const std::optional<ProcessGroup>& group = {});

  // Elements of the least absolute value.
  void l1_unstructured(const std::string& parameter, PruningAmount amount);

  // The least absolute values of all these parameters together.
  void global_l1_unstructured(const std::vector<std::string>& parameters, PruningAmount amount);

  void random_unstructured(const std::string& parameter, PruningAmount amount);

  // Slices along `dim` with the least norm over the other dimensions.
  void ln_structured(const std::string& parameter, PruningAmount amount, double norm,
                     std::int64_t dim);

  void random_structured(const std::string& parameter, PruningAmount amount, std::int64_t dim);

  // A mask of the program's own, of the parameter's shape: what is zero in it is pruned, too.
  void custom_from_mask(const std::string& parameter, const at::Tensor& mask);

  // The parameter loses its mask and keeps its zeros, which may change from now on.
  void remove(const std::string& parameter);

  // Makes what is masked zero, also in the optimizer's state. Call after each step of it. Not
  // collective. Reads and writes masked parameters and their state once.
  void apply();
  void apply(torch::optim::Optimizer& optimizer);

  // Of type bool; undefined for a parameter without a mask.
  at::Tensor mask(const std::string& parameter) const;

  // The share of zeros in the masks; 0 without any.
  double sparsity() const;

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  // Returns the mask of all elements, of a parameter's type, made of its values and its old mask.
  using Method = std::function<at::Tensor(const at::Tensor& values, const at::Tensor& mask)>;

  // Of a tied weight, the name under which the model lists it first.
  const std::string& first_name_of(const std::string& name) const;
  at::Tensor parameter_of(const std::string& name) const;
  at::Tensor mask_or_ones(const std::string& name) const;
  void prune(const std::string& name, const Method& method);
  void set(const std::string& name, at::Tensor mask);

  const std::map<std::string, at::Tensor> parameters_;    // By each of their names.
  const std::map<std::string, std::string> first_names_;  // By each name.
  const std::optional<ProcessGroup> group_;
  std::map<std::string, at::Tensor> masks_;  // Of type bool, by the parameter's first name.
};

}  // namespace lockstep
