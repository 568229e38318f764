// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/buffers.h"

namespace lockstep {
namespace {

std::int64_t total(at::IntArrayRef splits) {
  return std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
}

std::vector<std::int64_t> gathered_shape(const at::Tensor& tensor, const ProcessGroup& group) {
  std::vector<std::int64_t> shape{group.size()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  return shape;
}

std::vector<std::int64_t> with_rows(const at::Tensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[0] = rows;
  return shape;
}

void require_rows(const at::Tensor& tensor, std::string_view what) {
  require_dense(tensor, what);
  require(tensor.dim() > 0,
          [&] { return std::string(what) + ": a tensor without dimensions has no rows"; });
}

void require_shape(const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType type,
                   std::string_view what) {
  require(tensor.sizes() == sizes && tensor.scalar_type() == type, [&] {
    return std::string(what) + ": expected a tensor" + shape_text(type, sizes) + ", got" +
           shape_text(tensor.scalar_type(), tensor.sizes());
  });
}

void require_splits(at::IntArrayRef splits, const ProcessGroup& group, std::string_view what) {
  require(static_cast<int>(splits.size()) == group.size(), [&] {
    return std::string(what) + ": " + std::to_string(splits.size()) + " splits for " +
           std::to_string(group.size()) + " ranks";
  });
  for (const std::int64_t split : splits)
    require(split >= 0, [&] {
      return std::string(what) + ": the split " + std::to_string(split) + " is negative";
    });
}

void require_total(at::IntArrayRef splits, const at::Tensor& tensor, std::string_view what) {
  require(total(splits) == tensor.size(0), [&] {
    return std::string(what) + ": the splits make " + std::to_string(total(splits)) +
           " rows, the tensor has " + std::to_string(tensor.size(0));
  });
}

std::vector<std::int64_t> equal_splits(const at::Tensor& tensor, const ProcessGroup& group,
                                       std::string_view what) {
  require(tensor.size(0) % group.size() == 0, [&] {
    return std::string(what) + ": " + std::to_string(tensor.size(0)) +
           " rows cannot be split into " + std::to_string(group.size()) + " equal parts";
  });
  return std::vector<std::int64_t>(static_cast<std::size_t>(group.size()),
                                   tensor.size(0) / group.size());
}

std::vector<std::int64_t> splits_of(const at::Tensor& tensor, at::IntArrayRef splits,
                                    const ProcessGroup& group, std::string_view what) {
  if (splits.empty()) return equal_splits(tensor, group, what);
  require_splits(splits, group, what);
  require_total(splits, tensor, what);
  return splits.vec();
}

Counts counts_of(at::IntArrayRef splits, const at::Tensor& tensor, DType dtype) {
  Counts counts(splits.size());
  const std::size_t row = elements_of_row(tensor, dtype);
  for (std::size_t i = 0; i < counts.size(); ++i)
    counts[i] = static_cast<std::size_t>(splits[i]) * row;
  return counts;
}

std::int64_t mine(at::IntArrayRef splits, const ProcessGroup& group) {
  return splits[static_cast<std::size_t>(group.rank())];
}

std::vector<at::Tensor> parts_of(const at::Tensor& tensor, at::IntArrayRef splits) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t rows : splits) {
    parts.push_back(tensor.narrow(0, begin, rows));
    begin += rows;
  }
  return parts;
}

std::string text_of_rows(const at::Tensor& tensor) {
  return " rows of" + shape_text(tensor.scalar_type(), tensor.sizes().slice(1));
}

std::vector<std::int64_t> exchange_rows(const at::Tensor& tensor, const ProcessGroup& group,
                                        const CallOptions& options) {
  std::int64_t rows = tensor.size(0);
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  const Labelled labelled(options, text_of_rows(tensor));
  group.all_gather({.data = &rows, .count = 1, .dtype = DType::int64},
                   {.data = all.data(), .count = all.size(), .dtype = DType::int64}, {}, labelled);
  return all;
}

std::vector<std::int64_t> exchange_splits(std::vector<std::int64_t> send_splits,
                                          const ProcessGroup& group, const CallOptions& options) {
  std::vector<std::int64_t> all(send_splits.size());
  group.all_to_all({.data = send_splits.data(), .count = send_splits.size(), .dtype = DType::int64},
                   {.data = all.data(), .count = all.size(), .dtype = DType::int64}, {}, {},
                   options);
  return all;
}

const OperationFacts& require_in_place(Operation operation) {
  const OperationFacts& facts = facts_of(operation);
  require(facts.shape == OperationShape::in_place,
          [&] { return std::string(facts.name) + " does not work in place on one tensor"; });
  return facts;
}

CollectiveArguments arguments_of(const OperationFacts& facts, const at::Tensor& data,
                                 const InPlaceArguments& given) {
  return {.output = facts.reduces ? reducible(data, given.op) : movable(data),
          .op = given.op,
          .root = given.root};
}

}  // namespace

c10::Device local_device(const ProcessGroup& group) {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA))
    throw Error(Fault::unsupported, "local_device: this LibTorch is built without CUDA");
  const int devices = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  if (devices == 0) throw Error(Fault::unsupported, "local_device: there is no CUDA device here");
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(group.local_rank() % devices)};
}

DType reducible_dtype(at::ScalarType dtype) {
  if (const auto known = known_dtype(dtype)) return *known;
  throw Error(Fault::unsupported,
              std::string("elements of type ") + c10::toString(dtype) + " cannot be reduced");
}

void run_in_place(const at::Tensor& tensor, const ProcessGroup& group, Operation operation,
                  const InPlaceArguments& given, const CallOptions& options) {
  const OperationFacts& facts = require_in_place(operation);
  const bool is_root = group.rank() == given.root;
  const bool writes =
      facts.rooted == OperationRoot::no || is_root == (facts.rooted == OperationRoot::to);
  writes ? require_writable(tensor, facts.name) : require_dense(tensor, facts.name);
  const Labelled labelled(options, shape_text(tensor));
  in_place(tensor, writes, [&](const at::Tensor& data) {
    run_collective(group, operation, arguments_of(facts, data, given), labelled);
  });
}

Work run_in_place_async(const at::Tensor& tensor, const ProcessGroup& group, Operation operation,
                        const InPlaceArguments& given, const CallOptions& options) {
  const OperationFacts& facts = require_in_place(operation);
  require_contiguous(tensor, std::string(facts.name) + "_async");
  const Labelled labelled(options, shape_text(tensor), {tensor});
  return run_collective_async(group, operation, arguments_of(facts, tensor, given), labelled);
}

at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroup& group,
                      const CallOptions& options) {
  require_dense(tensor, "all_gather");
  const at::Tensor input = values_of(tensor.detach());
  at::Tensor output = at::empty(gathered_shape(tensor, group), input.options());
  const Labelled labelled(options, shape_text(tensor));
  group.all_gather(movable(input), movable(output), {}, labelled);
  return output;
}

Work all_gather_async(const at::Tensor& output, const at::Tensor& tensor, const ProcessGroup& group,
                      at::IntArrayRef splits, const CallOptions& options) {
  constexpr std::string_view what = "all_gather_async";
  if (!splits.empty()) {
    require_rows(tensor, what);
    require_splits(splits, group, what);
    require_shape(tensor, with_rows(tensor, mine(splits, group)), tensor.scalar_type(), what);
  }
  require_dense(tensor, what);
  require_contiguous(output, what);
  require_shape(output,
                splits.empty() ? gathered_shape(tensor, group) : with_rows(tensor, total(splits)),
                tensor.scalar_type(), what);
  const at::Tensor input = values_of(tensor.detach());
  const Buffer source = movable(input);
  const Labelled labelled(options, splits.empty() ? shape_text(tensor) : text_of_rows(tensor),
                          {input, output});
  return group.all_gather_async(source, movable(output),
                                splits.empty() ? Counts{} : counts_of(splits, tensor, source.dtype),
                                labelled);
}

std::vector<at::Tensor> all_gather_uneven(const at::Tensor& tensor, const ProcessGroup& group,
                                          const CallOptions& options) {
  require_rows(tensor, "all_gather_uneven");
  const at::Tensor input = values_of(tensor.detach());
  const auto splits = exchange_rows(tensor, group, options);
  const at::Tensor output = at::empty(with_rows(tensor, total(splits)), input.options());
  const Buffer source = movable(input);
  const Labelled labelled(options, text_of_rows(tensor));
  group.all_gather(source, movable(output), counts_of(splits, tensor, source.dtype), labelled);
  return parts_of(output, splits);
}

at::Tensor gather(const at::Tensor& tensor, const ProcessGroup& group, int root,
                  const CallOptions& options) {
  require_dense(tensor, "gather");
  const at::Tensor input = values_of(tensor.detach());
  at::Tensor output;
  if (group.rank() == root) output = at::empty(gathered_shape(tensor, group), input.options());
  const Labelled labelled(options, shape_text(tensor));
  group.gather(movable(input), output.defined() ? movable(output) : Buffer{}, root, {}, labelled);
  return output;
}

Work gather_async(const at::Tensor& output, const at::Tensor& tensor, const ProcessGroup& group,
                  int root, const CallOptions& options) {
  require_dense(tensor, "gather_async");
  const at::Tensor input = values_of(tensor.detach());
  Buffer target;
  if (group.rank() == root) {
    require_contiguous(output, "gather_async");
    require_shape(output, gathered_shape(tensor, group), tensor.scalar_type(), "gather_async");
    target = movable(output);
  }
  const Labelled labelled(options, shape_text(tensor), {input, output});
  return group.gather_async(movable(input), target, root, {}, labelled);
}

std::vector<at::Tensor> gather_uneven(const at::Tensor& tensor, const ProcessGroup& group, int root,
                                      const CallOptions& options) {
  require_rows(tensor, "gather_uneven");
  const at::Tensor input = values_of(tensor.detach());
  const auto splits = exchange_rows(tensor, group, options);
  at::Tensor output;
  if (group.rank() == root) output = at::empty(with_rows(tensor, total(splits)), input.options());
  const Buffer source = movable(input);
  const Labelled labelled(options, text_of_rows(tensor));
  group.gather(source, output.defined() ? movable(output) : Buffer{}, root,
               counts_of(splits, tensor, source.dtype), labelled);
  return output.defined() ? parts_of(output, splits) : std::vector<at::Tensor>{};
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const ProcessGroup& group, ReduceOp op,
                          at::IntArrayRef splits, const CallOptions& options) {
  require_rows(tensor, "reduce_scatter");
  const auto parts = splits_of(tensor, splits, group, "reduce_scatter");
  const at::Tensor input = values_of(tensor.detach());
  at::Tensor output = at::empty(with_rows(tensor, mine(parts, group)), input.options());
  const Buffer source = reducible(input, op);
  const Labelled labelled(options, shape_text(tensor));
  group.reduce_scatter(source, reducible(output, op), op, counts_of(parts, tensor, source.dtype),
                       labelled);
  return output;
}

Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& tensor,
                          const ProcessGroup& group, ReduceOp op, at::IntArrayRef splits,
                          const CallOptions& options) {
  require_rows(tensor, "reduce_scatter_async");
  const auto parts = splits_of(tensor, splits, group, "reduce_scatter_async");
  require_contiguous(output, "reduce_scatter_async");
  require_shape(output, with_rows(tensor, mine(parts, group)), tensor.scalar_type(),
                "reduce_scatter_async");
  const at::Tensor input = values_of(tensor.detach());
  const Buffer source = reducible(input, op);
  const Labelled labelled(options, shape_text(tensor), {input, output});
  return group.reduce_scatter_async(source, reducible(output, op), op,
                                    counts_of(parts, tensor, source.dtype), labelled);
}

namespace {

// Defined only at the root.
at::Tensor values_to_scatter(const at::Tensor& output, const at::Tensor& input,
                             const ProcessGroup& group, int root, at::IntArrayRef splits) {
  if (!splits.empty()) {
    require_rows(output, "scatter");
    require_splits(splits, group, "scatter");
    require_shape(output, with_rows(output, mine(splits, group)), output.scalar_type(), "scatter");
  }
  if (group.rank() != root) return {};
  require_dense(input, "scatter");
  require_shape(input,
                splits.empty() ? gathered_shape(output, group) : with_rows(output, total(splits)),
                output.scalar_type(), "scatter");
  return values_of(input.detach());
}

Counts counts_to_scatter(const at::Tensor& output, at::IntArrayRef splits) {
  return splits.empty() ? Counts{} : counts_of(splits, output, movable(output).dtype);
}

}  // namespace

void scatter(const at::Tensor& output, const at::Tensor& input, const ProcessGroup& group, int root,
             at::IntArrayRef splits, const CallOptions& options) {
  require_writable(output, "scatter");
  const at::Tensor values = values_to_scatter(output, input, group, root, splits);
  const Labelled labelled(options, splits.empty() ? shape_text(output) : text_of_rows(output));
  in_place(output, true, [&](const at::Tensor& data) {
    group.scatter(values.defined() ? movable(values) : Buffer{}, movable(data), root,
                  counts_to_scatter(output, splits), labelled);
  });
}

Work scatter_async(const at::Tensor& output, const at::Tensor& input, const ProcessGroup& group,
                   int root, at::IntArrayRef splits, const CallOptions& options) {
  require_contiguous(output, "scatter_async");
  const at::Tensor values = values_to_scatter(output, input, group, root, splits);
  const Labelled labelled(options, splits.empty() ? shape_text(output) : text_of_rows(output),
                          {values, output});
  return group.scatter_async(values.defined() ? movable(values) : Buffer{}, movable(output), root,
                             counts_to_scatter(output, splits), labelled);
}

namespace {

std::vector<std::int64_t> sent_rows(const at::Tensor& tensor, const ProcessGroup& group,
                                    at::IntArrayRef send_splits, at::IntArrayRef receive_splits,
                                    std::string_view what) {
  require_rows(tensor, what);
  require(send_splits.empty() == receive_splits.empty(), [&] {
    return std::string(what) + ": pass send_splits and receive_splits, or neither; or call " +
           "all_to_all_uneven()";
  });
  if (!receive_splits.empty()) require_splits(receive_splits, group, what);
  return splits_of(tensor, send_splits, group, what);
}

}  // namespace

at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                      at::IntArrayRef send_splits, at::IntArrayRef receive_splits,
                      const CallOptions& options) {
  constexpr std::string_view what = "all_to_all";
  const bool even = send_splits.empty();
  const auto sent = sent_rows(tensor, group, send_splits, receive_splits, what);
  const at::Tensor input = values_of(tensor.detach());
  const Buffer source = movable(input);
  at::Tensor output =
      at::empty(with_rows(tensor, even ? tensor.size(0) : total(receive_splits)), input.options());
  const Labelled labelled(options, text_of_rows(tensor));
  group.all_to_all(source, movable(output), even ? Counts{} : counts_of(sent, tensor, source.dtype),
                   even ? Counts{} : counts_of(receive_splits, tensor, source.dtype), labelled);
  return output;
}

at::Tensor all_to_all_uneven(const at::Tensor& tensor, const ProcessGroup& group,
                             at::IntArrayRef send_splits, const CallOptions& options) {
  require_rows(tensor, "all_to_all_uneven");
  const auto sent = splits_of(tensor, send_splits, group, "all_to_all_uneven");
  const Labelled labelled(options, text_of_rows(tensor));
  const auto received = exchange_splits(sent, group, labelled);
  return all_to_all(tensor, group, sent, received, options);
}

Work all_to_all_async(const at::Tensor& output, const at::Tensor& tensor, const ProcessGroup& group,
                      at::IntArrayRef send_splits, at::IntArrayRef receive_splits,
                      const CallOptions& options) {
  constexpr std::string_view what = "all_to_all_async";
  const bool even = send_splits.empty();
  const auto sent = sent_rows(tensor, group, send_splits, receive_splits, what);
  require_contiguous(output, what);
  require_shape(output, with_rows(tensor, even ? tensor.size(0) : total(receive_splits)),
                tensor.scalar_type(), what);
  const at::Tensor input = values_of(tensor.detach());
  const Buffer source = movable(input);
  const Labelled labelled(options, text_of_rows(tensor), {input, output});
  return group.all_to_all_async(
      source, movable(output), even ? Counts{} : counts_of(sent, tensor, source.dtype),
      even ? Counts{} : counts_of(receive_splits, tensor, source.dtype), labelled);
}

void send(const at::Tensor& tensor, const ProcessGroup& group, int peer, std::int64_t tag,
          const CallOptions& options) {
  require_dense(tensor, "send");
  group.send(movable(values_of(tensor.detach())), peer, tag, options);
}

Work send_async(const at::Tensor& tensor, const ProcessGroup& group, int peer, std::int64_t tag,
                const CallOptions& options) {
  require_dense(tensor, "send_async");
  const at::Tensor input = values_of(tensor.detach());
  const Labelled kept(options, {}, {input});
  return group.send_async(movable(input), peer, tag, kept);
}

Source recv(const at::Tensor& tensor, const ProcessGroup& group, int peer, std::int64_t tag,
            const CallOptions& options) {
  require_writable(tensor, "recv");
  Source source;
  in_place(tensor, true,
           [&](const at::Tensor& data) { source = group.recv(movable(data), peer, tag, options); });
  return source;
}

Work recv_async(const at::Tensor& tensor, const ProcessGroup& group, int peer, std::int64_t tag,
                const CallOptions& options) {
  require_contiguous(tensor, "recv_async");
  const Labelled kept(options, {}, {tensor});
  return group.recv_async(movable(tensor), peer, tag, kept);
}

at::Tensor registered_zeros(at::IntArrayRef sizes, at::ScalarType dtype,
                            const ProcessGroup& group) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  std::int64_t elements = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = elements;
    require(sizes[dim] >= 0 && !__builtin_mul_overflow(bytes, sizes[dim], &bytes),
            "registered_zeros: a size is negative, or all together are too large");
    elements *= sizes[dim];
  }
  return view_of(group.allocate(static_cast<std::size_t>(bytes)), 0, sizes, strides, dtype);
}

at::Tensor view_of(const RegisteredMemory& memory, std::size_t offset, at::IntArrayRef sizes,
                   at::IntArrayRef strides, at::ScalarType dtype) {
  auto* const data = static_cast<std::byte*>(memory.data()) + offset;
  return at::from_blob(
      data, sizes, strides, [memory](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace lockstep
