// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/cut.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <numeric>
#include <ostream>
#include <utility>
#include <vector>

#include "lockstep/tensor/differentiable.h"

namespace lockstep {

std::string name_of(const ParallelStyle& style) {
  constexpr const char* names[] = {"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                   "ExpertParallel"};
  return names[style.index()];
}

void ParallelLayer::parallelize(CutTo cut) {
  cut_ = std::move(cut);
  layouts_ = cut_parameters();
}

void ParallelLayer::print_end(std::ostream& stream) const {
  if (cut_) stream << ", " << name_of(cut_->style) << " over " << cut_->group.size() << " ranks";
  stream << ')';
}

}  // namespace lockstep

namespace lockstep::nn {

std::string misfit_of(const char* what, std::int64_t size, std::int64_t segments, int ranks) {
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

std::string misfit_of_whole(const ParallelStyle& style, const char* layer) {
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
