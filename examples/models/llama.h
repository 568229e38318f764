// A decoder like LLaMA (Touvron et al., 2023). It has pre-RMSNorm, rotary positions (Su et al.,
// 2021), grouped query heads (Ainslie et al., 2023), and SwiGLU (Shazeer, 2020). Names and initial
// weights are those of Hugging Face's LlamaForCausalLM. Later LLaMAs' rope_scaling is not
// supported.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <memory>

#include "lockstep/nn/layers.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/activation_checkpoint.h"

// Default: SmolLM-135M, 134,515,008 parameters.
struct LlamaOptions {
  std::int64_t vocabulary = 49152;
  std::int64_t layers = 30;
  std::int64_t heads = 9;     // Must divide the width.
  std::int64_t kv_heads = 3;  // For keys and values. Must divide `heads`.
  std::int64_t width = 576;
  std::int64_t hidden = 1536;  // The MLP's width.
  double theta = 10000;        // Rotation i of n takes 2 pi theta^(i / n) tokens.
  double eps = 1e-5;
  bool tied = true;        // Output layer and token embedding share the weight.
  bool recompute = false;  // Blocks keep only their inputs for backward().

  std::int64_t head_width() const { return width / heads; }
};

struct LlamaAttentionImpl : torch::nn::Module {
  explicit LlamaAttentionImpl(const LlamaOptions& options)
      : head_width(options.head_width()),
        q_proj(without_bias(options.width, options.heads * head_width)),
        k_proj(without_bias(options.width, options.kv_heads * head_width)),
        v_proj(without_bias(options.width, options.kv_heads * head_width)),
        o_proj(without_bias(options.heads * head_width, options.width)) {
    register_module("q_proj", q_proj);
    register_module("k_proj", k_proj);
    register_module("v_proj", v_proj);
    register_module("o_proj", o_proj);
  }

  static torch::nn::LinearOptions without_bias(std::int64_t in, std::int64_t out) {
    return torch::nn::LinearOptions(in, out).bias(false);
  }

  // [N, T, width] to the same shape. A rank may have some of the heads. `rotary`: cosine and sine
  // of each pair's angle, [2, T, head_width / 2].
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rotary) {
    const auto by_head = [this](const torch::Tensor& y) {
      return y.unflatten(-1, {-1, head_width}).transpose(1, 2);  // [N, heads, T, head_width]
    };
    const auto y = torch::scaled_dot_product_attention(
        rotated(by_head(q_proj(x)), rotary), rotated(by_head(k_proj(x)), rotary),
        by_head(v_proj(x)), /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true, /*scale=*/{},
        /*enable_gqa=*/true);
    return o_proj(y.transpose(1, 2).flatten(2));
  }

  // Numbers i and i + head_width / 2 are a pair, as in Hugging Face's weights.
  static torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& rotary) {
    const auto pair = x.chunk(2, -1);
    return torch::cat(
        {pair[0] * rotary[0] - pair[1] * rotary[1], pair[1] * rotary[0] + pair[0] * rotary[1]}, -1);
  }

  const std::int64_t head_width;
  lockstep::nn::Linear q_proj, k_proj, v_proj, o_proj;
};
TORCH_MODULE(LlamaAttention);

struct LlamaMlpImpl : torch::nn::Module {
  explicit LlamaMlpImpl(const LlamaOptions& options)
      : gate_proj(LlamaAttentionImpl::without_bias(options.width, options.hidden)),
        up_proj(LlamaAttentionImpl::without_bias(options.width, options.hidden)),
        down_proj(LlamaAttentionImpl::without_bias(options.hidden, options.width)) {
    register_module("gate_proj", gate_proj);
    register_module("up_proj", up_proj);
    register_module("down_proj", down_proj);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return down_proj(torch::silu(gate_proj(x)) * up_proj(x));
  }

  lockstep::nn::Linear gate_proj, up_proj, down_proj;
};
TORCH_MODULE(LlamaMlp);

struct LlamaBlockImpl : torch::nn::Module {
  explicit LlamaBlockImpl(const LlamaOptions& options)
      : input_layernorm(norm(options)),
        self_attn(options),
        post_attention_layernorm(norm(options)),
        mlp(options) {
    register_module("input_layernorm", input_layernorm);
    register_module("self_attn", self_attn);
    register_module("post_attention_layernorm", post_attention_layernorm);
    register_module("mlp", mlp);
  }

  static lockstep::nn::RMSNormOptions norm(const LlamaOptions& options) {
    lockstep::nn::RMSNormOptions norm({options.width});
    norm.eps = options.eps;
    return norm;
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rotary) {
    const torch::Tensor y = x + self_attn(input_layernorm(x), rotary);
    return y + mlp(post_attention_layernorm(y));
  }

  lockstep::nn::RMSNorm input_layernorm;
  LlamaAttention self_attn;
  lockstep::nn::RMSNorm post_attention_layernorm;
  LlamaMlp mlp;
};
TORCH_MODULE(LlamaBlock);

struct Llama : torch::nn::Module {
  explicit Llama(const LlamaOptions& llama_options)
      : options(llama_options),
        embed_tokens(options.vocabulary, options.width),
        norm(LlamaBlockImpl::norm(options)) {
    TORCH_CHECK(options.width % (2 * options.heads) == 0, "Llama: ", options.heads,
                " heads of even width do not make up a width of ", options.width);
    TORCH_CHECK(options.heads % options.kv_heads == 0, "Llama: ", options.kv_heads,
                " heads of keys and values do not divide ", options.heads, " heads");
    const auto model = register_module("model", std::make_shared<torch::nn::Module>("model"));
    model->register_module("embed_tokens", embed_tokens);
    for (std::int64_t i = 0; i < options.layers; ++i) layers->push_back(LlamaBlock(options));
    model->register_module("layers", layers);
    model->register_module("norm", norm);
    if (!options.tied)
      lm_head = register_module("lm_head", lockstep::nn::Linear(LlamaAttentionImpl::without_bias(
                                               options.width, options.vocabulary)));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters())
      if (parameter.dim() > 1) parameter.normal_(0, 0.02);
  }

  // Tokens [N, T] to logits of the next tokens [N, T, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embed_tokens(tokens);
    const torch::Tensor rotary = rotary_of(tokens.size(1)).to(x.options());
    for (const auto& block : *layers) {
      auto& one = *block->as<LlamaBlock>();
      x = options.recompute ? lockstep::activation_checkpoint(one, x, rotary)
                            : one.forward(x, rotary);
    }
    x = norm(x);
    return options.tied ? embed_tokens->as_linear(x) : lm_head(x);
  }

  const LlamaOptions options;
  lockstep::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  lockstep::nn::RMSNorm norm;
  lockstep::nn::Linear lm_head{nullptr};  // Null when tied.

 private:
  // Pair i of a token at position t is rotated by t * theta^(-2 i / head_width).
  torch::Tensor rotary_of(std::int64_t length) const {
    const auto numbers = torch::arange(0, options.head_width(), 2, torch::kDouble);
    const auto speeds = torch::pow(options.theta, -numbers / options.head_width());
    const auto angles = torch::outer(torch::arange(length, torch::kDouble), speeds);
    return torch::stack({angles.cos(), angles.sin()});
  }
};

// Heads, hidden features and the vocabulary are cut; the logits are for lockstep::cross_entropy().
inline lockstep::ParallelPlan llama_plan(const LlamaOptions& options) {
  using lockstep::ColwiseParallel, lockstep::RowwiseParallel;
  lockstep::ParallelPlan plan = {
      {"model.embed_tokens", RowwiseParallel()},
      {"model.layers.*.self_attn.q_proj", ColwiseParallel({.heads = options.heads})},
      {"model.layers.*.self_attn.[kv]_proj", ColwiseParallel({.heads = options.kv_heads})},
      {"model.layers.*.self_attn.o_proj", RowwiseParallel()},
      {"model.layers.*.mlp.gate_proj", ColwiseParallel()},
      {"model.layers.*.mlp.up_proj", ColwiseParallel()},
      {"model.layers.*.mlp.down_proj", RowwiseParallel()}};
  if (!options.tied) plan.emplace_back("lm_head", ColwiseParallel({.uneven = true}));
  return plan;
}
