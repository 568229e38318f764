// Averages sparse gradients at the end of a pass: as in PyTorch over Gloo, ranks gather and add all
// elements.
//
// Thread safety: as GradientSink.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::parallel {

// Trained weights of Embeddings and EmbeddingBags with sparse(true), and trained parameters of the
// given names.
// Errors: misuse for an unknown name; unsupported, with its name, for a parameter outside CPU
// memory.
std::vector<at::Tensor> sparse_parameters(const torch::nn::Module& module,
                                          const std::vector<std::string>& names);

class SparseGradients final : public GradientSink {
 public:
  // `parameters` outlive this object. `dense` takes other gradients.
  SparseGradients(const NamedTensors& parameters, std::vector<bool> is_sparse,
                  const ProcessGroup& group, bool check_finite,
                  std::unique_ptr<GradientSink> dense);

  SinkTraits traits() const override { return {.is_sparse = is_sparse_}; }
  void assign(const BucketAssignment& assignment) override;
  bool begin(bool early) override;
  Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) override;
  Taken take_left_out(std::size_t index, at::Tensor& gradient) override;
  void start(std::size_t bucket) override;
  std::optional<std::size_t> wait() override { return dense_->wait(); }
  void finish(const PassReports& reports, double factor) override;
  void release() noexcept override;
  std::shared_ptr<GradientPool> pool() const override { return dense_->pool(); }
  std::vector<RegisteredMemory> memory() const override { return dense_->memory(); }
  std::chrono::nanoseconds reduce_time() const override {
    return reduce_time_ + dense_->reduce_time();
  }

 private:
  Taken taken(std::size_t index, const at::Tensor& gradient);
  void average(std::size_t index, double factor) const;

  const NamedTensors& parameters_;
  const std::vector<bool> is_sparse_;
  const ProcessGroup group_;
  const bool check_finite_;
  const std::unique_ptr<GradientSink> dense_;
  std::vector<std::optional<std::size_t>> dense_bucket_;  // By bucket: its number in `dense_`.
  std::vector<at::Tensor> taken_;                         // By parameter.
  std::chrono::nanoseconds reduce_time_{};
};

}  // namespace lockstep::parallel
