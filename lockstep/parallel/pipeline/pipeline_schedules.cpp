// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/pipeline/pipeline_order.h"

namespace lockstep {
namespace {

using PipelineActions = std::vector<PipelineAction>;

// Stage s is on rank s % ranks.
struct RankShape {
  int rank;
  int ranks;
  int microbatches;
  int stages;  // On this rank.

  int steps() const { return stages * microbatches; }
  int stage(int turn) const { return turn * ranks + rank; }
};

// Stages alternate, with `round` microbatches each. Backwards start with the last stage.
struct StageTurns {
  RankShape shape;
  int round;

  PipelineAction forward(int step) const {
    return {shape.stage(step / round % shape.stages), PipelineActionKind::forward,
            microbatch(step)};
  }
  PipelineAction backward(int step, PipelineActionKind kind) const {
    return {shape.stage(shape.stages - 1 - step / round % shape.stages), kind, microbatch(step)};
  }

 private:
  int microbatch(int step) const { return step / (round * shape.stages) * round + step % round; }
};

// `warmup` forwards, then alternately one forward and one backward, finally backwards. With
// `weights_after`, weight gradients come that many backwards later.
PipelineActions one_forward_one_backward(const StageTurns& turns, int warmup,
                                         std::optional<int> weights_after = {}) {
  const int steps = turns.shape.steps();
  warmup = std::min(warmup, steps);
  const auto kind =
      weights_after ? PipelineActionKind::backward_input : PipelineActionKind::backward;
  const int lag = weights_after.value_or(steps);
  PipelineActions actions;
  for (int step = 0; step < warmup; ++step) actions.push_back(turns.forward(step));
  for (int step = 0; step < steps; ++step) {
    if (warmup + step < steps) actions.push_back(turns.forward(warmup + step));
    actions.push_back(turns.backward(step, kind));
    if (step >= lag)
      actions.push_back(turns.backward(step - lag, PipelineActionKind::backward_weight));
  }
  if (weights_after)
    for (int step = std::max(0, steps - lag); step < steps; ++step)
      actions.push_back(turns.backward(step, PipelineActionKind::backward_weight));
  return actions;
}

PipelineActions breadth_first(const RankShape& shape) {
  PipelineActions actions;
  for (int turn = 0; turn < shape.stages; ++turn)
    for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch)
      actions.push_back({shape.stage(turn), PipelineActionKind::forward, microbatch});
  PipelineActions backwards(actions.rbegin(), actions.rend());
  for (PipelineAction& action : backwards) action.kind = PipelineActionKind::backward;
  actions.insert(actions.end(), backwards.begin(), backwards.end());
  return actions;
}

// A rank of ZB-V (arXiv 2401.10241, section 6). Stages are `down`, from the first rank to the last,
// and `up`, back. The pattern has at least 2 * ranks - 1 microbatches; missing ones are omitted.
class ZeroBubbleV {
 public:
  explicit ZeroBubbleV(const RankShape& shape)
      : rank_(shape.rank),
        ranks_(shape.ranks),
        microbatches_(shape.microbatches),
        planned_(std::max(shape.microbatches, 2 * shape.ranks - 1)) {}

  PipelineActions actions() {
    fill();
    while (count(up, F) < count(down, F) || count(down, F) < planned_) {
      if (count(down, F) < planned_) add(down, F);
      add(down, I, W);
      add(up, F);
      add(up, I, W);
    }
    drain();
    return std::move(actions_);
  }

 private:
  enum Way { down, up };
  static constexpr auto F = PipelineActionKind::forward;
  static constexpr auto I = PipelineActionKind::backward_input;
  static constexpr auto W = PipelineActionKind::backward_weight;

  // Until the last stage's first backwards are done.
  void fill() {
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) add(down, F);
    for (int i = 0; i < rank_; ++i) {
      add(up, F);
      add(down, F);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) {
      add(up, F);
      add(up, I, W);
    }
  }

  // Starts with the results for which other ranks wait.
  void drain() {
    for (int i = 0; i < rank_; ++i) {
      add(down, I);
      add(up, I);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) add(down, I, W);
    while (count(up, W) < count(up, I)) add(up, W);
    while (count(down, W) < count(down, I)) add(down, W);
  }

  // The next microbatch's action of each kind.
  template <class... Kind>
  void add(Way way, Kind... kinds) {
    const int stage = way == down ? rank_ : 2 * ranks_ - 1 - rank_;
    for (const PipelineActionKind kind : {kinds...}) {
      const int microbatch = count(way, kind)++;
      if (microbatch < microbatches_) actions_.push_back({stage, kind, microbatch});
    }
  }

  int& count(Way way, PipelineActionKind kind) {
    return counts_[way == down ? 0 : 1][kind == F ? 0 : kind == I ? 1 : 2];
  }

  int rank_;
  int ranks_;
  int microbatches_;
  int planned_;
  std::array<std::array<int, 3>, 2> counts_{};  // Actions so far.
  PipelineActions actions_;
};

// Equal in size, with at least as many microbatches as ranks.
int rounds_of(int ranks, int microbatches) { return std::max(1, microbatches / ranks); }
bool has_equal_rounds(int ranks, int microbatches) {
  return microbatches % rounds_of(ranks, microbatches) == 0;
}

int stages_per_rank_of(PipelineSchedule schedule, const PipelineShape& shape) {
  using enum PipelineSchedule;
  const bool is_single = schedule == gpipe || schedule == one_f_one_b;
  const int wanted = is_single || schedule == zero_bubble ? 1 : 2;
  if (shape.stages_per_rank == 0) return wanted;
  const bool is_fixed = is_single || schedule == zbv;
  require(shape.stages_per_rank > 0 && (!is_fixed || shape.stages_per_rank == wanted), [&] {
    return "schedule " + std::string(name_of(schedule)) + " has " +
           (is_fixed ? std::to_string(wanted) : "at least 1") + " stage" +
           (is_fixed && wanted > 1 ? "s" : "") + " on each rank, not " +
           std::to_string(shape.stages_per_rank);
  });
  return shape.stages_per_rank;
}

void require_equal_rounds(PipelineSchedule schedule, const PipelineShape& shape) {
  require(has_equal_rounds(shape.ranks, shape.microbatches), [&] {
    int fewer = shape.microbatches;
    int more = shape.microbatches;
    while (!has_equal_rounds(shape.ranks, fewer)) --fewer;
    while (!has_equal_rounds(shape.ranks, more)) ++more;
    return "schedule " + std::string(name_of(schedule)) + " on " + std::to_string(shape.ranks) +
           " ranks deals microbatches in rounds of equal size, and " +
           std::to_string(shape.microbatches) + " are no multiple of " +
           std::to_string(rounds_of(shape.ranks, shape.microbatches)) +
           " rounds; the nearest that fit are " + std::to_string(fewer) + " and " +
           std::to_string(more);
  });
}

PipelineActions actions_of(PipelineSchedule schedule, const RankShape& shape) {
  using enum PipelineSchedule;
  const int microbatches = shape.microbatches;
  const int round = microbatches / rounds_of(shape.ranks, microbatches);
  const int ranks_after = shape.ranks - 1 - shape.rank;
  const int others = (shape.stages - 1) * round;  // Before the last stage's first.
  switch (schedule) {
    case gpipe:
      return one_forward_one_backward({shape, microbatches}, microbatches);
    case one_f_one_b:
      return one_forward_one_backward({shape, microbatches}, ranks_after);
    case interleaved:
      return one_forward_one_backward({shape, round}, others + 2 * ranks_after);
    case looped_bfs:
      return breadth_first(shape);
    case zero_bubble:
      return one_forward_one_backward({shape, round}, others + ranks_after, shape.rank);
    case zbv:
      return ZeroBubbleV(shape).actions();
  }
  throw Error(Fault::misuse, "there is no such schedule");
}

}  // namespace

PipelineOrder make_pipeline_order(PipelineSchedule schedule, const PipelineShape& shape) {
  require(shape.ranks > 0 && shape.microbatches > 0, [&] {
    return "a pipeline of " + std::to_string(shape.ranks) + " ranks and " +
           std::to_string(shape.microbatches) + " microbatches: at least 1 of each is needed";
  });
  const int stages = stages_per_rank_of(schedule, shape);
  if (schedule == PipelineSchedule::interleaved || schedule == PipelineSchedule::zero_bubble)
    require_equal_rounds(schedule, shape);

  PipelineOrder order;
  order.microbatches = shape.microbatches;
  for (int stage = 0; stage < stages * shape.ranks; ++stage) {
    const bool is_back = schedule == PipelineSchedule::zbv && stage >= shape.ranks;
    order.rank_of_stage.push_back(is_back ? 2 * shape.ranks - 1 - stage : stage % shape.ranks);
  }
  for (int rank = 0; rank < shape.ranks; ++rank)
    order.actions.push_back(actions_of(schedule, {rank, shape.ranks, shape.microbatches, stages}));
  return order;
}

}  // namespace lockstep
