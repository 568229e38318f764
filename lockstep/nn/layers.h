// LibTorch's layers in a form that parallelize_module() can cut: nn::Linear is torch::nn::Linear
// until cut. Names, options, initial weights, results and checkpoints are those of torch::nn.
//
// In a cut layer, forward() is collective: all ranks call the same layers in the same order, with
// equal whole inputs or with their parts.
// Autograd: backward() itself sums gradients over the layer's group. Uncut parameters then have
// equal gradients on all ranks, cut ones those of their part.
// Random numbers: all ranks of a group must start with equal generators (torch::manual_seed()).
// Layers keep them equal.
// Thread safety: as LibTorch's modules; one thread per rank calls.
// Errors: LibTorch's and tensor/differentiable.h's; once a model is cut, with the layer's name, and
// misuse for other widths. In a cut Linear or Embedding, mismatch if whole inputs differ (CutTo).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/dropout.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/nn/parallel_layer.h"

namespace lockstep::nn {

class LinearAdapter;

class LOCKSTEP_API LinearImpl : public torch::nn::Cloneable<LinearImpl>, public ParallelLayer {
 public:
  LinearImpl(std::int64_t in_features, std::int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // [..., in_features] to [..., out_features], or parts of them, depending on the style.
  torch::Tensor forward(const torch::Tensor& input);

  std::string mismatch(const ParallelStyle& style, int ranks) const override;

  // Registers the adapter's matrices as submodules; forward() adds its result. Replaces an earlier
  // adapter; null removes it. Requires an uncut layer.
  void adapt(std::shared_ptr<LinearAdapter> adapter);
  const std::shared_ptr<LinearAdapter>& adapter() const { return adapter_; }

  torch::nn::LinearOptions options;  // The whole layer's.
  torch::Tensor weight;              // [out_features, in_features], or this rank's part.
  torch::Tensor bias;                // [out_features], or this rank's part; undefined without bias.

 private:
  torch::Tensor colwise(const torch::Tensor& input, const ColwiseParallel& style) const;
  torch::Tensor rowwise(const torch::Tensor& input, const RowwiseParallel& style) const;
  torch::Tensor whole(const torch::Tensor& input) const;
  Layouts cut_parameters() override;

  std::shared_ptr<LinearAdapter> adapter_;
};
TORCH_MODULE(Linear);

// RowwiseParallel cuts the vocabulary, if necessary unevenly; ColwiseParallel the features.
class LOCKSTEP_API EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl>,
                                   public ParallelLayer {
 public:
  EmbeddingImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : EmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim)) {}
  explicit EmbeddingImpl(torch::nn::EmbeddingOptions options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // Integers of any shape to [..., embedding_dim], or this rank's part. Errors: misuse for an index
  // outside a vocabulary that is cut.
  torch::Tensor forward(const torch::Tensor& indices);

  // Logits of an output layer tied to this weight: [..., embedding_dim] to [..., num_embeddings],
  // or to this rank's part, for lockstep::cross_entropy(). Errors: misuse if cut by features.
  torch::Tensor as_linear(const torch::Tensor& input) const;

  std::string mismatch(const ParallelStyle& style, int ranks) const override;

  torch::nn::EmbeddingOptions options;  // The whole layer's.
  torch::Tensor weight;                 // [num_embeddings, embedding_dim], or this rank's part.

 private:
  torch::Tensor looked_up(const torch::Tensor& indices) const;
  Layouts cut_parameters() override;
};
TORCH_MODULE(Embedding);

class LOCKSTEP_API LayerNormImpl : public torch::nn::Cloneable<LayerNormImpl>,
                                   public ParallelLayer {
 public:
  explicit LayerNormImpl(torch::nn::LayerNormOptions options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string mismatch(const ParallelStyle& style, int ranks) const override;

  torch::nn::LayerNormOptions options;
  torch::Tensor weight;  // normalized_shape; undefined if not affine.
  torch::Tensor bias;
};
TORCH_MODULE(LayerNorm);

struct RMSNormOptions {
  RMSNormOptions(std::vector<std::int64_t> shape)  // NOLINT(google-explicit-constructor)
      : normalized_shape(std::move(shape)) {}

  std::vector<std::int64_t> normalized_shape;
  std::optional<double> eps = {};  // None: the input type's machine epsilon.
  bool elementwise_affine = true;
};

// torch.nn.RMSNorm, which LibTorch's C++ API lacks: x / sqrt(mean(x^2) + eps) * weight, with the
// mean over normalized_shape (Zhang and Sennrich, 2019).
class LOCKSTEP_API RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl>, public ParallelLayer {
 public:
  explicit RMSNormImpl(RMSNormOptions options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string mismatch(const ParallelStyle& style, int ranks) const override;

  RMSNormOptions options;
  torch::Tensor weight;  // normalized_shape; undefined if not affine.
};
TORCH_MODULE(RMSNorm);

// For whole activations, all ranks draw the same mask from the default generator. For parts
// (SequenceParallel), that generator and the rank seed each rank's own mask. Checkpoints thus need
// only the default generator.
class LOCKSTEP_API DropoutImpl : public torch::nn::Cloneable<DropoutImpl>, public ParallelLayer {
 public:
  explicit DropoutImpl(double p) : DropoutImpl(torch::nn::DropoutOptions(p)) {}
  explicit DropoutImpl(const torch::nn::DropoutOptions& options = {});

  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string mismatch(const ParallelStyle& style, int ranks) const override;

  torch::nn::DropoutOptions options;

  // For parts: each rank draws the whole mask and takes its part, so results equal those of one
  // process.
  bool exact = false;

 private:
  torch::Tensor on_part(const torch::Tensor& input, std::int64_t dim) const;
};
TORCH_MODULE(Dropout);

// Converts between the placements of a Redistribution; the identity before it is cut. Replaces
// PyTorch's PrepareModuleInput and PrepareModuleOutput: LibTorch's modules have no forward hooks.
class LOCKSTEP_API RedistributeImpl : public torch::nn::Cloneable<RedistributeImpl>,
                                      public ParallelLayer {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string mismatch(const ParallelStyle& style, int ranks) const override;
};
TORCH_MODULE(Redistribute);

}  // namespace lockstep::nn
