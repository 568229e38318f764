// A vision transformer (Dosovitskiy et al., 2020): a sequence of an image's patches after a class
// token, whose output is classified. Names and initial weights are torchvision's, except that
// self_attention.in_proj is a layer (torchvision_vit_names()).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <string>

#include "lockstep/nn/layers.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/activation_checkpoint.h"

// Default: ViT-B/16, 86,567,656 parameters.
struct VitOptions {
  std::int64_t channels = 3;
  std::int64_t image = 224;  // Width and height.
  std::int64_t patch = 16;   // Width and height. Must divide the image's.
  std::int64_t layers = 12;
  std::int64_t heads = 12;  // Must divide the width.
  std::int64_t width = 768;
  std::int64_t hidden = 3072;  // The MLP's width.
  std::int64_t classes = 1000;
  double dropout = 0;
  bool recompute = false;  // Blocks keep only their inputs for backward().
};

struct VitAttentionImpl : torch::nn::Module {
  explicit VitAttentionImpl(const VitOptions& options)
      : in_proj(options.width, 3 * options.width),
        out_proj(options.width, options.width),
        head_width(options.width / options.heads) {
    register_module("in_proj", in_proj);
    register_module("out_proj", out_proj);
    torch::nn::init::xavier_uniform_(in_proj->weight);
    torch::nn::init::zeros_(in_proj->bias);
    torch::nn::init::zeros_(out_proj->bias);
  }

  // [N, T, width] to the same shape. A rank may have some of the heads.
  torch::Tensor forward(const torch::Tensor& x) {
    const auto by_head = [this](const torch::Tensor& y) {
      return y.unflatten(-1, {-1, head_width}).transpose(1, 2);  // [N, heads, T, head_width]
    };
    const auto parts = in_proj(x).chunk(3, -1);
    const auto y = torch::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]),
                                                       by_head(parts[2]));
    return out_proj(y.transpose(1, 2).flatten(2));
  }

  lockstep::nn::Linear in_proj;
  lockstep::nn::Linear out_proj;
  const std::int64_t head_width;
};
TORCH_MODULE(VitAttention);

struct VitBlockImpl : torch::nn::Module {
  explicit VitBlockImpl(const VitOptions& options)
      : ln_1(norm(options)),
        self_attention(options),
        dropout(options.dropout),
        ln_2(norm(options)),
        mlp(lockstep::nn::Linear(options.width, options.hidden), torch::nn::GELU(),
            lockstep::nn::Dropout(options.dropout),
            lockstep::nn::Linear(options.hidden, options.width),
            lockstep::nn::Dropout(options.dropout)) {
    register_module("ln_1", ln_1);
    register_module("self_attention", self_attention);
    register_module("dropout", dropout);
    register_module("ln_2", ln_2);
    register_module("mlp", mlp);
    for (const std::size_t i : {0, 3}) {
      auto& linear = mlp->at<lockstep::nn::LinearImpl>(i);
      torch::nn::init::xavier_uniform_(linear.weight);
      torch::nn::init::normal_(linear.bias, 0, 1e-6);
    }
  }

  static torch::nn::LayerNormOptions norm(const VitOptions& options) {
    return torch::nn::LayerNormOptions({options.width}).eps(1e-6);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + dropout(self_attention(ln_1(x)));
    return y + mlp->forward(ln_2(y));
  }

  lockstep::nn::LayerNorm ln_1;
  VitAttention self_attention;
  lockstep::nn::Dropout dropout;
  lockstep::nn::LayerNorm ln_2;
  torch::nn::Sequential mlp;
};
TORCH_MODULE(VitBlock);

struct Vit : torch::nn::Module {
  explicit Vit(const VitOptions& vit_options)
      : options(vit_options),
        conv_proj(torch::nn::Conv2dOptions(options.channels, options.width, options.patch)
                      .stride(options.patch)),
        dropout(options.dropout),
        ln(VitBlockImpl::norm(options)) {
    TORCH_CHECK(options.width % options.heads == 0, "Vit: ", options.heads,
                " heads do not divide a width of ", options.width);
    TORCH_CHECK(options.image % options.patch == 0, "Vit: patches of ", options.patch,
                " pixels do not divide images of ", options.image);
    const std::int64_t patches = (options.image / options.patch) * (options.image / options.patch);
    class_token = register_parameter("class_token", torch::zeros({1, 1, options.width}));
    register_module("conv_proj", conv_proj);
    const auto encoder = register_module("encoder", std::make_shared<torch::nn::Module>("encoder"));
    pos_embedding = encoder->register_parameter(
        "pos_embedding", torch::empty({1, patches + 1, options.width}).normal_(0, 0.02));
    encoder->register_module("dropout", dropout);
    for (std::int64_t i = 0; i < options.layers; ++i)
      layers->push_back("encoder_layer_" + std::to_string(i), VitBlock(options));
    encoder->register_module("layers", layers);
    encoder->register_module("ln", ln);
    heads->push_back("head", lockstep::nn::Linear(options.width, options.classes));
    register_module("heads", heads);

    const double inputs = static_cast<double>(options.channels * options.patch * options.patch);
    torch::nn::init::normal_(conv_proj->weight, 0, std::sqrt(1 / inputs));
    torch::nn::init::zeros_(conv_proj->bias);
    for (torch::Tensor& parameter : heads->parameters()) torch::nn::init::zeros_(parameter);
  }

  // [N, channels, image, image] to [N, classes].
  torch::Tensor forward(const torch::Tensor& images) {
    const auto patches = conv_proj(images).flatten(2).transpose(1, 2);  // [N, patches, width]
    const auto token = class_token.expand({images.size(0), -1, -1});
    torch::Tensor x = dropout(torch::cat({token, patches}, 1) + pos_embedding);
    for (const auto& block : layers->children()) {
      auto& one = *block->as<VitBlock>();
      x = options.recompute ? lockstep::activation_checkpoint(one, x) : one.forward(x);
    }
    return heads->forward(ln(x).select(1, 0));
  }

  const VitOptions options;
  torch::nn::Conv2d conv_proj;
  torch::Tensor class_token;    // [1, 1, width]
  torch::Tensor pos_embedding;  // [1, patches + 1, width]
  lockstep::nn::Dropout dropout;
  torch::nn::Sequential layers;
  lockstep::nn::LayerNorm ln;
  torch::nn::Sequential heads;
};

// Heads and hidden features are cut; the logits are whole.
inline lockstep::ParallelPlan vit_plan(const VitOptions& options) {
  return {{"encoder.layers.*.self_attention.in_proj",
           lockstep::ColwiseParallel({.segments = 3, .heads = options.heads})},
          {"encoder.layers.*.self_attention.out_proj", lockstep::RowwiseParallel()},
          {"encoder.layers.*.mlp.0", lockstep::ColwiseParallel()},
          {"encoder.layers.*.mlp.3", lockstep::RowwiseParallel()}};
}
