// SPDX-License-Identifier: Apache-2.0
#include "lockstep/torch_backend/collectives.h"

#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/sparse_all_reduce.h"
#include "lockstep/tensor/torch_version.h"
#include "lockstep/torch_backend/errors.h"
#include "lockstep/torch_backend/interrupts.h"
#include "lockstep/torch_backend/parts.h"
#include "lockstep/torch_backend/reduction.h"
#include "lockstep/torch_backend/registered_allocator.h"

namespace lockstep::torch_backend {
namespace {

using Op = c10d::OpType;

template <class Element>
Element& only_one(std::vector<Element>& list, std::string_view what) {
  require(list.size() == 1, [&] {
    return std::string(what) + ": one tensor was expected, not " + std::to_string(list.size());
  });
  return list.front();
}

void require_one_for_each(std::size_t tensors, std::size_t expected, std::string_view what) {
  require(tensors == expected, [&] {
    return std::string(what) + ": " + std::to_string(expected) + " tensors were expected, not " +
           std::to_string(tensors);
  });
}

int root_of(std::int64_t rank, int size, std::string_view what) {
  require(rank >= 0 && rank < size, [&] {
    return std::string(what) + ": there is no rank " + std::to_string(rank) + " in a group of " +
           std::to_string(size);
  });
  return static_cast<int>(rank);
}

// --- Bodies -------------------------------------------------------------------------------------

void require_direct(const at::Tensor& tensor, std::string_view what) {
  require_contiguous(tensor, what);
  require(!tensor.key_set().has(c10::DispatchKey::Python),
          [&] { return std::string(what) + ": pass the to_local() of a DTensor"; });
  if (!tensor.is_cpu())
    throw Error(Fault::unsupported, std::string(what) + ": only CPU tensors are supported");
}

void all_reduce_of(const at::Tensor& tensor, const Reduction& reduction, const ProcessGroup& group,
                   const CallOptions& options) {
  const at::Tensor input = reduction.weighted(tensor);
  Parts parts({input}, "all_reduce");
  parts.fill();
  group.all_reduce(parts.buffer(reduction.op), reduction.op, options);
  parts.spread();
  if (!input.is_same(tensor)) tensor.copy_(input);
}

// Indices of at least one of each two tensors that overlap.
std::vector<std::size_t> overlapping(const Tensors& tensors) {
  std::vector<std::tuple<const std::byte*, const std::byte*, std::size_t>> spans;
  for (const at::Tensor& tensor : tensors) {
    const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    const auto bytes =
        at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
    spans.emplace_back(begin, begin + bytes, spans.size());
  }
  std::ranges::sort(spans);
  std::vector<std::size_t> places;
  const std::byte* last_end = nullptr;
  for (const auto& [begin, end, place] : spans) {
    if (begin < last_end) places.push_back(place);
    last_end = std::max(last_end, end);
  }
  return places;
}

void all_reduce_each(const Tensors& tensors, const Reduction& reduction, const ProcessGroup& group,
                     const CallOptions& options) {
  const auto shared = overlapping(tensors);
  Tensors apart = tensors;
  for (const std::size_t place : shared) apart[place] = tensors[place].clone();
  for (const at::Tensor& tensor : apart) all_reduce_of(tensor, reduction, group, options);
  for (const std::size_t place : shared) tensors[place].copy_(apart[place]);
}

void reduce_of(const at::Tensor& tensor, int root, const Reduction& reduction,
               const ProcessGroup& group, const CallOptions& options) {
  const at::Tensor input = reduction.weighted(tensor);
  Parts parts({input}, "reduce");
  parts.fill();
  group.reduce(parts.buffer(reduction.op), root, reduction.op, options);
  if (group.rank() != root) return;
  parts.spread();
  if (!input.is_same(tensor)) tensor.copy_(input);
}

void all_gather_of(const at::Tensor& input, Tensors outputs, const ProcessGroup& group,
                   const CallOptions& options) {
  Parts in({input}, "all_gather");
  const Parts out(std::move(outputs), "all_gather");
  in.fill();
  const Buffer buffer = out.buffer();
  group.all_gather(in.buffer(), buffer, out.counts(buffer), options);
  out.spread();
}

void reduce_scatter_of(Tensors inputs, const at::Tensor& output, const Reduction& reduction,
                       const ProcessGroup& group, const CallOptions& options) {
  for (at::Tensor& input : inputs) input = reduction.weighted(input);
  Parts in(std::move(inputs), "reduce_scatter");
  const Parts out({output}, "reduce_scatter");
  in.fill();
  const Buffer buffer = in.buffer(reduction.op);
  group.reduce_scatter(buffer, out.buffer(reduction.op), reduction.op, in.counts(buffer), options);
  out.spread();
}

// From this size on, the root copies its own part to the output, which makes parts
// uneven.
constexpr std::size_t least_own_part = std::size_t{1} << 20;

void scatter_of(Tensors inputs, const at::Tensor& output, int root, const ProcessGroup& group,
                const CallOptions& options) {
  const bool is_root = group.rank() == root;
  const auto ranks = static_cast<std::size_t>(group.size());
  const Parts out({output}, "scatter");
  Buffer to = out.buffer();
  Counts counts;
  // Equal on all ranks, which pass the same counts.
  if (ranks > 1 && to.bytes() >= least_own_part) {
    counts.assign(ranks, to.count);
    counts[static_cast<std::size_t>(root)] = 0;
  }
  if (!is_root) {
    group.scatter({}, to, root, counts, options);
    return out.spread();
  }
  const at::Tensor own = inputs[static_cast<std::size_t>(root)];
  if (!counts.empty()) {
    inputs.erase(inputs.begin() + root);
    to.count = 0;
  }
  Parts in(std::move(inputs), "scatter");
  in.fill();
  group.scatter(in.buffer(), to, root, counts, options);
  if (counts.empty())
    out.spread();
  else
    output.copy_(own);
}

// All tensors have one size, as in Gloo and NCCL.
void require_equal_parts(const Tensors& list, const at::Tensor& one, std::string_view what) {
  for (std::size_t rank = 0; rank < list.size(); ++rank)
    require(list[rank].numel() == one.numel(), [&] {
      return std::string(what) + ": the list's tensor for rank " + std::to_string(rank) + " has " +
             std::to_string(list[rank].numel()) + " elements, but this rank's tensor has " +
             std::to_string(one.numel()) +
             ": give all ranks tensors of one size, or use all_gather or all_to_all, which take "
             "unequal ones";
    });
}

// In elements.
Counts counts_of(const at::Tensor& tensor, const std::vector<std::int64_t>& rows,
                 const Buffer& buffer, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (rows.empty()) {
    require(tensor.dim() > 0 && tensor.size(0) % size == 0, [&] {
      return "all_to_all: the rows of a tensor cannot be divided by " + std::to_string(size) +
             " ranks";
    });
    return Counts(ranks, buffer.count / ranks);
  }
  require_one_for_each(rows.size(), ranks, "all_to_all: sizes of parts");
  const std::size_t of_row = elements_of_row(tensor, buffer.dtype);
  Counts counts;
  for (const std::int64_t count : rows) {
    require(count >= 0, "all_to_all: the size of a part is negative");
    counts.push_back(static_cast<std::size_t>(count) * of_row);
  }
  return counts;
}

// Also if all are equal.
Counts all_counts_of(const Parts& parts, const Buffer& buffer, int size) {
  Counts counts = parts.counts(buffer);
  if (counts.empty()) counts.assign(static_cast<std::size_t>(size), buffer.count / size);
  return counts;
}

void all_to_all_of(const Tensors& inputs, const Tensors& outputs, const ProcessGroup& group,
                   const CallOptions& options) {
  Parts in(inputs, "all_to_all");
  const Parts out(outputs, "all_to_all");
  in.fill();
  const Buffer from = in.buffer();
  const Buffer to = out.buffer();
  group.all_to_all(from, to, all_counts_of(in, from, group.size()),
                   all_counts_of(out, to, group.size()), options);
  out.spread();
}

// torch's message, then ours.
std::string text_of_absence(const Error& error, int rank, std::chrono::milliseconds timeout,
                            bool all) {
  auto absent = error.ranks();
  if (!all) absent.resize(1);
  std::string who = absent.size() == 1 ? "Rank " : "Ranks ";
  for (std::size_t i = 0; i < absent.size(); ++i)
    who += (i == 0 ? "" : ", ") + std::to_string(absent[i]);
  if (rank == 0 && timeout.count() == 0)
    return "Rank 0 timed out in monitoredBarrier after 0 ms: " + bare_text(error);
  if (rank == 0)
    return who + " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
           " ms: " + bare_text(error);
  return "Rank " + std::to_string(rank) +
         " successfully reached monitoredBarrier, but received errors while waiting for "
         "send/recv from rank 0. Please check rank 0 logs for faulty rank. " +
         bare_text(error);
}

// Tensors allocated again for each call then get registered memory.
void note_moved(const Operands& operands) {
  RegisteredAllocator& memory = RegisteredAllocator::instance();
  for (const at::Tensor& tensor : operands.inputs) memory.note_moved(tensor);
  for (const Tensors& tensors : operands.outputs)
    for (const at::Tensor& tensor : tensors) memory.note_moved(tensor);
}

}  // namespace

// --- How all of them run ------------------------------------------------------------------------

Collectives::Collectives(int rank, int size, std::shared_ptr<Membership> membership)
    : Backend(rank, size), membership_(std::move(membership)) {}

template <class Opts, class Body>
Started Collectives::start(Operands operands, const Opts& opts, Body body) {
  const CallOptions options{.timeout = membership_->timeout_of(opts.timeout)};
  note_call(membership_->group());
  auto call = [membership = membership_, options, body = std::move(body)] {
    membership->noting_errors([&] { body(membership->group(), options); });
  };
  note_moved(operands);
  auto work = c10::make_intrusive<CollectiveWork>(membership_, std::move(operands), ++sequence_,
                                                  std::move(call));
  if (opts.asyncOp || coalescing_.has_begun()) {
    membership_->calls()->add(work);
    return coalesced(work);
  }
  const Interruptible interruptible(*membership_);
  membership_->calls()->catch_up();
  work->perform();
  work->wait(kNoTimeout);
  return work;
}

void Collectives::startCoalescing() { coalescing_.begin(); }

Started Collectives::coalesced(Started work) {
  coalescing_.add(work);
  return work;
}

Started Collectives::endCoalescing() {
  return throwing_in_python(
      [&] { return c10::make_intrusive<CoalescedWork>(getRank(), coalescing_.end()); });
}

// --- Collectives --------------------------------------------------------------------------------

Started Collectives::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return throwing_in_python([&] {
    const at::Tensor tensor = only_one(tensors, "all_reduce");
    if (tensor.layout() == at::kSparse) return start_sparse(tensor, opts);
    require_writable(tensor, "all_reduce");
    return start({Op::ALLREDUCE, "lockstep:all_reduce", tensors, {tensors}}, opts,
                 [tensor, reduction = reduction_of(opts.reduceOp)](const ProcessGroup& group,
                                                                   const CallOptions& options) {
                   all_reduce_of(tensor, reduction, group, options);
                 });
  });
}

void Collectives::all_reduce_(const at::Tensor& tensor) {
  throwing_in_python([&] {
    require_direct(tensor, "all_reduce_");
    const CallOptions options{.timeout = membership_->timeout_of(c10d::kUnsetTimeout)};
    const Buffer buffer = reducible(tensor, ReduceOp::sum);
    RECORD_USER_SCOPE("lockstep:all_reduce");
    note_call(membership_->group());
    RegisteredAllocator::instance().note_moved(tensor);
    ++sequence_;
    const Interruptible interruptible(*membership_);
    membership_->calls()->catch_up();
    try {
      membership_->noting_errors(
          [&] { membership_->group().all_reduce(buffer, ReduceOp::sum, options); });
    } catch (...) {
      note_failed_call();
      throw;
    }
  });
}

Started Collectives::start_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
  return start({Op::_ALLREDUCE_SPARSE, "lockstep:sparse_all_reduce", {tensor}, {{tensor}}}, opts,
               [tensor, reduction = reduction_of(opts.reduceOp)](const ProcessGroup& group,
                                                                 const CallOptions& options) {
                 sparse_all_reduce(tensor, reduction.op, group, options);
               });
}

Started Collectives::allreduce_coalesced(Tensors& tensors,
                                         const c10d::AllreduceCoalescedOptions& opts) {
  return throwing_in_python([&] {
    require(!tensors.empty(), "all_reduce_coalesced: the list of tensors is empty");
    for (const at::Tensor& tensor : tensors) require_writable(tensor, "all_reduce_coalesced");
    return start({Op::ALLREDUCE_COALESCED, "lockstep:all_reduce", tensors, {tensors}}, opts,
                 [tensors, reduction = reduction_of(opts.reduceOp)](const ProcessGroup& group,
                                                                    const CallOptions& options) {
                   all_reduce_each(tensors, reduction, group, options);
                 });
  });
}

Started Collectives::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return throwing_in_python([&] {
    const at::Tensor tensor = only_one(tensors, "broadcast");
    require_writable(tensor, "broadcast");
    return start({Op::BROADCAST, "lockstep:broadcast", tensors, {tensors}}, opts,
                 [tensor, root = root_of(opts.rootRank, getSize(), "broadcast")](
                     const ProcessGroup& group, const CallOptions& options) {
                   Parts parts({tensor}, "broadcast");
                   if (group.rank() == root) parts.fill();
                   group.broadcast(parts.buffer(), root, options);
                   if (group.rank() != root) parts.spread();
                 });
  });
}

Started Collectives::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return throwing_in_python([&] {
    const at::Tensor tensor = only_one(tensors, "reduce");
    require_writable(tensor, "reduce");
    return start({Op::REDUCE, "lockstep:reduce", tensors, {tensors}}, opts,
                 [tensor, root = root_of(opts.rootRank, getSize(), "reduce"),
                  reduction = reduction_of(opts.reduceOp)](const ProcessGroup& group,
                                                           const CallOptions& options) {
                   reduce_of(tensor, root, reduction, group, options);
                 });
  });
}

Started Collectives::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& opts) {
  return throwing_in_python([&] {
    const Tensors list = only_one(outputs, "all_gather");
    const at::Tensor input = only_one(inputs, "all_gather");
    require_one_for_each(list.size(), static_cast<std::size_t>(getSize()), "all_gather");
    return start({Op::ALLGATHER, "lockstep:all_gather", inputs, outputs}, opts,
                 [list, input](const ProcessGroup& group, const CallOptions& options) {
                   all_gather_of(input, list, group, options);
                 });
  });
}

Started Collectives::_allgather_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::AllgatherOptions& opts) {
  return throwing_in_python([&] {
    return start({Op::_ALLGATHER_BASE, "lockstep:all_gather", {input}, {{output}}}, opts,
                 [output, input](const ProcessGroup& group, const CallOptions& options) {
                   all_gather_of(input, {output}, group, options);
                 });
  });
}

Started Collectives::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& opts) {
  return throwing_in_python([&] {
    require_one_for_each(outputs.size(), static_cast<std::size_t>(getSize()),
                         "all_gather_coalesced: lists");
    for (const Tensors& list : outputs)
      require_one_for_each(list.size(), inputs.size(), "all_gather_coalesced");
    return start({Op::ALLGATHER_COALESCED, "lockstep:all_gather", inputs, outputs}, opts,
                 [outputs, inputs](const ProcessGroup& group, const CallOptions& options) {
                   for (std::size_t i = 0; i < inputs.size(); ++i) {
                     Tensors of_ranks;
                     for (const Tensors& list : outputs) of_ranks.push_back(list[i]);
                     all_gather_of(inputs[i], std::move(of_ranks), group, options);
                   }
                 });
  });
}

Started Collectives::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  return throwing_in_python([&] {
    require_one_for_each(outputs.size(), inputs.size(), "all_gather_into_tensor_coalesced");
    return start({Op::COALESCED, "lockstep:all_gather", inputs, {outputs}}, opts,
                 [outputs, inputs](const ProcessGroup& group, const CallOptions& options) {
                   for (std::size_t i = 0; i < inputs.size(); ++i)
                     all_gather_of(inputs[i], {outputs[i]}, group, options);
                 });
  });
}

Started Collectives::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::GatherOptions& opts) {
  return throwing_in_python([&] {
    const at::Tensor input = only_one(inputs, "gather");
    const bool is_root = getRank() == opts.rootRank;
    const Tensors list = is_root ? only_one(outputs, "gather") : Tensors{};
    if (is_root) {
      require_one_for_each(list.size(), static_cast<std::size_t>(getSize()), "gather");
      require_equal_parts(list, input, "gather");
    }
    return start({Op::GATHER, "lockstep:gather", inputs, {list}}, opts,
                 [list, input, root = root_of(opts.rootRank, getSize(), "gather")](
                     const ProcessGroup& group, const CallOptions& options) {
                   Parts in({input}, "gather");
                   in.fill();
                   if (group.rank() != root)
                     return group.gather(in.buffer(), {}, root, {}, options);
                   const Parts out(list, "gather");
                   group.gather(in.buffer(), out.buffer(), root, {}, options);
                   out.spread();
                 });
  });
}

Started Collectives::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ScatterOptions& opts) {
  return throwing_in_python([&] {
    const at::Tensor output = only_one(outputs, "scatter");
    const bool is_root = getRank() == opts.rootRank;
    const Tensors list = is_root ? only_one(inputs, "scatter") : Tensors{};
    if (is_root) {
      require_one_for_each(list.size(), static_cast<std::size_t>(getSize()), "scatter");
      require_equal_parts(list, output, "scatter");
    }
    return start({Op::SCATTER, "lockstep:scatter", is_root ? list : outputs, {outputs}}, opts,
                 [list, output, root = root_of(opts.rootRank, getSize(), "scatter")](
                     const ProcessGroup& group, const CallOptions& options) {
                   scatter_of(list, output, root, group, options);
                 });
  });
}

Started Collectives::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& opts) {
  return throwing_in_python([&] {
    const at::Tensor output = only_one(outputs, "reduce_scatter");
    const Tensors list = only_one(inputs, "reduce_scatter");
    require_one_for_each(list.size(), static_cast<std::size_t>(getSize()), "reduce_scatter");
    return start({Op::REDUCE_SCATTER, "lockstep:reduce_scatter", list, {outputs}}, opts,
                 [list, output, reduction = reduction_of(opts.reduceOp)](
                     const ProcessGroup& group, const CallOptions& options) {
                   reduce_scatter_of(list, output, reduction, group, options);
                 });
  });
}

Started Collectives::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& opts) {
  return throwing_in_python([&] {
    return start({Op::_REDUCE_SCATTER_BASE, "lockstep:reduce_scatter", {input}, {{output}}}, opts,
                 [output, input, reduction = reduction_of(opts.reduceOp)](
                     const ProcessGroup& group, const CallOptions& options) {
                   reduce_scatter_of({input}, output, reduction, group, options);
                 });
  });
}

Started Collectives::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  return throwing_in_python([&] {
    require_one_for_each(outputs.size(), inputs.size(), "reduce_scatter_tensor_coalesced");
    return start(
        {reduce_scatter_tensor_coalesced_type<Op>(), "lockstep:reduce_scatter", inputs, {outputs}},
        opts,
        [outputs, inputs, reduction = reduction_of(opts.reduceOp)](const ProcessGroup& group,
                                                                   const CallOptions& options) {
          for (std::size_t i = 0; i < inputs.size(); ++i)
            reduce_scatter_of({inputs[i]}, outputs[i], reduction, group, options);
        });
  });
}

Started Collectives::alltoall_base(at::Tensor& output, at::Tensor& input,
                                   std::vector<std::int64_t>& output_rows,
                                   std::vector<std::int64_t>& input_rows,
                                   const c10d::AllToAllOptions& opts) {
  return throwing_in_python([&] {
    return start({Op::ALLTOALL_BASE, "lockstep:all_to_all", {input}, {{output}}}, opts,
                 [output, input, output_rows, input_rows](const ProcessGroup& group,
                                                          const CallOptions& options) {
                   Parts in({input}, "all_to_all");
                   const Parts out({output}, "all_to_all");
                   in.fill();
                   const Buffer from = in.buffer();
                   const Buffer to = out.buffer();
                   group.all_to_all(from, to, counts_of(input, input_rows, from, group.size()),
                                    counts_of(output, output_rows, to, group.size()), options);
                   out.spread();
                 });
  });
}

Started Collectives::alltoall(Tensors& outputs, Tensors& inputs,
                              const c10d::AllToAllOptions& opts) {
  return throwing_in_python([&] {
    const auto ranks = static_cast<std::size_t>(getSize());
    require_one_for_each(outputs.size(), ranks, "all_to_all");
    require_one_for_each(inputs.size(), ranks, "all_to_all");
    return start({Op::ALLTOALL, "lockstep:all_to_all", inputs, {outputs}}, opts,
                 [outputs, inputs](const ProcessGroup& group, const CallOptions& options) {
                   all_to_all_of(inputs, outputs, group, options);
                 });
  });
}

Started Collectives::barrier(const c10d::BarrierOptions& opts) {
  return throwing_in_python([&] {
    return start(
        {Op::BARRIER, "lockstep:barrier", {}, {}}, opts,
        [](const ProcessGroup& group, const CallOptions& options) { group.barrier(options); });
  });
}

void Collectives::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  ++sequence_;
  const auto timeout = membership_->timeout_of(opts.timeout);
  throwing_in_python([&] {
    const Interruptible interruptible(*membership_);
    membership_->calls()->catch_up();
    membership_->noting_errors([&] {
      try {
        membership_->group().monitored_barrier({.timeout = timeout});
      } catch (const Error& error) {
        if (error.fault() != Fault::timeout || error.ranks().empty()) throw;
        throw Error(Fault::timeout, text_of_absence(error, getRank(), timeout, wait_all_ranks),
                    error.ranks());
      }
    });
  });
}

}  // namespace lockstep::torch_backend
