// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/cut.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <numeric>
#include <ostream>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/differentiable.h"

namespace lockstep {

std::string name_of(const ParallelStyle& style) {
  constexpr const char* names[] = {"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                   "ExpertParallel", "Redistribution"};
  return names[style.index()];
}

void ParallelLayer::parallelize(CutTo cut) {
  cut_ = std::move(cut);
  layouts_ = cut_parameters();
}

std::optional<PartialOutput> ParallelLayer::partial_output() const {
  const auto* const style = cut_ ? std::get_if<ColwiseParallel>(&cut_->style) : nullptr;
  if (style == nullptr || style->output.is_whole()) return std::nullopt;
  const ParameterLayout& layout = layouts_.at("weight");
  const auto dim = static_cast<std::size_t>(layout.boxes.cat_dim);
  PartialOutput result{cut_->name, 0, layout.shape[dim]};
  for (const Box& box : layout.boxes.list) result.features += box.sizes[dim];
  return result;
}

void ParallelLayer::place(std::string name, std::optional<PartialOutput> before) {
  name_ = std::move(name);
  before_ = std::move(before);
}

void ParallelLayer::require_width(const at::Tensor& input, std::int64_t expected) const {
  if (name_.empty() || (input.dim() > 0 && input.size(-1) == expected)) return;
  std::string text = name_ + ": an input of shape " + c10::str(input.sizes()) + ", and it takes " +
                     std::to_string(expected) + " features";
  const std::int64_t width = input.dim() > 0 ? input.size(-1) : 0;
  // Attention between two layers reduces three segments to one.
  const bool is_part = before_ && width > 0 && width * before_->of == expected * before_->features;
  if (before_ && before_->features == width && before_->of == expected)
    text += ". It got this rank's part of the output of " + before_->layer + ": cut " + name_ +
            " with RowwiseParallel, or give " + before_->layer + " the output `replicated`";
  else if (is_part)
    text += ". It is a part, as is the output of " + before_->layer + ": cut " + name_ +
            " with RowwiseParallel";
  else if (cut_ && std::holds_alternative<RowwiseParallel>(cut_->style) && expected < width)
    text += ". Its input is a part, unless RowwiseParallel has the input `replicated`";
  throw Error(Fault::misuse, text);
}

void ParallelLayer::compare_whole(const at::Tensor& input) {
  nn::require_equal_inputs(input, *cut_, ++compared_);
}

void ParallelLayer::print_end(std::ostream& stream) const {
  if (cut_) stream << ", " << name_of(cut_->style) << " over " << cut_->group.size() << " ranks";
  stream << ')';
}

}  // namespace lockstep

namespace lockstep::nn {

std::string mismatch_of(const char* what, std::int64_t size, std::int64_t segments, int ranks) {
  if (segments < 1) return std::to_string(segments) + " segments";
  const std::int64_t unit = segments * ranks;
  if (size % unit == 0) return "";
  const std::int64_t below = size / unit * unit;
  std::string text = std::string(what) + " " + std::to_string(size);
  if (segments > 1) text += " in " + std::to_string(segments) + " segments";
  text += " cannot be cut evenly over " + std::to_string(ranks) + " ranks: ";
  if (below > 0) text += std::to_string(below) + " or ";
  return text + std::to_string(below + unit) + " can";
}

std::string cannot_cut(const ParallelStyle& style, const char* layer) {
  return name_of(style) + " cannot cut a " + layer;
}

std::string mismatch_of_whole(const ParallelStyle& style, const char* layer) {
  return std::holds_alternative<SequenceParallel>(style) ? "" : cannot_cut(style, layer);
}

ParameterLayout cut_parameter(at::Tensor& parameter, std::int64_t dim, std::int64_t segments,
                              const ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  ParameterLayout layout{parameter.sizes().vec(), {.list = {}, .cat_dim = dim}, group};
  const auto axis = static_cast<std::size_t>(dim);
  const std::int64_t width = parameter.size(dim) / segments;
  const std::vector<std::int64_t> sizes = chunk_sizes(width, group.size());
  const auto own = sizes.begin() + group.rank();
  const std::int64_t begin = std::accumulate(sizes.begin(), own, std::int64_t{0});
  std::vector<at::Tensor> parts;
  for (std::int64_t segment = 0; segment < segments; ++segment) {
    Box box{std::vector<std::int64_t>(layout.shape.size(), 0), layout.shape};
    box.offsets[axis] = segment * width + begin;
    box.sizes[axis] = *own;
    parts.push_back(parameter.detach().narrow(dim, box.offsets[axis], *own));
    layout.boxes.list.push_back(std::move(box));
  }
  parameter.set_data(at::cat(parts, dim).clone());
  if (group.size() > 1) note_part(parameter, layout);
  return layout;
}

CallOptions label_of(const CutTo& cut) { return {.label = cut.name}; }

at::Tensor enter(const at::Tensor& input, Placement placement, const CutTo& cut) {
  return placement.is_whole()
             ? copy_to_parallel_region(input, cut.group, label_of(cut))
             : gather_from_sequence_region(input, cut.group, *placement.dim, label_of(cut));
}

at::Tensor leave(const at::Tensor& partial, Placement placement, const CutTo& cut) {
  return placement.is_whole()
             ? reduce_from_parallel_region(partial, cut.group, label_of(cut))
             : reduce_scatter_to_sequence_region(partial, cut.group, *placement.dim, label_of(cut));
}

at::Tensor for_parts(const at::Tensor& parameter, const char* what, const CutTo& cut) {
  if (!parameter.defined()) return parameter;
  const std::string name = cut.name + "." + what;
  return copy_to_parallel_region(parameter, cut.group, {.label = name});
}

}  // namespace lockstep::nn
