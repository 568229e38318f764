// How a layer is cut over the ranks of a group: the styles of a plan, and what layers offer to
// parallelize_module().
//
// Styles are those of torch.distributed.tensor.parallel. In torch::nn::Linear's terms, y = x W^T +
// b:
//
//   style               weight             input             output            communicates
//   ColwiseParallel     rows, and the bias whole             part of features  in backward()
//   RowwiseParallel     columns            part of features  whole             in forward()
//   SequenceParallel    whole              part along dim    part along dim    in backward()
//   ExpertParallel      some of experts    the rank's own    the rank's own    in both
//   Redistribution      none               any placement     any other one     in both
//
// An Embedding that is RowwiseParallel has some rows of the vocabulary. A SequenceParallel
// LayerNorm or RMSNorm has whole weights, whose gradients backward() sums over the ranks. A
// SequenceParallel Dropout draws another mask on each rank.

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

// How an activation lies on the ranks: whole on each, or a part of it along `dim`, as
// chunk_sizes() cuts: if parts are uneven, earlier ranks have the larger ones. Other parts end in
// an error of LibTorch's. Negative dims count from the end.
struct Placement {
  std::optional<std::int64_t> dim = {};

  bool is_whole() const { return !dim; }
  friend bool operator==(const Placement&, const Placement&) = default;
};
inline constexpr Placement replicated{};
constexpr Placement sharded(std::int64_t dim) { return {dim}; }

// Returns the activation whose placement is `from`, placed as `to` says; `x` for equal placements.
//   from        to          forward     backward
//   replicated  sharded     own part    all_gather
//   sharded     replicated  all_gather  own part
//   sharded     sharded     all_to_all  all_to_all
// A gradient is placed as its activation is: whole on each rank, or its part.
// Blocking, Errors: as the collectives of tensor/differentiable.h.
LOCKSTEP_API at::Tensor redistribute(const at::Tensor& x, Placement from, Placement to,
                                     const ProcessGroup& group, const CallOptions& options = {});

struct ColwiseParallel {
  // Equal parts of the output that are cut each for itself: 3 where one weight makes q | k | v, 2
  // for gate | up.
  std::int64_t segments = 1;

  // Heads in each segment, which stay whole on one rank; 0 where there are none.
  std::int64_t heads = 0;

  Placement input =
      replicated;  // Or sharded(dim), such as sharded(1) behind a SequenceParallel norm.
  Placement output = sharded(-1);  // Or replicated, for one segment.

  // Allows parts of unequal sizes, as a vocabulary has. Not where heads are to stay whole.
  bool uneven = false;
};

struct RowwiseParallel {
  Placement input = sharded(-1);  // Or replicated.
  Placement output =
      replicated;  // Or sharded(dim), such as sharded(1) before a SequenceParallel norm.
};

struct SequenceParallel {
  std::int64_t dim = 1;  // [batch, sequence, features]. Only a Dropout with `exact` looks at it.
};

// Of nn::Experts alone (experts.h).
struct ExpertParallel {
  // The ranks that have the same experts as this one, such as mesh["dp"] beside mesh["ep"]. None:
  // it is the only one.
  std::optional<ProcessGroup> replicas = {};
};

// For a nn::Redistribute between modules that place their activations differently.
struct Redistribution {
  Placement input, output;
};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, SequenceParallel,
                                   ExpertParallel, Redistribution>;

// Such as "ColwiseParallel".
LOCKSTEP_API std::string name_of(const ParallelStyle& style);

// Where a layer is cut.
struct CutTo {
  ParallelStyle style;
  ProcessGroup group;
  std::string name;  // The layer's in the model, for Errors.

  // Compares whole inputs over the ranks at calls 1, 2, 4, 8 and so on of the layer.
  bool checks_inputs = true;
};

// A cut layer whose output is a part.
struct PartialOutput {
  std::string layer;  // Its name in the model.
  std::int64_t features = 0, of = 0;
};

// A layer that parallelize_module() can cut. An interface of a torch::nn::Module.
class LOCKSTEP_API ParallelLayer : public ShardedModule {
 public:
  // Why the layer cannot be cut in this style over `ranks` ranks, with the numbers; empty if it
  // can. Changes nothing.
  virtual std::string misfit(const ParallelStyle& style, int ranks) const = 0;

  // Cuts the layer. Parameters stay the same tensors, with this rank's part of their values.
  // Requires: misfit() is empty, and the layer is not cut.
  void parallelize(CutTo cut);

  const std::optional<CutTo>& cut() const { return cut_; }
  const Layouts& layouts() const final { return layouts_; }

  // The part of the features that forward() returns; empty if it returns them all.
  std::optional<PartialOutput> partial_output() const;

  // Tells the layer, cut or not, its place in a model that is cut: its name, and the last layer
  // before it whose output is a part. For Errors.
  void place(std::string name, std::optional<PartialOutput> before);

 protected:
  // Leaves this rank's part of each parameter that cut() divides, and returns how it lies in the
  // whole. By default, all parameters stay whole.
  virtual Layouts cut_parameters() { return {}; }

  // Checks the last dim of an input of forward(), in a model that is cut. Errors: misuse, naming
  // this layer and the one whose output it probably got.
  void require_width(const at::Tensor& input, std::int64_t expected) const;

  // Calls `compute`; LibTorch's errors, such as of types that do not fit together, name this layer
  // in a model that is cut.
  template <class Compute>
  auto naming_layer(const Compute& compute) const {
    try {
      return compute();
    } catch (c10::Error& error) {
      if (!name_.empty()) error.add_context("in " + name_);
      throw;
    }
  }

  // Compares whole inputs of forward() between the ranks, at calls 1, 2, 4, 8 and so on of a cut
  // layer, so that ranks that load different batches notice it. Collective. Errors: mismatch, on
  // all ranks.
  void compare_whole(const at::Tensor& input);

  // For pretty_print(), such as ", ColwiseParallel over 2 ranks)"; ")" before the layer is cut.
  void print_end(std::ostream& stream) const;

 private:
  std::optional<CutTo> cut_;
  Layouts layouts_;
  std::string name_;  // Empty before place().
  std::optional<PartialOutput> before_;
  std::uint64_t compared_ = 0;  // Calls of compare_whole().
};

}  // namespace lockstep
