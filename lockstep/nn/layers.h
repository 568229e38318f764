// LibTorch's layers with the ability to be cut over ranks. Names, options, first weights, results
// and checkpoints are those of torch::nn; parallelize_module() cuts them.
//
//   lockstep::nn::Linear in(512, 2048), out(2048, 512);    // As torch::nn::Linear, until cut.
//
// Before they are cut, all work without a group. After it, forward() is collective over the group:
// all its ranks call the same layers in the same order, with equal whole inputs, or with their
// parts.
// Autograd: sums over ranks happen in backward() itself, where the value is made. After it, the
// gradient of a whole parameter is equal on all ranks, and that of a part is that of the part.
// Random numbers: all ranks of a group begin with equal generators (torch::manual_seed()). Layers
// keep them in step.
// Thread safety: as LibTorch's modules; one thread per rank calls.
// Errors: LibTorch's and those of tensor/differentiable.h, with the layer's name once it is cut. At
// calls 1, 2, 4, 8 and so on of a cut Linear or Embedding, mismatch for whole inputs that differ
// between the ranks.

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

class LoraAdapter;

class LOCKSTEP_API LinearImpl : public torch::nn::Cloneable<LinearImpl>, public ParallelLayer {
 public:
  LinearImpl(std::int64_t in_features, std::int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // [..., in_features] to [..., out_features]; or parts of them, as the style says.
  torch::Tensor forward(const torch::Tensor& input);

  std::string misfit(const ParallelStyle& style, int ranks) const override;

  // Its parameters become the layer's, and forward() adds its result, until another one or null
  // takes its place. Requires: the layer is not cut.
  void adapt(std::shared_ptr<LoraAdapter> adapter);
  const std::shared_ptr<LoraAdapter>& adapter() const { return adapter_; }

  torch::nn::LinearOptions options;  // Of the whole layer.
  torch::Tensor weight;              // [out_features, in_features], or this rank's part.
  torch::Tensor bias;                // [out_features]; undefined without one.

 private:
  torch::Tensor colwise(const torch::Tensor& input, const ColwiseParallel& style) const;
  torch::Tensor rowwise(const torch::Tensor& input, const RowwiseParallel& style) const;
  torch::Tensor whole(const torch::Tensor& input) const;
  Layouts cut_parameters() override;

  std::shared_ptr<LoraAdapter> adapter_;
};
TORCH_MODULE(Linear);

// RowwiseParallel cuts the vocabulary, in parts that may be uneven. ColwiseParallel cuts the
// features.
class LOCKSTEP_API EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl>,
                                   public ParallelLayer {
 public:
  EmbeddingImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : EmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim)) {}
  explicit EmbeddingImpl(torch::nn::EmbeddingOptions options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  // Integers of any shape to [..., embedding_dim]. Errors: misuse, when cut, for an index that is
  // not in the vocabulary.
  torch::Tensor forward(const torch::Tensor& indices);

  // The logits of an output layer that has the embedding's weight, a tied one: [..., embedding_dim]
  // to [..., num_embeddings], or to this rank's part of the vocabulary. For nn::cross_entropy().
  torch::Tensor as_linear(const torch::Tensor& input) const;

  std::string misfit(const ParallelStyle& style, int ranks) const override;

  torch::nn::EmbeddingOptions options;  // Of the whole layer.
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

  std::string misfit(const ParallelStyle& style, int ranks) const override;

  torch::nn::LayerNormOptions options;
  torch::Tensor weight;  // normalized_shape; undefined without affine parameters.
  torch::Tensor bias;
};
TORCH_MODULE(LayerNorm);

// torch.nn.RMSNorm's options, which C++ lacks.
struct RMSNormOptions {
  RMSNormOptions(std::vector<std::int64_t> shape)  // NOLINT(google-explicit-constructor)
      : normalized_shape(std::move(shape)) {}

  std::vector<std::int64_t> normalized_shape;
  std::optional<double> eps = {};  // None: the smallest step of the input's type.
  bool elementwise_affine = true;
};

// torch.nn.RMSNorm, which LibTorch's C++ lacks: x / sqrt(mean(x^2) + eps) * weight, the mean over
// normalized_shape (Zhang and Sennrich, 2019).
class LOCKSTEP_API RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl>, public ParallelLayer {
 public:
  explicit RMSNormImpl(RMSNormOptions options);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string misfit(const ParallelStyle& style, int ranks) const override;

  RMSNormOptions options;
  torch::Tensor weight;  // normalized_shape; undefined without affine parameters.
};
TORCH_MODULE(RMSNorm);

// On whole activations, all ranks draw one mask, from the default generator. On parts (a
// SequenceParallel style), each rank draws its own mask: its generator is seeded, at each call,
// with one number of the default generator and the rank. So nothing but the default generator is to
// be saved or restored, and it stays in step on all ranks.
class LOCKSTEP_API DropoutImpl : public torch::nn::Cloneable<DropoutImpl>, public ParallelLayer {
 public:
  explicit DropoutImpl(double p) : DropoutImpl(torch::nn::DropoutOptions(p)) {}
  explicit DropoutImpl(const torch::nn::DropoutOptions& options = {});

  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string misfit(const ParallelStyle& style, int ranks) const override;

  torch::nn::DropoutOptions options;

  // On parts: each rank draws the whole mask and takes its part. Results are then those of one
  // process, at the cost of a whole mask on each rank.
  bool exact = false;

 private:
  torch::Tensor on_part(const torch::Tensor& input, std::int64_t dim) const;
};
TORCH_MODULE(Dropout);

// redistribute() between the placements of a Redistribution, and the identity before it is cut: in
// front of modules, it is PyTorch's PrepareModuleInput, and behind them its PrepareModuleOutput.
// LibTorch's modules have no hooks of forward() that a plan could use instead. No parameters.
class LOCKSTEP_API RedistributeImpl : public torch::nn::Cloneable<RedistributeImpl>,
                                      public ParallelLayer {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string misfit(const ParallelStyle& style, int ranks) const override;
};
TORCH_MODULE(Redistribute);

}  // namespace lockstep::nn
