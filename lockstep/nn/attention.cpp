// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/comm/sharing_ranks.h"
#include "lockstep/nn/cut.h"
#include "lockstep/nn/shared_slots.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differentiable.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;

void require_length(std::int64_t length, int ranks, SequenceOrder order) {
  const bool has_tails = order == SequenceOrder::head_tail && ranks > 1;
  const std::string mismatch =
      mismatch_of(has_tails ? "head_tail: sequence length" : "sequence length", length,
                  has_tails ? 2 : 1, ranks);
  require(mismatch.empty(), mismatch);
}

at::Tensor positions_of(int rank, std::int64_t length, int ranks, SequenceOrder order) {
  if (order == SequenceOrder::contiguous || ranks == 1) {
    const std::int64_t part = length / ranks;
    return at::arange(rank * part, (rank + 1) * part, at::kLong);
  }
  const std::int64_t half = length / (2 * ranks), tail = 2 * ranks - 1 - rank;
  return at::cat({at::arange(rank * half, (rank + 1) * half, at::kLong),
                  at::arange(tail * half, (tail + 1) * half, at::kLong)});
}

at::Tensor positions_of_all(std::int64_t length, int ranks, SequenceOrder order) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(positions_of(rank, length, ranks, order));
  return at::cat(all);
}

at::Tensor selected(const at::Tensor& x, std::int64_t dim, const at::Tensor& positions) {
  return x.index_select(dim, positions.to(x.device()));
}

struct Call : torch::CustomClassHolder {
  Call(const AttentionOptions& the_options, std::string the_name)
      : options(the_options), group(*the_options.context), name(std::move(the_name)) {}

  CallOptions collective(bool is_backward = false) const {
    return {.timeout = options.timeout, .label = is_backward ? backward_name : name};
  }

  const AttentionOptions options;
  const ProcessGroup group;
  const std::string name;  // Has all that ranks must agree on.
  const std::string backward_name = name + " backward";
};

using CallPtr = c10::intrusive_ptr<Call>;

std::string mismatch_of_heads(const at::Tensor& q, const ProcessGroup& group) {
  return mismatch_of("heads", q.size(1), 1, group.size());
}

ContextMethod method_of(const at::Tensor& q, const Call& call) {
  const AttentionOptions& options = call.options;
  if (options.method != ContextMethod::automatic) return options.method;
  if (!q.is_cpu()) return ContextMethod::ulysses;
  return all_share_memory(call.group, call.name) || !mismatch_of_heads(q, call.group).empty()
             ? ContextMethod::ring
             : ContextMethod::ulysses;
}

std::string name_of_call(const Tensors& qkv, const AttentionOptions& options) {
  std::string name = options.name.empty() ? "attention" : options.name;
  constexpr const char* methods[] = {"automatic", "ring", "ulysses"};
  name += std::string(" (") + methods[static_cast<std::size_t>(options.method)];
  if (options.is_causal) name += ", causal";
  if (options.order == SequenceOrder::head_tail) name += ", head_tail";
  if (options.enable_gqa) name += ", gqa";
  if (options.scale) name += ", scale " + std::to_string(*options.scale);
  if (options.dropout_p != 0) name += ", dropout";
  for (const at::Tensor& x : qkv)
    name += shape_text(x) + (at::GradMode::is_enabled() && x.requires_grad() ? " grad" : "");
  return name + ')';
}

std::string shapes_mismatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionOptions& options) {
  for (const at::Tensor& x : {q, k, v})
    if (x.layout() != at::kStrided) return "q, k and v are dense tensors";
  if (q.dim() != 4 || k.dim() != 4 || q.numel() == 0 || k.numel() == 0)
    return "q, k and v are [N, heads, T, head width], and not empty";
  if (k.sizes() != v.sizes()) return "k and v have different shapes";
  if (q.size(0) != k.size(0) || q.size(3) != k.size(3))
    return "q and k differ in N or in head width";
  if (!q.is_floating_point() || q.scalar_type() != k.scalar_type() ||
      q.scalar_type() != v.scalar_type() || q.device() != k.device() || q.device() != v.device())
    return "q, k and v have one floating-point type, on one device";
  if (q.size(1) != k.size(1) && (!options.enable_gqa || q.size(1) % k.size(1) != 0))
    return std::to_string(q.size(1)) + " heads of q, and " + std::to_string(k.size(1)) +
           " of k: they are equal, or a divisor with enable_gqa";
  if (options.is_causal && q.size(2) != k.size(2))
    return "q and k differ in length: there is no causal mask";
  if (options.is_causal && options.order == SequenceOrder::head_tail && q.size(2) % 2 != 0)
    return "a part of " + std::to_string(q.size(2)) +
           " positions has no head and tail: " + std::to_string(q.size(2) - 1) + " or " +
           std::to_string(q.size(2) + 1) + " have";
  return "";
}

// If options differ, only some ranks may refuse: the collective gives all an Error.
void refuse(const Call& call, Fault fault, const std::string& why) {
  if (why.empty()) return;
  naming_errors(call.name, [&] { call.group.barrier(call.collective()); });
  throw Error(fault, call.name + ": " + why);
}

at::Tensor ulysses(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const Call& call) {
  const AttentionOptions& options = call.options;
  const int ranks = call.group.size();
  const std::int64_t repeats = k.size(1) % ranks == 0 ? 1 : q.size(1) / k.size(1);
  const bool is_reordered = options.is_causal && options.order == SequenceOrder::head_tail;
  // Same order: a causal mask implies one length.
  const at::Tensor order =
      is_reordered ? positions_of_all(q.size(2) * ranks, ranks, options.order) : at::Tensor();
  const at::Tensor places = is_reordered ? order.argsort() : at::Tensor();
  const auto by_heads = [&](const at::Tensor& x) {
    const at::Tensor y = all_to_all_in_region(x, call.group, 1, 2, call.collective());
    return is_reordered ? selected(y, 2, places) : y;
  };
  const auto repeated = [&](const at::Tensor& x) {
    return repeats == 1 ? x : x.repeat_interleave(repeats, 1);
  };
  const at::Tensor queries = by_heads(q), keys = by_heads(repeated(k)),
                   values = by_heads(repeated(v));
  at::Tensor y = at::scaled_dot_product_attention(queries, keys, values, {}, 0, options.is_causal,
                                                  options.scale,
                                                  /*enable_gqa=*/queries.size(1) != keys.size(1));
  if (is_reordered) y = selected(y, 2, order);
  return all_to_all_in_region(y, call.group, 2, 1, call.collective());
}

// One tensor per rank, from rank() up and back to rank().
class Rotation {
 public:
  // `tensors`: all ranks', in shared memory, or the own one, which travels between ranks. With
  // `is_written`, the one rank that holds a tensor writes it.
  Rotation(const Call& call, Tensors tensors, bool is_backward, bool is_written)
      : call_(call),
        options_(call.collective(is_backward)),
        tensors_(std::move(tensors)),
        is_written_(is_written) {}

  at::Tensor next() {
    const int size = call_.group.size();
    ++step_;
    if (tensors_.size() == 1) return tensors_[0] = passed_on(tensors_[0]);
    if (is_written_ && step_ > 1) call_.group.barrier(options_);
    return tensors_[static_cast<std::size_t>((call_.group.rank() + step_) % size)];
  }

 private:
  at::Tensor passed_on(const at::Tensor& tensor) const {
    const int size = call_.group.size(), rank = call_.group.rank();
    std::vector<std::int64_t> sent(static_cast<std::size_t>(size)), received(sent);
    sent[static_cast<std::size_t>((rank + size - 1) % size)] = tensor.numel();
    received[static_cast<std::size_t>((rank + 1) % size)] = tensor.numel();
    return all_to_all(tensor.flatten(), call_.group, sent, received, options_).view(tensor.sizes());
  }

  const Call& call_;
  const CallOptions options_;
  Tensors tensors_;
  const bool is_written_;
  int step_ = 0;
};

Tensors shared(const Tensors& values, const Call& call, bool is_backward) {
  if (!all_share_memory(call.group, call.name)) return {at::stack(values)};
  return attachment_of<SharedSlots>(call.group)
      ->publish(values, call.group, call.collective(is_backward));
}

const at::Tensor& own_of(const Tensors& tensors, const ProcessGroup& group) {
  return tensors.size() == 1 ? tensors[0] : tensors[static_cast<std::size_t>(group.rank())];
}

// The unmasked scores.
struct Sight {
  std::int64_t first_query = 0, queries = 0, keys = 0;
  bool is_causal = false;

  at::Tensor of_queries(const at::Tensor& x) const { return x.narrow(2, first_query, queries); }
  at::Tensor of_keys(const at::Tensor& x) const { return x.narrow(2, 0, keys); }
};

Sight sight_of(const Call& call, int step, std::int64_t queries, std::int64_t keys) {
  const int rank = call.group.rank(), source = (rank + step) % call.group.size();
  if (!call.options.is_causal) return {0, queries, keys, false};
  if (source == rank) return {0, queries, keys, true};
  if (call.options.order == SequenceOrder::head_tail) {
    if (source < rank) return {0, queries, keys / 2, false};  // Its head is before both of mine.
    return {queries / 2, queries / 2, keys, false};           // My tail is behind both of its.
  }
  return source < rank ? Sight{0, queries, keys, false} : Sight{};
}

// LibTorch's kernels need contiguous heads, and no two elements at one address.
at::Tensor for_kernel(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() && x.stride(-1) == 1 ? x : x.contiguous();
}

// With weights p and p' of the two softmaxes: out = (p out + p' other) / (p + p').
void merge(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& other,
           const at::Tensor& other_lse) {
  out.lerp_(other.to(out.scalar_type()), at::sigmoid(other_lse - lse).unsqueeze(-1));
  lse.copy_(lse.logaddexp(other_lse));
}

struct Ring : torch::autograd::Function<Ring> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& k,
                            const at::Tensor& v, const CallPtr& call) {
    const at::Tensor q = query.stride(-1) == 1 ? query : query.contiguous();
    const Tensors blocks = shared({k, v}, *call, false);
    Rotation rotation(*call, blocks, false, false);
    at::Tensor out, lse;
    for (int step = 0; step < call->group.size(); ++step) {
      const at::Tensor block = step == 0 ? own_of(blocks, call->group) : rotation.next();
      const Sight sight = sight_of(*call, step, q.size(2), k.size(2));
      if (sight.queries == 0) continue;
      const auto [of_block, its_lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          sight.of_queries(q), sight.of_keys(block[0]), sight.of_keys(block[1]), 0, sight.is_causal,
          {}, call->options.scale);
      if (step > 0) {
        merge(sight.of_queries(out), sight.of_queries(lse), of_block, its_lse);
      } else {
        out = of_block.to(its_lse.scalar_type());
        lse = its_lse;
      }
    }
    out = out.to(q.scalar_type());
    variable_list saved{q, out, lse};
    saved.insert(saved.end(), blocks.begin(), blocks.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    if (at::GradMode::is_enabled())
      throw Error(Fault::unsupported, call->name +
                                          ": a ring's gradient has no gradient: backward() with "
                                          "create_graph");
    return naming_errors(call->backward_name, [&] {
      return gradients_of(*call, context->get_saved_variables(), gradients[0]);
    });
  }

 private:
  static variable_list gradients_of(const Call& call, const variable_list& saved,
                                    const at::Tensor& of_out) {
    const at::Tensor &q = saved[0], &out = saved[1], &lse = saved[2];
    const Tensors blocks(saved.begin() + 3, saved.end());
    const at::Tensor gradient = for_kernel(of_out);
    const auto through = [&](const Sight& sight, const at::Tensor& block) {
      return at::_scaled_dot_product_flash_attention_for_cpu_backward(
          sight.of_queries(gradient), sight.of_queries(q), sight.of_keys(block[0]),
          sight.of_keys(block[1]), sight.of_queries(out), sight.of_queries(lse), 0, sight.is_causal,
          {}, call.options.scale);
    };
    const auto sight_at = [&](int step) {
      return sight_of(call, step, q.size(2), blocks[0].size(3));
    };

    const auto own = through(sight_at(0), own_of(blocks, call.group));
    const at::Tensor of_q = std::get<0>(own).to(lse.scalar_type());
    Rotation keys(call, blocks, true, false);
    Rotation sums(
        call,
        shared({std::get<1>(own).to(lse.scalar_type()), std::get<2>(own).to(lse.scalar_type())},
               call, true),
        true, true);
    for (int step = 1; step < call.group.size(); ++step) {
      const at::Tensor block = keys.next(), sum = sums.next();
      const Sight sight = sight_at(step);
      if (sight.queries == 0) continue;
      const auto [part_of_q, part_of_k, part_of_v] = through(sight, block);
      sight.of_queries(of_q).add_(part_of_q);
      sight.of_keys(sum[0]).add_(part_of_k);
      sight.of_keys(sum[1]).add_(part_of_v);
    }
    const at::Tensor sum = sums.next();  // Complete after the last barrier.
    const auto mine = [&](const at::Tensor& x) {
      return x.to(q.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    };
    return {of_q.to(q.scalar_type()), mine(sum[0]), mine(sum[1]), {}};
  }
};

}  // namespace

at::Tensor scaled_dot_product_attention(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttentionOptions& options) {
  if (!options.context || options.context->size() == 1)
    return at::scaled_dot_product_attention(q, k, v, {}, options.dropout_p, options.is_causal,
                                            options.scale, options.enable_gqa);
  for (const at::Tensor& x : {q, k, v})
    require(x.defined(), "scaled_dot_product_attention: a tensor is undefined");
  const auto call = c10::make_intrusive<Call>(options, name_of_call({q, k, v}, options));
  refuse(*call, Fault::misuse, shapes_mismatch(q, k, v, options));
  if (options.dropout_p != 0)
    refuse(*call, Fault::unsupported, "no dropout of attention weights over several ranks");
  if (method_of(q, *call) == ContextMethod::ulysses) {
    refuse(*call, Fault::misuse, mismatch_of_heads(q, call->group));
    return ulysses(q, k, v, *call);
  }
  if (!q.is_cpu()) refuse(*call, Fault::unsupported, "a ring is for CPU tensors");
  return naming_errors(call->name, [&] { return Ring::apply(q, k, v, call); });
}

at::Tensor sequence_positions(std::int64_t length, const ProcessGroup& context,
                              SequenceOrder order) {
  require_length(length, context.size(), order);
  return positions_of(context.rank(), length, context.size(), order);
}

at::Tensor sequence_part(const at::Tensor& x, std::int64_t dim, const ProcessGroup& context,
                         SequenceOrder order) {
  return selected(x, dim, sequence_positions(x.size(dim), context, order));
}

at::Tensor whole_sequence(const at::Tensor& part, std::int64_t dim, const ProcessGroup& context,
                          SequenceOrder order) {
  // Different sizes cause a mismatch by the label.
  const std::string label = "whole_sequence of " + shape_text(part);
  const at::Tensor all = gather_from_parallel_region(part, context, dim, {.label = label});
  require_length(all.size(dim), context.size(), order);
  return selected(all, dim, positions_of_all(all.size(dim), context.size(), order).argsort());
}

}  // namespace lockstep::nn
