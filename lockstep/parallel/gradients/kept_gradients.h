// Sinks that do not reduce gradients.
//
// Thread safety: as GradientSink.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Leaves gradients on their rank: finish() only scales them.
class KeptGradients : public GradientSink {
 public:
  // `parameters` outlive this object.
  KeptGradients(const NamedTensors& parameters, bool check_finite)
      : parameters_(parameters), check_finite_(check_finite) {}

  void assign(const BucketAssignment&) override {}
  bool begin(bool early) override;
  Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) override;
  Taken take_left_out(std::size_t index, at::Tensor& gradient) override;
  void start(std::size_t) override {}
  std::optional<std::size_t> wait() override;
  void finish(const PassReports& reports, double factor) override;
  void release() noexcept override;
  std::shared_ptr<GradientPool> pool() const override { return nullptr; }
  std::vector<RegisteredMemory> memory() const override { return {}; }
  std::chrono::nanoseconds reduce_time() const override { return {}; }

 private:
  const NamedTensors& parameters_;
  const bool check_finite_;
  std::vector<std::size_t> unseen_;  // On a device: one launch checks all.
  FiniteCheck finite_check_;
};

// Gradients of shared parameters, for SharedOptimizer. The host's ranks can read large ones in the
// pool.
class PooledGradients final : public KeptGradients {
 public:
  // Collective, unless the group has one rank.
  PooledGradients(const NamedTensors& parameters, const ProcessGroup& group, bool check_finite);

  std::shared_ptr<GradientPool> pool() const override { return pool_; }
  std::vector<RegisteredMemory> memory() const override;

 private:
  const std::shared_ptr<GradientPool> pool_;
};

// Refuses every averaged pass: DeterministicPass takes the gradients itself.
class MicrobatchGradients final : public KeptGradients {
 public:
  using KeptGradients::KeptGradients;

  // Errors: misuse: the pass is outside train_microbatches().
  bool begin(bool early) override;
};

}  // namespace lockstep::parallel
