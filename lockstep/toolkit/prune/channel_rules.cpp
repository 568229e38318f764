// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_rules.h"

#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace lockstep::prune {
namespace {

namespace nodes = torch::autograd::generated;

using Rule = void (*)(TracedCall&);

std::size_t wrapped(std::int64_t dim, std::size_t dims) {
  return static_cast<std::size_t>(dim < 0 ? dim + static_cast<std::int64_t>(dims) : dim);
}

std::int64_t product(const std::vector<std::int64_t>& sizes, std::size_t begin, std::size_t end) {
  std::int64_t result = 1;
  for (std::size_t i = begin; i < end; ++i) result *= sizes[i];
  return result;
}

template <class N>
const N& node_of(const TracedCall& call) {
  return dynamic_cast<const N&>(call.node);
}

// "Gather" of "GatherBackward0".
std::string name_of(const TracedCall& call) {
  const std::string name = call.node.name();
  return name.substr(0, name.find("Backward"));
}

void pin(TracedCall& call, const LabelledShape& shape, const std::string& reason) {
  for (const LabelledDim& dim : shape.dims) call.trace.labels.pin(dim, reason);
}

void unknown(TracedCall& call) {
  for (const LabelledShape* const input : call.inputs)
    if (input != nullptr) pin(call, *input, "no rule for " + name_of(call));
}

// --- Operations on each element ------------------------------------------------------------------

// Aligned at the last dimension, as in broadcasting.
void unite_aligned(TracedCall& call, const LabelledShape& input, LabelledShape& output) {
  if (input.dims.size() > output.dims.size()) return pin(call, input, "its shape changes");
  const std::size_t offset = output.dims.size() - input.dims.size();
  for (std::size_t d = 0; d < input.dims.size(); ++d)
    if (input.sizes[d] == output.sizes[offset + d])
      call.trace.labels.unite(output.dims[offset + d], input.dims[d]);
    else if (input.sizes[d] != 1)
      call.trace.labels.pin(input.dims[d], "its size changes in " + name_of(call));
}

void elementwise(TracedCall& call) {
  for (const LabelledShape* const input : call.inputs)
    if (input != nullptr) unite_aligned(call, *input, call.outputs.front());
}

// They change the spatial sizes: pooling, padding.
void over_places(TracedCall& call) {
  const LabelledShape* const input = call.inputs.front();
  if (input == nullptr) return;
  LabelledShape& output = call.outputs.front();
  for (std::size_t d = 0; d < input->dims.size(); ++d)
    if (input->sizes[d] == output.sizes[d])
      output.dims[d] = input->dims[d];
    else
      call.trace.labels.pin(input->dims[d], "its size changes in " + name_of(call));
}

template <class N>
void along_dim(TracedCall& call) {
  elementwise(call);
  LabelledShape& output = call.outputs.front();
  call.trace.labels.pin(output.dims[wrapped(node_of<N>(call).dim, output.dims.size())],
                        name_of(call) + " along the channels");
}

// --- Layers --------------------------------------------------------------------------------------

// Each convolution group reads its part of the inputs and computes its part of the outputs. Groups
// keep equal sizes: each loses the same channel.
void unite_groups(TracedCall& call, const LabelledShape& input, const LabelledShape& weight,
                  std::int64_t groups) {
  ChannelLabels& labels = call.trace.labels;
  const LabelledDim& in = input.dims[1];
  const LabelledDim& filters = weight.dims[0];
  const auto part = static_cast<std::size_t>(weight.sizes[1]);
  const std::size_t made = filters.size() / static_cast<std::size_t>(groups);
  if (part == 1) {  // Depthwise: with its input.
    if (in.empty()) labels.pin(filters, "depthwise over channels that stay");
    for (std::size_t i = 0; i < filters.size() && !in.empty(); ++i)
      labels.unite(filters[i], in[i / made]);
    return;
  }
  for (std::size_t i = 0; i < in.size(); ++i) labels.unite(in[i], weight.dims[1][i % part]);
  for (std::size_t i = made; i < filters.size(); ++i) labels.unite(filters[i], filters[i % made]);
  labels.mark_filters(filters);
}

// Edges: input, weight, bias. The weight is [out, in / groups, ...], transposed [in, out, ...].
void convolution(TracedCall& call) {
  const auto& node = node_of<nodes::ConvolutionBackward0>(call);
  const LabelledShape *const input = call.inputs[0], *const weight = call.inputs[1];
  if (weight == nullptr) return unknown(call);
  const std::int64_t groups = node.groups.expect_int();
  if (groups > 1 && node.transposed) return unknown(call);
  LabelledShape& output = call.outputs.front();
  const std::size_t in = node.transposed ? 0 : 1;
  output.dims[1] = weight->dims[1 - in];
  static const LabelledShape constant{.sizes = {0, 0}, .dims = {{}, {}}};
  const LabelledShape& taken = input != nullptr ? *input : constant;
  if (groups > 1) {
    unite_groups(call, taken, *weight, groups);
  } else {
    LabelledDim columns = weight->dims[in];
    call.trace.labels.unite(columns, taken.dims[1]);
    call.trace.labels.mark_filters(output.dims[1]);
  }
  if (const LabelledShape* const bias = call.inputs[2]; bias != nullptr)
    call.trace.labels.unite(output.dims[1], bias->dims[0]);
  const LabelledShape& places = node.transposed && input != nullptr ? *input : output;
  const std::size_t owner = call.owner_of(weight->dims[0].front());
  if (owner < call.trace.tensors.size())
    call.trace.products.push_back(
        {owner, places.sizes[0] * product(places.sizes, 2, places.sizes.size())});
}

// [n, k] times [k, m], or a batch of such products.
void multiply(TracedCall& call, const LabelledShape* left, const LabelledShape* right) {
  LabelledShape& output = call.outputs.front();
  const std::size_t last = output.dims.size() - 1;
  for (const LabelledShape* const factor : {left, right})
    if (factor != nullptr && last == 2) call.trace.labels.unite(output.dims[0], factor->dims[0]);
  if (left != nullptr) output.dims[last - 1] = left->dims[last - 1];
  if (right == nullptr) {
    if (left != nullptr) call.trace.labels.pin(left->dims[last], "a product with values");
    return;
  }
  output.dims[last] = right->dims[last];
  LabelledDim inner = right->dims[last - 1];
  if (left != nullptr) call.trace.labels.unite(inner, left->dims[last]);
}

// Weights have channels in both dimensions; activations in one.
bool is_weight(const TracedCall& call, const LabelledShape& matrix) {
  if (matrix.dims[0].empty() || matrix.dims[1].empty()) return false;
  const std::size_t owner = call.owner_of(matrix.dims[0].front());
  return owner < call.trace.tensors.size() && owner == call.owner_of(matrix.dims[1].front());
}

void linear(TracedCall& call, const LabelledShape* left, const LabelledShape* right) {
  multiply(call, left, right);
  if (right == nullptr || !is_weight(call, *right)) return;
  call.trace.labels.mark_filters(right->dims[1]);
  call.trace.products.push_back(
      {call.owner_of(right->dims[1].front()), call.outputs.front().sizes[0]});
}

// Edges: addend, left, right.
void addmm(TracedCall& call) {
  linear(call, call.inputs[1], call.inputs[2]);
  if (call.inputs[0] != nullptr) unite_aligned(call, *call.inputs[0], call.outputs.front());
}

void mm(TracedCall& call) { linear(call, call.inputs[0], call.inputs[1]); }
void bmm(TracedCall& call) { multiply(call, call.inputs[0], call.inputs[1]); }

void embedding(TracedCall& call) {
  if (call.inputs[0] == nullptr) return;
  call.outputs.front().dims.back() = call.inputs[0]->dims[1];
}

// Edges: input, scale, shift.
void batch_norm(TracedCall& call) {
  const auto& node = node_of<nodes::NativeBatchNormBackward0>(call);
  LabelledShape& output = call.outputs.front();
  if (call.inputs[0] != nullptr) output.dims = call.inputs[0]->dims;
  const auto share = [&](const at::Tensor& saved) {
    if (const int index = saved.defined() ? call.index_of(saved) : -1; index >= 0)
      call.trace.labels.unite(output.dims[1],
                              call.trace.tensors[static_cast<std::size_t>(index)].shape.dims[0]);
  };
  for (const std::size_t edge : {1, 2})
    if (call.inputs[edge] != nullptr)
      call.trace.labels.unite(output.dims[1], call.inputs[edge]->dims[0]);
  share(node.running_mean_.unpack());
  share(node.running_var_.unpack());
  if (const LabelledShape* const scale = call.inputs[1]; scale != nullptr)
    call.trace.norm_scales.insert(call.owner_of(scale->dims[0].front()));
}

// The mean over channels would differ.
void layer_norm(TracedCall& call) {
  const LabelledShape* const input = call.inputs[0];
  if (input == nullptr) return;
  LabelledShape& output = call.outputs.front();
  output.dims = input->dims;
  const std::size_t normalized =
      node_of<nodes::NativeLayerNormBackward0>(call).normalized_shape.size();
  for (std::size_t d = input->dims.size() - normalized; d < input->dims.size(); ++d)
    call.trace.labels.pin(input->dims[d], "a LayerNorm over the channels");
}

// --- Changes of shape ----------------------------------------------------------------------------

LabelledDim repeated(const LabelledShape& input, std::size_t dim, std::size_t begin,
                     std::size_t end) {
  const std::int64_t inner = product(input.sizes, dim + 1, end);
  const std::int64_t all = product(input.sizes, begin, end);
  LabelledDim labels;
  labels.reserve(static_cast<std::size_t>(all));
  for (std::int64_t i = 0; i < all; ++i)
    labels.push_back(input.dims[dim][static_cast<std::size_t>(i / inner % input.sizes[dim])]);
  return labels;
}

// Maps the input's dimensions [begin, end) to the output's [out_begin, out_end). Follows channels
// into a part of one dimension, as in flatten().
void reshape_part(TracedCall& call, std::size_t begin, std::size_t end, std::size_t out_begin,
                  std::size_t out_end) {
  const LabelledShape& input = *call.inputs.front();
  LabelledShape& output = call.outputs.front();
  std::vector<std::size_t> known, larger;
  for (std::size_t d = begin; d < end; ++d)
    if (!input.dims[d].empty() && input.sizes[d] != 1) known.push_back(d);
  for (std::size_t d = out_begin; d < out_end; ++d)
    if (output.sizes[d] != 1) larger.push_back(d);
  if (known.empty()) return;
  if (known.size() == 1 && larger.size() == 1) {
    output.dims[larger.front()] = repeated(input, known.front(), begin, end);
    return;
  }
  for (const std::size_t d : known)
    call.trace.labels.pin(input.dims[d], "view() divides or joins the channels");
}

void view(TracedCall& call) {
  if (call.inputs.front() == nullptr) return;
  const std::vector<std::int64_t>& in = call.inputs.front()->sizes;
  const std::vector<std::int64_t>& out = call.outputs.front().sizes;
  if (product(in, 0, in.size()) == 0) return pin(call, *call.inputs.front(), "an empty tensor");
  for (std::size_t i = 0, o = 0; i < in.size() && o < out.size();) {
    const std::size_t begin = i, out_begin = o;
    std::int64_t before = in[i++], after = out[o++];
    while (before != after) {
      if (before < after)
        before *= in[i++];
      else
        after *= out[o++];
    }
    reshape_part(call, begin, i, out_begin, o);
  }
}

void reorder(TracedCall& call, const std::vector<std::size_t>& dims) {
  const LabelledShape* const input = call.inputs.front();
  if (input == nullptr) return;
  for (std::size_t d = 0; d < dims.size(); ++d) call.outputs.front().dims[d] = input->dims[dims[d]];
}

void transpose_dims(TracedCall& call, std::size_t one, std::size_t other) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < call.outputs.front().dims.size(); ++d) dims.push_back(d);
  if (dims.size() > 1) std::swap(dims[one], dims[other]);
  reorder(call, dims);
}

void t(TracedCall& call) { transpose_dims(call, 0, 1); }

void transpose(TracedCall& call) {
  const auto& node = node_of<nodes::TransposeBackward0>(call);
  const std::size_t dims = call.outputs.front().dims.size();
  transpose_dims(call, wrapped(node.dim0, dims), wrapped(node.dim1, dims));
}

void permute(TracedCall& call) {
  std::vector<std::size_t> dims;
  for (const std::int64_t dim : node_of<nodes::PermuteBackward0>(call).dims)
    dims.push_back(wrapped(dim, call.outputs.front().dims.size()));
  reorder(call, dims);
}

void reduce_dims(TracedCall& call, const std::vector<bool>& reduced, bool keeps_dims) {
  const LabelledShape& input = *call.inputs.front();
  LabelledShape& output = call.outputs.front();
  for (std::size_t d = 0, o = 0; d < input.dims.size(); ++d) {
    if (reduced[d])
      call.trace.labels.pin(input.dims[d], name_of(call) + " over the channels");
    else
      output.dims[o] = input.dims[d];
    if (!reduced[d] || keeps_dims) ++o;
  }
}

template <class N>
void reduction(TracedCall& call) {
  if (call.inputs.front() == nullptr) return;
  const auto& node = node_of<N>(call);
  const std::size_t dims = call.inputs.front()->dims.size();
  const bool all = !node.dim.list || node.dim.list->empty();
  std::vector<bool> reduced(dims, all);
  if (!all)
    for (const std::int64_t dim : *node.dim.list) reduced[wrapped(dim, dims)] = true;
  reduce_dims(call, reduced, node.keepdim);
}

// Pins the channels: forward() has the slice's numbers. SelectBackward and UnbindBackward drop the
// dimension.
template <class N>
void divided(TracedCall& call) {
  const LabelledShape* const input = call.inputs.front();
  if (input == nullptr) return;
  const std::size_t dim = wrapped(node_of<N>(call).dim, input->dims.size());
  for (LabelledShape& output : call.outputs)
    for (std::size_t d = 0, o = 0; d < input->dims.size() && o < output.dims.size(); ++d) {
      if (d == dim && output.dims.size() < input->dims.size()) continue;
      if (input->sizes[d] == output.sizes[o])
        output.dims[o] = input->dims[d];
      else
        call.trace.labels.pin(input->dims[d], name_of(call) + " divides the channels");
      ++o;
    }
  if (call.outputs.front().dims.size() < input->dims.size())
    call.trace.labels.pin(input->dims[dim], name_of(call) + " divides the channels");
}

// Joins all inputs' labels. A constant's are new and stay.
void concatenate(TracedCall& call) {
  const auto& node = node_of<nodes::CatBackward0>(call);
  LabelledShape& output = call.outputs.front();
  const std::size_t dim = wrapped(node.dim, output.dims.size());
  LabelledDim joined;
  bool known = false;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& sizes = node.tensors_args_sizes_symint[i];
    if (sizes.size() != output.dims.size()) continue;  // cat() still accepts empty tensors.
    const LabelledShape* const input = call.inputs[i];
    LabelledDim part = input == nullptr ? LabelledDim{} : input->dims[dim];
    known = known || !part.empty();
    if (part.empty()) {
      part = call.trace.labels.add(sizes[dim].expect_int());
      call.trace.labels.pin(part, "cat() with values that stay");
    }
    joined.insert(joined.end(), part.begin(), part.end());
    for (std::size_t d = 0; input != nullptr && d < output.dims.size(); ++d)
      if (d != dim) call.trace.labels.unite(output.dims[d], input->dims[d]);
  }
  if (known) output.dims[dim] = std::move(joined);
}

// --- The table -----------------------------------------------------------------------------------

constexpr std::string_view on_each_element[] = {
    "AbsBackward0",         "AddBackward0",        "AddBackward1",         "AliasBackward0",
    "ClampBackward1",       "CloneBackward0",      "DivBackward0",         "DivBackward1",
    "EluBackward0",         "ExpBackward0",        "ExpandBackward0",      "GeluBackward0",
    "HardsigmoidBackward0", "HardswishBackward0",  "HardtanhBackward0",    "LeakyReluBackward0",
    "LeakyReluBackward1",   "LogSigmoidBackward0", "MaximumBackward0",     "MinimumBackward0",
    "MishBackward0",        "MulBackward0",        "MulBackward1",         "NativeDropoutBackward0",
    "NegBackward0",         "PowBackward0",        "PreluKernelBackward0", "ReluBackward0",
    "SigmoidBackward0",     "SiluBackward0",       "SoftplusBackward0",    "SqrtBackward0",
    "SubBackward0",         "SubBackward1",        "TanhBackward0",        "ThresholdBackward0",
    "ToCopyBackward0"};

constexpr std::string_view on_places[] = {"AdaptiveAvgPool2DBackward0",
                                          "AdaptiveAvgPool3DBackward0",
                                          "AdaptiveMaxPool2DBackward0",
                                          "AdaptiveMaxPool3DBackward0",
                                          "AvgPool2DBackward0",
                                          "AvgPool3DBackward0",
                                          "ConstantPadNdBackward0",
                                          "MaxPool2DWithIndicesBackward0",
                                          "MaxPool3DWithIndicesBackward0",
                                          "ReflectionPad2DBackward0",
                                          "ReplicationPad2DBackward0",
                                          "UpsampleBicubic2DBackward0",
                                          "UpsampleBilinear2DBackward0",
                                          "UpsampleNearest2DBackward0"};

const std::unordered_map<std::string_view, Rule>& other_rules() {
  static const std::unordered_map<std::string_view, Rule> table{
      {"LogSoftmaxBackward0", along_dim<nodes::LogSoftmaxBackward0>},
      {"SoftmaxBackward0", along_dim<nodes::SoftmaxBackward0>},
      {"MeanBackward1", reduction<nodes::MeanBackward1>},
      {"SumBackward1", reduction<nodes::SumBackward1>},
      {"AddmmBackward0", addmm},
      {"BmmBackward0", bmm},
      {"ConvolutionBackward0", convolution},
      {"EmbeddingBackward0", embedding},
      {"MmBackward0", mm},
      {"NativeBatchNormBackward0", batch_norm},
      {"NativeLayerNormBackward0", layer_norm},
      {"CatBackward0", concatenate},
      {"PermuteBackward0", permute},
      {"ReshapeAliasBackward0", view},
      {"SelectBackward0", divided<nodes::SelectBackward0>},
      {"SliceBackward0", divided<nodes::SliceBackward0>},
      {"SplitBackward0", divided<nodes::SplitBackward0>},
      {"SplitWithSizesBackward0", divided<nodes::SplitWithSizesBackward0>},
      {"SqueezeBackward0", view},
      {"SqueezeBackward1", view},
      {"SqueezeBackward2", view},
      {"TBackward0", t},
      {"TransposeBackward0", transpose},
      {"UnbindBackward0", divided<nodes::UnbindBackward0>},
      {"UnsafeViewBackward0", view},
      {"UnsqueezeBackward0", view},
      {"ViewBackward0", view},
  };
  return table;
}

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

Rule rule_of(std::string_view node) {
  if (has(on_each_element, node)) return elementwise;
  if (has(on_places, node)) return over_places;
  const auto found = other_rules().find(node);
  return found == other_rules().end() ? unknown : found->second;
}

}  // namespace

void apply_rule(TracedCall& call) { rule_of(call.node.name())(call); }

}  // namespace lockstep::prune
