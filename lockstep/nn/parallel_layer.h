// How a layer is cut over the ranks of a group: styles, and the interface for parallelize_module().
//
// Styles are those of torch.distributed.tensor.parallel. The first two are shown for a
// torch::nn::Linear, y = x W^T + b; a Linear refuses the others:
//
//   style               weight             input             output            communicates
//   ColwiseParallel     rows, and the bias whole             part of features  in backward()
//   RowwiseParallel     columns            part of features  whole             in forward()
//   SequenceParallel    whole              part along dim    part along dim    in backward()
//   ExpertParallel      some of experts    the rank's own    the rank's own    in both
//   Redistribution      none               any placement     any other one     see redistribute()
//
// A RowwiseParallel Embedding has some rows of the vocabulary. A SequenceParallel Dropout draws a
// different mask on each rank.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <variant>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

// Placement of an activation: whole on each rank, or a part along `dim`, which may be negative.
// Parts are those of chunk_sizes() (differentiable.h).
struct Placement {
  std::optional<std::int64_t> dim = {};

  bool is_whole() const { return !dim; }
  friend bool operator==(const Placement&, const Placement&) = default;
};
inline constexpr Placement replicated{};
constexpr Placement sharded(std::int64_t dim) { return {dim}; }

// Converts between placements. Returns `x` if they are equal.
//   from        to          forward     backward
//   replicated  sharded     own part    all_gather
//   sharded     replicated  all_gather  own part
//   sharded     sharded     all_to_all  all_to_all
// A gradient has its activation's placement. Blocking, Errors: as in tensor/differentiable.h.
LOCKSTEP_API at::Tensor redistribute(const at::Tensor& x, Placement from, Placement to,
                                     const ProcessGroup& group, const CallOptions& options = {});

struct ColwiseParallel {
  // Equal parts of the output that are cut separately: 3 if one weight computes q | k | v, 2 for
  // gate | up.
  std::int64_t segments = 1;

  // Heads per segment; each head stays on one rank. 0: no heads.
  std::int64_t heads = 0;

  Placement input =
      replicated;  // Or sharded(dim), such as sharded(1) after a SequenceParallel norm.
  Placement output = sharded(-1);  // Or replicated, for one segment.

  // Allows unequal parts, as for a vocabulary. Excludes heads.
  bool uneven = false;
};

struct RowwiseParallel {
  Placement input = sharded(-1);  // Or replicated.
  Placement output =
      replicated;  // Or sharded(dim), such as sharded(1) before a SequenceParallel norm.
};

struct SequenceParallel {
  std::int64_t dim = 1;  // [batch, sequence, features]. Only for Dropout with `exact`.
};

// For nn::Experts (experts.h).
struct ExpertParallel {
  // Ranks with the same experts, such as mesh["dp"] beside mesh["ep"]. Default: this rank.
  std::optional<ProcessGroup> replicas = {};
};

// For an nn::Redistribute.
struct Redistribution {
  Placement input, output;
};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel,
                                   ExpertParallel, Redistribution>;

LOCKSTEP_API std::string name_of(const ParallelStyle& style);

struct CutTo {
  ParallelStyle style;
  ProcessGroup group;
  std::string name;  // The layer's name, for Errors.

  // Whether ranks compare whole inputs, at calls 1, 2, 4, 8 and so on.
  bool checks_inputs = true;
};

// The part of the features that a cut layer returns.
struct PartialOutput {
  std::string layer;
  std::int64_t features = 0, of = 0;
};

// A module that parallelize_module() can cut.
class LOCKSTEP_API ParallelLayer : public ShardedModule {
 public:
  // Why this style cannot cut the layer over `ranks` ranks; empty if it can.
  virtual std::string mismatch(const ParallelStyle& style, int ranks) const = 0;

  // Parameters remain the same tensors, with this rank's part of their values. Requires: mismatch()
  // is empty, and the layer is not cut.
  void parallelize(CutTo cut);

  const std::optional<CutTo>& cut() const { return cut_; }
  const Layouts& layouts() const final { return layouts_; }

  // Empty if forward() returns all features.
  std::optional<PartialOutput> partial_output() const;

  // For Errors: the layer's name, and the last earlier layer that returns a part of its features.
  void place(std::string name, std::optional<PartialOutput> before);

 protected:
  // Keeps this rank's part of each divided parameter, and returns their layouts. By default, all
  // stay whole.
  virtual Layouts cut_parameters() { return {}; }

  // In a cut model, checks the last dim of forward()'s input. Errors: misuse, naming this layer and
  // the one that probably produced the input.
  void require_width(const at::Tensor& input, std::int64_t expected) const;

  // Adds this layer's name to errors of LibTorch in a cut model.
  template <class Compute>
  auto naming_layer(const Compute& compute) const {
    try {
      return compute();
    } catch (c10::Error& error) {
      if (!name_.empty()) error.add_context("in " + name_);
      throw;
    }
  }

  // Detects ranks that load different batches: see CutTo::checks_inputs. Collective. Errors:
  // mismatch, on all ranks.
  void compare_whole(const at::Tensor& input);

  // Writes ", ColwiseParallel over 2 ranks)", or ")" before a cut.
  void print_end(std::ostream& stream) const;

 private:
  std::optional<CutTo> cut_;
  Layouts layouts_;
  std::string name_;
  std::optional<PartialOutput> before_;
  std::uint64_t compared_ = 0;
};

}  // namespace lockstep
