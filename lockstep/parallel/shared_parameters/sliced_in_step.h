// SteppedSlices of a DistributedDataParallel with share_parameters: step() averages each `.grad`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/shared_parameters/gradient_slices.h"
#include "lockstep/parallel/shared_parameters/stepped_slices.h"

namespace lockstep::parallel {

class ParameterStore;

class SlicedInStep final : public SteppedSlices {
 public:
  struct Passes {
    std::shared_ptr<const std::int64_t> averaged;  // So far.
    bool leave_means;                              // `.grad` is already the mean.
  };

  // Collective. `shared` outlives this object.
  SlicedInStep(const std::vector<at::Tensor>& parameters, const ParameterStore& shared,
               const ProcessGroup& group, Passes passes);

  const std::vector<Shard>& shards() const override { return slices_.shards(); }
  const std::vector<at::Tensor>& fragments() const override { return fragments_; }
  bool average() override;
  bool is_averaged() const override;
  const std::vector<bool>& used() const override { return used_; }
  void forget() override;
  std::vector<at::Tensor> memory() const override { return slices_.flats(); }

 private:
  const std::vector<at::Tensor> parameters_;
  const Passes passes_;
  const GradientSlices slices_;
  std::vector<at::Tensor> fragments_;
  std::vector<bool> used_;
  std::optional<std::int64_t> averaged_in_;  // The last pass in the fragments' gradients.
};

}  // namespace lockstep::parallel
