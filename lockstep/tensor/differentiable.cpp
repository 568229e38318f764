// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/differentiable.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/summed.h"

namespace lockstep {
namespace {

using Sizes = std::vector<std::int64_t>;

// Its backward is another Move over the same Region.
enum class Move {
  copy,
  all_reduce,
  own_part,
  all_gather,
  reduce_scatter,
  exchange,
  exchange_back,
};

// For backward. Dims are not negative.
struct Region : torch::CustomClassHolder {
  Region(ProcessGroup all, std::string its_name, const CallOptions& options)
      : group(std::move(all)), name(std::move(its_name)), timeout(options.timeout) {}

  const ProcessGroup group;
  const std::string name;
  const std::optional<std::chrono::milliseconds> timeout;
  std::int64_t dim = 0;
  Sizes sizes = {};  // The ranks' parts along `dim`; for an exchange, this rank's.

  // For an exchange: the received parts' dim and sizes.
  std::int64_t joined_dim = 0;
  Sizes joined_sizes = {};
};

using RegionPtr = c10::intrusive_ptr<Region>;

Sizes with_size(at::IntArrayRef shape, std::int64_t dim, std::int64_t size) {
  Sizes result = shape.vec();
  result[static_cast<std::size_t>(dim)] = size;
  return result;
}

std::size_t own(const ProcessGroup& group) { return static_cast<std::size_t>(group.rank()); }

// Whether parts along `dim` are contiguous blocks.
bool has_outermost(at::IntArrayRef shape, std::int64_t dim) {
  return c10::multiply_integers(shape.slice(0, static_cast<std::size_t>(dim))) == 1;
}

// Such as " Float 2 * 4": equal on all ranks.
std::string text_without(const at::Tensor& x, std::int64_t dim, std::int64_t other_dim) {
  std::string text = std::string(" ") + c10::toString(x.scalar_type());
  for (std::int64_t i = 0; i < x.dim(); ++i)
    text += i == dim || i == other_dim ? " *" : ' ' + std::to_string(x.size(i));
  return text;
}

Counts counts_of(at::IntArrayRef shape, std::int64_t dim, const Sizes& sizes, at::ScalarType type,
                 DType dtype) {
  const auto row = static_cast<std::size_t>(c10::multiply_integers(with_size(shape, dim, 1))) *
                   (c10::elementSize(type) / size_of(dtype));
  Counts counts;
  for (const std::int64_t size : sizes) counts.push_back(static_cast<std::size_t>(size) * row);
  return counts;
}

at::Tensor packed(const at::Tensor& x, std::int64_t dim, const Sizes& sizes) {
  if (has_outermost(x.sizes(), dim)) return values_of(x);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : x.split_with_sizes(sizes, dim)) parts.push_back(part.reshape(-1));
  return values_of(at::cat(parts));
}

// The inverse of packed().
at::Tensor joined(const at::Tensor& block, at::IntArrayRef shape, std::int64_t dim,
                  const Sizes& sizes) {
  const Sizes whole = with_size(shape, dim, c10::sum_integers(sizes));
  if (has_outermost(shape, dim)) return block.view(whole);
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const Sizes part = with_size(shape, dim, size);
    parts.push_back(block.narrow(0, begin, c10::multiply_integers(part)).view(part));
    begin += c10::multiply_integers(part);
  }
  return at::cat(parts, dim);
}

at::Tensor block_of(std::int64_t elements, const at::Tensor& like) {
  return at::empty({elements}, like.options());
}

at::Tensor all_reduced(const at::Tensor& x, const Region& region, const CallOptions& options) {
  return summed(x.sizes(), x.options(), region.group, options,
                [&](const at::Tensor& sum) { sum.copy_(x); });
}

at::Tensor own_part(const at::Tensor& x, const Region& region) {
  const std::size_t rank = own(region.group);
  const std::int64_t begin = c10::sum_integers(region.sizes.begin(), region.sizes.begin() + rank);
  return x.narrow(region.dim, begin, region.sizes[rank]).clone(at::MemoryFormat::Contiguous);
}

at::Tensor all_gathered(const at::Tensor& x, const Region& region, const CallOptions& options) {
  const at::Tensor input = values_of(x);
  const Buffer source = movable(input);
  const Counts counts =
      counts_of(x.sizes(), region.dim, region.sizes, x.scalar_type(), source.dtype);
  const at::Tensor block = block_of(
      c10::multiply_integers(with_size(x.sizes(), region.dim, c10::sum_integers(region.sizes))),
      input);
  const Labelled labelled(options, text_without(x, region.dim, region.dim));
  region.group.all_gather(source, movable(block), counts, labelled);
  return joined(block, x.sizes(), region.dim, region.sizes);
}

at::Tensor reduce_scattered(const at::Tensor& x, const Region& region, const CallOptions& options) {
  const at::Tensor input = packed(x, region.dim, region.sizes);
  const at::Tensor output =
      at::empty(with_size(x.sizes(), region.dim, region.sizes[own(region.group)]), input.options());
  const Buffer source = reducible(input, ReduceOp::sum);
  const Counts counts =
      counts_of(x.sizes(), region.dim, region.sizes, x.scalar_type(), source.dtype);
  const Labelled labelled(options, shape_text(x));
  region.group.reduce_scatter(source, reducible(output, ReduceOp::sum), ReduceOp::sum, counts,
                              labelled);
  return output;
}

at::Tensor exchanged(const at::Tensor& x, const ProcessGroup& group, std::int64_t dim,
                     const Sizes& sizes, std::int64_t joined_dim, const Sizes& joined_sizes,
                     const CallOptions& options) {
  const at::Tensor input = packed(x, dim, sizes);
  const Buffer source = movable(input);
  const Sizes received = with_size(x.sizes(), dim, sizes[own(group)]);  // Except along joined_dim.
  const at::Tensor block = block_of(
      c10::multiply_integers(with_size(received, joined_dim, c10::sum_integers(joined_sizes))),
      input);
  const auto type = x.scalar_type();
  const Labelled labelled(options, text_without(x, dim, joined_dim));
  group.all_to_all(source, movable(block), counts_of(x.sizes(), dim, sizes, type, source.dtype),
                   counts_of(received, joined_dim, joined_sizes, type, source.dtype), labelled);
  return joined(block, received, joined_dim, joined_sizes);
}

at::Tensor moved_plainly(const at::Tensor& x, const Region& region, Move move,
                         const CallOptions& options) {
  switch (move) {
    case Move::copy:
      return x;
    case Move::all_reduce:
      return all_reduced(x, region, options);
    case Move::own_part:
      return own_part(x, region);
    case Move::all_gather:
      return all_gathered(x, region, options);
    case Move::reduce_scatter:
      return reduce_scattered(x, region, options);
    case Move::exchange:
      return exchanged(x, region.group, region.dim, region.sizes, region.joined_dim,
                       region.joined_sizes, options);
    case Move::exchange_back:
      return exchanged(x, region.group, region.joined_dim, region.joined_sizes, region.dim,
                       region.sizes, options);
  }
  throw Error(Fault::bug, region.name + ": no such move");
}

at::Tensor moved(const at::Tensor& x, const Region& region, Move move, bool is_backward) {
  const std::string name = region.name + (is_backward ? " backward" : "");
  return naming_errors(name, [&] {
    return moved_plainly(x, region, move, {.timeout = region.timeout, .label = name});
  });
}

at::Tensor applied(const at::Tensor& x, const RegionPtr& region, Move move, Move gradients_move,
                   bool is_backward);

struct Pair : torch::autograd::Function<Pair> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const RegionPtr& region, Move move, Move gradients_move,
                            bool is_backward) {
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    context->saved_data["move"] = static_cast<std::int64_t>(move);
    context->saved_data["gradients_move"] = static_cast<std::int64_t>(gradients_move);
    context->saved_data["is_backward"] = is_backward;
    return moved(x, *region, move, is_backward);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto& saved = context->saved_data;
    const auto region = c10::static_intrusive_pointer_cast<Region>(saved["region"].toCapsule());
    return {applied(gradients[0], region, static_cast<Move>(saved["gradients_move"].toInt()),
                    static_cast<Move>(saved["move"].toInt()), !saved["is_backward"].toBool()),
            {},
            {},
            {},
            {}};
  }
};

at::Tensor applied(const at::Tensor& x, const RegionPtr& region, Move move, Move gradients_move,
                   bool is_backward) {
  if (at::GradMode::is_enabled() && x.requires_grad())
    return Pair::apply(x, region, move, gradients_move, is_backward);
  const at::NoGradGuard no_grad;
  return moved(x, *region, move, is_backward);
}

RegionPtr region_of(const at::Tensor& x, const ProcessGroup& group, std::string_view function,
                    const CallOptions& options) {
  require_dense(x, function);
  std::string name(function);
  if (!options.label.empty()) name = std::string(options.label) + " (" + name + ")";
  return c10::make_intrusive<Region>(group, std::move(name), options);
}

std::int64_t wrapped(std::int64_t dim, const at::Tensor& x, const Region& region) {
  require(dim >= -x.dim() && dim < x.dim(), [&] {
    return region.name + ": there is no dim " + std::to_string(dim) + " of a tensor of " +
           std::to_string(x.dim()) + " dims";
  });
  return dim < 0 ? dim + x.dim() : dim;
}

RegionPtr region_of_whole(const at::Tensor& x, const ProcessGroup& group, std::int64_t dim,
                          std::string_view function, const CallOptions& options) {
  auto region = region_of(x, group, function, options);
  region->dim = wrapped(dim, x, *region);
  region->sizes = chunk_sizes(x.size(region->dim), group.size());
  return region;
}

template <PlainValue T>
std::vector<T> exchanged_sizes(const T& mine, const at::Tensor& x, const Region& region,
                               std::int64_t dim, std::int64_t other_dim) {
  return naming_errors(region.name, [&] {
    const CallOptions options{.timeout = region.timeout, .label = region.name};
    const Labelled labelled(options, text_without(x, dim, other_dim));
    return all_gather_value(mine, region.group, labelled);
  });
}

at::Tensor gathered(const at::Tensor& x, const ProcessGroup& group, std::int64_t dim,
                    Move gradients_move, std::string_view function, const CallOptions& options) {
  auto region = region_of(x, group, function, options);
  region->dim = wrapped(dim, x, *region);
  if (group.size() == 1) return x;
  region->sizes = exchanged_sizes(x.size(region->dim), x, *region, region->dim, region->dim);
  return applied(x, region, Move::all_gather, gradients_move, false);
}

}  // namespace

std::vector<std::int64_t> chunk_sizes(std::int64_t size, int parts) {
  require(size >= 0 && parts > 0, [&] {
    return "chunk_sizes: " + std::to_string(size) + " elements in " + std::to_string(parts) +
           " parts";
  });
  const std::int64_t most = (size + parts - 1) / parts;
  Sizes sizes;
  for (int part = 0; part < parts; ++part, size -= sizes.back())
    sizes.push_back(std::min(size, most));
  return sizes;
}

at::Tensor copy_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                   const CallOptions& options) {
  const auto region = region_of(x, group, "copy_to_parallel_region", options);
  if (group.size() == 1) return x;
  return applied(x, region, Move::copy, Move::all_reduce, false);
}

at::Tensor reduce_from_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                       const CallOptions& options) {
  const auto region = region_of(x, group, "reduce_from_parallel_region", options);
  if (group.size() == 1) return x;
  return applied(x, region, Move::all_reduce, Move::copy, false);
}

at::Tensor scatter_to_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                      std::int64_t dim, const CallOptions& options) {
  const auto region = region_of_whole(x, group, dim, "scatter_to_parallel_region", options);
  if (group.size() == 1) return x;
  return applied(x, region, Move::own_part, Move::all_gather, false);
}

at::Tensor gather_from_parallel_region(const at::Tensor& x, const ProcessGroup& group,
                                       std::int64_t dim, const CallOptions& options) {
  return gathered(x, group, dim, Move::own_part, "gather_from_parallel_region", options);
}

at::Tensor gather_from_sequence_region(const at::Tensor& x, const ProcessGroup& group,
                                       std::int64_t dim, const CallOptions& options) {
  return gathered(x, group, dim, Move::reduce_scatter, "gather_from_sequence_region", options);
}

at::Tensor reduce_scatter_to_sequence_region(const at::Tensor& x, const ProcessGroup& group,
                                             std::int64_t dim, const CallOptions& options) {
  const auto region = region_of_whole(x, group, dim, "reduce_scatter_to_sequence_region", options);
  if (group.size() == 1) return x;
  return applied(x, region, Move::reduce_scatter, Move::all_gather, false);
}

at::Tensor all_to_all_in_region(const at::Tensor& x, const ProcessGroup& group,
                                std::int64_t split_dim, std::int64_t concat_dim,
                                const CallOptions& options) {
  const auto region = region_of_whole(x, group, split_dim, "all_to_all_in_region", options);
  region->joined_dim = wrapped(concat_dim, x, *region);
  if (group.size() == 1) return x;
  const bool on_one_dim = region->joined_dim == region->dim;

  struct Both {
    std::int64_t split, joined;
  };
  const Both mine{x.size(region->dim), x.size(region->joined_dim)};
  const auto all = exchanged_sizes(mine, x, *region, region->dim, region->joined_dim);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!on_one_dim && all[rank].split != all[0].split)
      throw Error(Fault::mismatch, region->name + ": along the dim that is split, rank 0 has " +
                                       std::to_string(all[0].split) + " elements, rank " +
                                       std::to_string(rank) + " has " +
                                       std::to_string(all[rank].split));
    region->joined_sizes.push_back(
        on_one_dim ? chunk_sizes(all[rank].split, group.size())[own(group)] : all[rank].joined);
  }
  return applied(x, region, Move::exchange, Move::exchange_back, false);
}

at::Tensor all_to_all_rows_in_region(const at::Tensor& x, const ProcessGroup& group,
                                     at::IntArrayRef send_rows, at::IntArrayRef receive_rows,
                                     const CallOptions& options) {
  auto region = region_of(x, group, "all_to_all_rows_in_region", options);
  region->dim = region->joined_dim = wrapped(0, x, *region);
  region->sizes = send_rows.vec();
  region->joined_sizes = receive_rows.vec();
  const auto ranks = static_cast<std::size_t>(group.size());
  require(send_rows.size() == ranks && receive_rows.size() == ranks &&
              c10::sum_integers(region->sizes) == x.size(0),
          [&] {
            return region->name + ": " + std::to_string(send_rows.size()) + " and " +
                   std::to_string(receive_rows.size()) + " numbers of rows, of " +
                   std::to_string(c10::sum_integers(region->sizes)) + " to send, for " +
                   std::to_string(ranks) + " ranks and " + std::to_string(x.size(0)) + " rows";
          });
  if (group.size() == 1) return x;
  return applied(x, region, Move::exchange, Move::exchange_back, false);
}

}  // namespace lockstep
