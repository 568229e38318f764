// Masks that keep pruned parameters zero, as in torch.nn.utils.prune (docs/guide/pruning.md).
//
//   lockstep::PruningMasks masks(*model, world);
//   masks.l1_unstructured("linear1.weight", 0.8);  // The smallest 80 %.
//   masks.apply(adam);                             // After each adam.step().
//
// Masks equal Python's, bit for bit, for equal weights and generators. A second call on a parameter
// prunes its remaining elements. Weights themselves become zero: there is no `weight_orig`.
//
// Masks are rank 0's, and pruning calls are collective. A tied weight has one mask.
// TrainingState::add("masks", masks) saves them. Loading replaces all masks.
//
// Lifetime: the model outlives it. Thread safety: none.
// Errors: misuse for an unknown parameter or `dim`, and a parameter in memory that ranks share.
// Misuse for a share outside [0, 1], and a number above that of unpruned elements or slices.
// Unsupported for layers that are cut over ranks; ProcessGroup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// A share, such as 0.3, rounded like Python's round(); or a number, such as 4, of elements or
// slices.
class PruningAmount {
 public:
  PruningAmount(double share) : amount_(share) {}             // NOLINT(google-explicit-constructor)
  PruningAmount(std::int64_t count) : amount_(count) {}       // NOLINT(google-explicit-constructor)
  PruningAmount(int count) : amount_(std::int64_t{count}) {}  // NOLINT(google-explicit-constructor)

  // Errors: misuse for a share outside [0, 1], or a number outside [0, all].
  LOCKSTEP_API std::int64_t of(std::int64_t all) const;

 private:
  std::variant<double, std::int64_t> amount_;
};

class LOCKSTEP_API PruningMasks final : public Stateful {
 public:
  PruningMasks(torch::nn::Module& model, const ProcessGroup& group);
  [[deprecated("pass a group")]] explicit PruningMasks(torch::nn::Module& model)
      : PruningMasks(model, ProcessGroup::self()) {}

  // Prunes the elements of the smallest absolute value.
  void l1_unstructured(const std::string& parameter, PruningAmount amount);

  // As above, over all these parameters together.
  void global_l1_unstructured(const std::vector<std::string>& parameters, PruningAmount amount);

  void random_unstructured(const std::string& parameter, PruningAmount amount);

  // Prunes the slices along `dim` with the smallest norms.
  void ln_structured(const std::string& parameter, PruningAmount amount, double norm,
                     std::int64_t dim);

  void random_structured(const std::string& parameter, PruningAmount amount, std::int64_t dim);

  // Prunes the elements that are zero in a mask of the parameter's shape.
  void custom_from_mask(const std::string& parameter, const at::Tensor& mask);

  // The parameter's zeros stay, but may change from now on.
  void remove(const std::string& parameter);

  // Sets masked elements to zero, also in the optimizer's state. Not collective.
  void apply();
  void apply(torch::optim::Optimizer& optimizer);

  // Type bool; undefined for a parameter without a mask.
  at::Tensor mask(const std::string& parameter) const;

  // Share of zeros in the masks; 0 without masks.
  double sparsity() const;

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  // New mask of all elements, in the parameter's type.
  using Method = std::function<at::Tensor(const at::Tensor& values, const at::Tensor& mask)>;

  // The first name in the model of a tied weight.
  const std::string& first_name_of(const std::string& name) const;
  at::Tensor parameter_of(const std::string& name) const;
  at::Tensor mask_or_ones(const std::string& name) const;
  void prune(const std::string& name, const Method& method);
  void set(const std::string& name, at::Tensor mask);

  const std::map<std::string, at::Tensor> parameters_;    // By each name.
  const std::map<std::string, std::string> first_names_;  // By each name.
  const ProcessGroup group_;
  std::map<std::string, at::Tensor> masks_;  // By first name.
};

}  // namespace lockstep
