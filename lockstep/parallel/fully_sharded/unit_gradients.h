// During backward(), averages each unit's gradients (sharded_units.h) and frees them. Each rank
// keeps the means of the fragments that it steps.
//
// Thread safety: as GradientSink.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/fully_sharded/sharded_units.h"
#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class UnitGradients final : public GradientSink {
 public:
  // `overlapped`: a thread, which needs a core, averages units.
  struct Settings {
    bool overlapped;
    bool check_finite;
  };

  // Collective. `parameters`, those of `units`, outlive this object. Nothing else uses `group`.
  UnitGradients(const NamedTensors& parameters, std::shared_ptr<ShardedUnits> units,
                const ProcessGroup& group, const Settings& settings);
  ~UnitGradients() override;
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;

  const std::shared_ptr<ShardedUnits>& units() const { return units_; }

  SinkTraits traits() const override {
    return {.own_buckets = units_->units(),
            .is_overlapped = settings_.overlapped,
            .waits_in_pass = true};
  }
  void assign(const BucketAssignment& assignment) override;

  // Errors: misuse for an earlier pass's gradients without an optimizer.
  bool begin(bool early) override;
  Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) override;
  Taken take_left_out(std::size_t index, at::Tensor& gradient) override;
  void start(std::size_t bucket) override;
  std::optional<std::size_t> wait() override;
  void finish(const PassReports& reports, double factor) override;

  void release() noexcept override;
  bool cut_short(std::string_view reason) const noexcept override;

  std::shared_ptr<GradientPool> pool() const override { return pool_; }
  std::vector<RegisteredMemory> memory() const override;
  std::chrono::nanoseconds reduce_time() const override { return reduction_.time(); }

 private:
  void average(std::size_t unit);
  void forget_pass() noexcept;
  Taken judge(const at::Tensor& gradient) const;
  at::Tensor on_host(std::size_t index, const at::Tensor& gradient);

  const NamedTensors& parameters_;
  const std::shared_ptr<ShardedUnits> units_;
  const ProcessGroup group_;
  const Settings settings_;
  const std::shared_ptr<GradientPool> pool_;    // May be null.
  std::vector<std::size_t> unit_of_;            // By bucket.
  std::vector<at::Tensor> gradients_;           // By parameter, until averaged.
  std::vector<std::size_t> left_out_;           // In the current pass.
  std::vector<std::vector<at::Tensor>> means_;  // By unit, until finish().
  std::exception_ptr error_;                    // On the caller's thread, until wait().
  std::optional<std::size_t> non_finite_;       // Among a device's gradients, until wait().
  BucketReduction reduction_;                   // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel
