// Random valid orders of pipelines.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep::test {

// Draws an order of at most 4 ranks with 1 to 4 stages each, on any ranks, and at most 8
// microbatches. Backwards are whole, split, or mixed. A single process could execute the actions in
// their order, so ranks cannot deadlock. Equal seeds give equal orders.
class RandomPipelineOrder {
 public:
  explicit RandomPipelineOrder(std::uint64_t seed) : random_(seed) {
    order_.microbatches = between(1, 8);
    const int ranks = between(1, 4);
    for (int rank = 0; rank < ranks; ++rank)
      order_.rank_of_stage.insert(order_.rank_of_stage.end(), index(between(1, 4)), rank);
    for (std::size_t i = order_.rank_of_stage.size(); i > 1; --i)
      std::swap(order_.rank_of_stage[i - 1], order_.rank_of_stage[below(i)]);
    order_.actions.resize(index(ranks));
    split_ = between(0, 2);
  }

  PipelineOrder draw() {
    for (int microbatch = 0; microbatch < order_.microbatches; ++microbatch)
      ready_.push_back({0, PipelineActionKind::forward, microbatch});
    while (!ready_.empty()) {
      std::swap(ready_[below(ready_.size())], ready_.back());
      const PipelineAction action = ready_.back();
      ready_.pop_back();
      order_.actions[index(order_.rank_of_stage[index(action.stage)])].push_back(action);
      add_those_after(action);
    }
    return std::move(order_);
  }

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  // std::uniform_int_distribution differs between standard libraries.
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }
  int between(int least, int most) {
    return least + static_cast<int>(below(index(most - least + 1)));
  }

  // Adds the actions whose last missing dependency is `action`.
  void add_those_after(const PipelineAction& action) {
    using enum PipelineActionKind;
    const auto& [stage, kind, microbatch] = action;
    if (kind == forward) {
      if (stage + 1 < order_.stages())
        ready_.push_back({stage + 1, forward, microbatch});
      else
        ready_.push_back({stage, first_part(), microbatch});
      return;
    }
    if (kind == backward_input) ready_.push_back({stage, backward_weight, microbatch});
    if (kind != backward_weight && stage > 0)
      ready_.push_back({stage - 1, first_part(), microbatch});
  }

  PipelineActionKind first_part() {
    const bool is_split = split_ == 2 ? below(2) == 1 : split_ == 1;
    return is_split ? PipelineActionKind::backward_input : PipelineActionKind::backward;
  }

  std::mt19937_64 random_;
  PipelineOrder order_;
  int split_;  // 0: no backward is split; 1: all are; 2: some.
  std::vector<PipelineAction> ready_;
};

inline PipelineOrder random_pipeline_order(std::uint64_t seed) {
  return RandomPipelineOrder(seed).draw();
}

}  // namespace lockstep::test
