// Stage 2 of ZeRO: averages each gradient on the rank that steps its parameter, in a thread during
// backward(). Other ranks free it once sent.
//
// Thread safety: as GradientSink.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class OwnedGradients final : public GradientSink {
 public:
  // `owners` step the `parameters`, which outlive this object. Nothing else uses `group`.
  OwnedGradients(const NamedTensors& parameters, std::vector<int> owners, const ProcessGroup& group,
                 bool check_finite);
  ~OwnedGradients() override;
  OwnedGradients(const OwnedGradients&) = delete;
  OwnedGradients& operator=(const OwnedGradients&) = delete;

  SinkTraits traits() const override { return {.is_overlapped = true}; }
  void assign(const BucketAssignment& assignment) override;
  bool begin(bool early) override;

  // Leaves `gradient` only on its owner.
  Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) override;
  Taken take_left_out(std::size_t index, at::Tensor& gradient) override;
  void start(std::size_t bucket) override;
  std::optional<std::size_t> wait() override;
  void finish(const PassReports& reports, double factor) override;
  void release() noexcept override;
  std::shared_ptr<GradientPool> pool() const override { return nullptr; }
  std::vector<RegisteredMemory> memory() const override { return {}; }
  std::chrono::nanoseconds reduce_time() const override { return reduction_.time(); }

 private:
  void reduce(std::size_t bucket);
  void reduce_in_place(std::size_t index);
  void adopt(std::size_t index) const;
  void forget_places();
  bool is_owned(std::size_t index) const { return owners_[index] == group_.rank(); }
  bool is_mean(std::size_t index, const at::Tensor& gradient) const;
  Taken taken(std::size_t index, bool was_mean) const;

  const NamedTensors& parameters_;
  const std::vector<GradientForm> forms_;
  const std::vector<int> owners_;
  const ProcessGroup group_;
  const bool check_finite_;
  BucketAssignment assignment_;
  std::vector<at::Tensor> places_;     // By parameter: the taken gradient.
  std::vector<std::size_t> left_out_;  // In the current pass.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> means_;  // Results of earlier passes.
  BucketReduction reduction_;  // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel
