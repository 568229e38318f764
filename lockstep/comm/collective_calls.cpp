// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/collective_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/engine/device_backend.h"
#include "lockstep/comm/reduce/reduce.h"

namespace lockstep::comm {
namespace {

// --- Arguments -----------------------------------------------------------------------------------

constexpr std::size_t most_bytes = std::numeric_limits<std::ptrdiff_t>::max();

void require_valid(const Buffer& buffer, std::string_view what) {
  require(buffer.data != nullptr || buffer.count == 0,
          [&] { return fmt::format("{}: {} elements at a null pointer", what, buffer.count); });
  require(size_of(buffer.dtype) == 0 || buffer.count <= most_bytes / size_of(buffer.dtype), [&] {
    return fmt::format("{}: {} elements are more than any memory holds", what, buffer.count);
  });
  require(size_of(buffer.dtype) != 0, [&] {
    return fmt::format("{}: there is no type {}", what, static_cast<int>(buffer.dtype));
  });
  require(buffer.device == DeviceKind::cpu || buffer.device == DeviceKind::cuda, [&] {
    return fmt::format("{}: there is no device {}", what, static_cast<int>(buffer.device));
  });
}

void require_same_type(const Buffer& input, const Buffer& output, std::string_view what) {
  require(input.dtype == output.dtype, [&] {
    return fmt::format("{}: input is of {}, output of {}", what, name(input.dtype),
                       name(output.dtype));
  });
}

void require_rank(int rank, int size, std::string_view what) {
  require(rank >= 0 && rank < size, [&] {
    return fmt::format("{}: there is no rank {} in a group of {}", what, rank, size);
  });
}

void require_count(std::size_t is, std::size_t should_be, std::string_view what,
                   std::string_view which) {
  require(is == should_be, [&] {
    return fmt::format("{}: {} holds {} elements; the parts make {}", what, which, is, should_be);
  });
}

void require_reducible(DType dtype, ReduceOp op, std::string_view what) {
  if (reduce_function(dtype, op) == nullptr)
    throw Error(Fault::unsupported,
                fmt::format("{}: there is no {} of {}", what, name(op), name(dtype)));
}

std::size_t total(std::span<const std::size_t> counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts)
    require(!__builtin_add_overflow(sum, count, &sum), "counts: they add up to too much");
  return sum;
}

// In elements.
struct Extent {
  std::size_t all;
  std::size_t mine;
  std::size_t before;
};

Extent extent_of(std::span<const std::size_t> counts, std::size_t each, const GroupIdentity& group,
                 std::string_view what) {
  const auto ranks = static_cast<std::size_t>(group.size);
  const auto rank = static_cast<std::size_t>(group.rank);
  if (counts.empty()) return {each * ranks, each, each * rank};
  require(counts.size() == ranks,
          [&] { return fmt::format("{}: {} counts for {} ranks", what, counts.size(), ranks); });
  const auto mine = counts.begin() + group.rank;
  return {total(counts), *mine, std::accumulate(counts.begin(), mine, std::size_t{0})};
}

std::size_t overlap_of(const Buffer& a, const Buffer& b) {
  const auto begin_of = [](const Buffer& one) {
    return reinterpret_cast<std::uintptr_t>(one.data);
  };
  const std::uintptr_t begin = std::max(begin_of(a), begin_of(b));
  const std::uintptr_t end = std::min(begin_of(a) + a.bytes(), begin_of(b) + b.bytes());
  return end > begin ? end - begin : 0;
}

bool is_own_part(const Buffer& part, const Buffer& whole, const Extent& extent) {
  return part.data ==
         static_cast<const std::byte*>(whole.data) + extent.before * size_of(whole.dtype);
}

constexpr std::string_view not_in_place = ", and one is not this rank's own part of the other";

void require_apart(const Buffer& input, const Buffer& output, std::string_view what,
                   std::string_view unless = "") {
  require(overlap_of(input, output) == 0, [&] {
    return fmt::format("{}: input and output, of {} and {} bytes, overlap by {}{}", what,
                       input.bytes(), output.bytes(), overlap_of(input, output), unless);
  });
}

// --- Signatures ----------------------------------------------------------------------------------

// Neither 0 nor a reserved layout.
template <class Numbers>
std::uint64_t layout_of(const Numbers& numbers) {
  return (hash_of(numbers.data(), numbers.size() * sizeof numbers[0]) & ~layout_on_cuda) | 2;
}

Signature signature_of(Operation operation, const Buffer& buffer) {
  return {.count = buffer.count, .operation = operation, .dtype = buffer.dtype};
}

// For operations with parts: of `each` elements, or of `counts`.
Signature signature_of(Operation operation, DType dtype, std::size_t each,
                       std::span<const std::size_t> counts) {
  if (counts.empty()) return {.count = each, .operation = operation, .dtype = dtype};
  return {
      .count = total(counts), .layout = layout_of(counts), .operation = operation, .dtype = dtype};
}

// --- By shape ------------------------------------------------------------------------------------

Collective in_place(Operation operation, const Buffer& data) {
  require_valid(data, name(operation));
  return {.signature = signature_of(operation, data), .output = data};
}

// One buffer is this rank's part of the other, which gather and scatter have on the root only.
Collective in_parts(Operation operation, const CollectiveArguments& given,
                    const GroupIdentity& group, bool has_whole) {
  const std::string_view what = name(operation);
  const bool collects = shape_of(operation) == OperationShape::collects;
  const Buffer& part = collects ? given.input : given.output;
  const Buffer& whole = collects ? given.output : given.input;
  require_valid(part, what);
  const Extent extent = extent_of(given.counts, part.count, group, what);
  require_count(part.count, extent.mine, what, collects ? "input" : "output");
  Collective collective{.signature = signature_of(operation, part.dtype, part.count, given.counts),
                        .input = given.input,
                        .output = given.output,
                        .counts = given.counts};
  if (!has_whole) {
    (collects ? collective.output : collective.input) = {.dtype = part.dtype};
    return collective;
  }
  require_valid(whole, what);
  require_same_type(given.input, given.output, what);
  require_count(whole.count, extent.all, what, collects ? "output" : "input");
  if (!is_own_part(part, whole, extent))
    require_apart(given.input, given.output, what, not_in_place);
  return collective;
}

Collective in_pairs(Operation operation, const CollectiveArguments& given,
                    const GroupIdentity& group) {
  const std::string_view what = name(operation);
  const Buffer& input = given.input;
  const Buffer& output = given.output;
  require_valid(input, what);
  require_valid(output, what);
  require_same_type(input, output, what);
  require_apart(input, output, what);
  const auto ranks = static_cast<std::size_t>(group.size);
  Collective collective{.signature = {.operation = operation, .dtype = input.dtype},
                        .input = input,
                        .output = output,
                        .counts = given.counts};
  if (given.counts.empty()) {
    require(input.count % ranks == 0, [&] {
      return fmt::format("{}: {} elements are not {} equal parts", what, input.count, ranks);
    });
    require_count(output.count, input.count, what, "output");
    collective.signature.count = input.count / ranks;
    return collective;
  }
  require(given.counts.size() == 2 * ranks, [&] {
    return fmt::format("{}: {} counts, sent and received, for {} ranks", what, given.counts.size(),
                       ranks);
  });
  require_count(input.count, total(given.counts.first(ranks)), what, "input");
  require_count(output.count, total(given.counts.subspan(ranks)), what, "output");
  collective.signature.layout = layout_uneven_pairs;
  return collective;
}

Collective shaped(Operation operation, const CollectiveArguments& given,
                  const GroupIdentity& group) {
  const OperationFacts& facts = facts_of(operation);
  switch (facts.shape) {
    case OperationShape::none:
      throw Error(Fault::misuse, fmt::format("{} is not a collective that moves data", facts.name));
    case OperationShape::barrier:
      return {.signature = {.operation = operation}};
    case OperationShape::in_place:
      return in_place(operation, given.output);
    case OperationShape::exchanges:
      return in_pairs(operation, given, group);
    case OperationShape::collects:
    case OperationShape::distributes:
      break;
  }
  const bool has_whole = facts.rooted == OperationRoot::no || group.rank == given.root;
  return in_parts(operation, given, group, has_whole);
}

}  // namespace

// --- Collectives ---------------------------------------------------------------------------------

Collective collective_of(Operation operation, const CollectiveArguments& given,
                         const GroupIdentity& group) {
  const OperationFacts& facts = facts_of(operation);
  Collective collective = shaped(operation, given, group);
  if (facts.rooted != OperationRoot::no) {
    require_rank(given.root, group.size, facts.name);
    collective.signature.root = given.root;
  }
  if (facts.reduces) {
    require_reducible(collective.signature.dtype, given.op, facts.name);
    collective.signature.op = given.op;
  }
  return collective;
}

Counts pairs_of(const Counts& send_counts, const Counts& receive_counts, int size) {
  if (send_counts.empty() && receive_counts.empty()) return {};
  const auto ranks = static_cast<std::size_t>(size);
  require(send_counts.size() == ranks && receive_counts.size() == ranks, [&] {
    return fmt::format("all_to_all: {} send counts and {} receive counts for {} ranks",
                       send_counts.size(), receive_counts.size(), ranks);
  });
  Counts pairs = send_counts;
  pairs.insert(pairs.end(), receive_counts.begin(), receive_counts.end());
  return pairs;
}

// Backends support every collective in CPU memory.
void require_possible(const Collective& collective, Backend& backend) {
  if (!is_on_device(collective)) return;
  const auto what = name(collective.signature.operation);
  const Buffer& input = collective.input;
  const Buffer& output = collective.output;
  const auto is_none = [](const Buffer& buffer) {  // In place, or used on another rank only.
    return buffer.data == nullptr && buffer.count == 0 && buffer.device == DeviceKind::cpu;
  };
  require(is_none(input) || is_none(output) ||
              (input.device == output.device && input.device_index == output.device_index &&
               input.stream == output.stream),
          [&] { return fmt::format("{}: input and output differ in device or stream", what); });
  const std::string refusal = backend.refusal_on_device(collective);
  if (!refusal.empty()) throw Error(Fault::unsupported, fmt::format("{}: {}", what, refusal));
}

// --- Messages and groups -------------------------------------------------------------------------

std::shared_ptr<Message> message_of(Operation operation, const Buffer& data, int peer,
                                    std::int64_t tag, const GroupIdentity& group) {
  const std::string_view what = name(operation);
  const bool receives = operation == Operation::recv;
  require_valid(data, what);
  if (data.device != DeviceKind::cpu)
    throw Error(Fault::unsupported,
                fmt::format("{}: {}", what, cuda_unsupported(operation, data.dtype, {})));
  if (!receives || peer != any_source) {
    require_rank(peer, group.size, what);
    require(peer != group.rank,
            [&] { return fmt::format("{}: rank {} is this rank itself", what, peer); });
  }
  require(tag >= 0 || (receives && tag == any_tag),
          [&] { return fmt::format("{}: the tag {} is negative", what, tag); });
  auto message = std::make_shared<Message>();
  message->operation = operation;
  message->buffer = data;
  message->peer = peer;
  message->tag = tag;
  return message;
}

std::optional<int> place_in(const std::vector<int>& ranks, const GroupIdentity& group,
                            const char* what) {
  require(!ranks.empty(), [&] { return fmt::format("{}: no ranks", what); });
  for (const int member : ranks) require_rank(member, group.size, what);
  require(std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size(),
          [&] { return fmt::format("{}: a rank is named twice", what); });
  const auto own = std::find(ranks.begin(), ranks.end(), group.rank);
  if (own == ranks.end()) return std::nullopt;
  return static_cast<int>(own - ranks.begin());
}

std::uint64_t layout_of_ranks(const std::vector<int>& ranks) { return layout_of(ranks); }

}  // namespace lockstep::comm
