// Generates tokens with a Gpt, and keeps the keys and values of earlier ones.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "examples/models/gpt.h"
#include "lockstep/tensor/collectives.h"

class GptDecoder {
 public:
  // `gpt`: whole, or cut by gpt_plan(); must outlive this object.
  GptDecoder(Gpt& gpt, std::int64_t sequences) : gpt_(gpt), sequences_(sequences) {
    TORCH_CHECK(!gpt.is_training() && !gpt.context, "GptDecoder: call eval()");
  }

  // Appends tokens [N, T]; returns this rank's logits of the next ones: [N, part of vocabulary].
  torch::Tensor append(const torch::Tensor& tokens) {
    const torch::NoGradGuard no_grad;
    const std::int64_t end = length_ + tokens.size(1);
    TORCH_CHECK(tokens.size(0) == sequences_ && end <= gpt_.options.block_size,
                "GptDecoder: ", tokens.size(0), " x ", end, " tokens in ", sequences_, " x ",
                gpt_.options.block_size);
    torch::Tensor x = gpt_.wte(tokens) + gpt_.wpe(torch::arange(length_, end, tokens.options()));
    for (std::size_t i = 0; i < gpt_.h->size(); ++i) {
      auto& block = *gpt_.h->ptr(i)->as<GptBlock>();
      x = x + attention(*block.attn, i, block.ln_1->forward(x));
      x = x + block.mlp->forward(block.ln_2->forward(x));
    }
    length_ = end;
    return gpt_.wte->as_linear(gpt_.ln_f(x.slice(1, -1))).squeeze(1);
  }

  // [N, 1], equal on all ranks.
  torch::Tensor most_probable(const torch::Tensor& logits) const {
    const auto& cut = gpt_.wte->cut();
    const auto [value, token] = logits.max(-1);
    if (!cut) return token.unsqueeze(1);
    const std::int64_t first = gpt_.wte->layouts().at("weight").boxes.list.at(0).offsets[0];
    const auto own = torch::stack({value.to(torch::kDouble), (token + first).to(torch::kDouble)});
    const auto all = lockstep::all_gather(own, cut->group);
    const auto best = all.select(1, 0).argmax(0, /*keepdim=*/true);
    return all.select(1, 1).gather(0, best).to(torch::kLong).t();
  }

  std::int64_t length() const { return length_; }

 private:
  // [N, own heads, block_size, head width].
  struct Cache {
    torch::Tensor keys, values;
  };

  torch::Tensor attention(GptAttentionImpl& layer, std::size_t index, const torch::Tensor& x) {
    const auto by_head = [&](const torch::Tensor& y) {
      return y.unflatten(-1, {-1, layer.head_width}).transpose(1, 2);
    };
    const auto parts = layer.c_attn(x).chunk(3, -1);
    const torch::Tensor q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);
    if (index == caches_.size()) {
      const std::vector<std::int64_t> shape{sequences_, k.size(1), gpt_.options.block_size,
                                            layer.head_width};
      caches_.push_back({torch::empty(shape, k.options()), torch::empty(shape, k.options())});
    }
    const std::int64_t added = x.size(1), end = length_ + added;
    const Cache& cache = caches_[index];
    cache.keys.narrow(2, length_, added).copy_(k);
    cache.values.narrow(2, length_, added).copy_(v);
    std::optional<torch::Tensor> mask;  // One token attends to all.
    if (added > 1) mask = torch::ones({added, end}, q.options().dtype(torch::kBool)).tril(length_);
    const auto y = torch::scaled_dot_product_attention(q, cache.keys.narrow(2, 0, end),
                                                       cache.values.narrow(2, 0, end), mask);
    return layer.c_proj(y.transpose(1, 2).flatten(2));
  }

  Gpt& gpt_;
  const std::int64_t sequences_;
  std::int64_t length_ = 0;
  std::vector<Cache> caches_;
};
