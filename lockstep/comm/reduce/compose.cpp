// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/compose.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/reduce/reduce.h"

namespace lockstep::comm {
namespace {

using Counts = std::vector<std::size_t>;
using Scratch = std::unique_ptr<std::byte[]>;

Scratch make_scratch(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

// Bytes reduced at a time, and of scratch memory.
constexpr std::size_t chunk_bytes = 4 << 20;

class Composition {
 public:
  Composition(const NativeCall& native, const Collective& collective, int rank, int size)
      : native_(native),
        outer_(collective),
        rank_(static_cast<std::size_t>(rank)),
        size_(static_cast<std::size_t>(size)),
        root_(static_cast<std::size_t>(std::max(0, collective.signature.root))),
        element_(size_of(collective.signature.dtype)) {}

  void run() {
    if (shape_of(outer_.signature.operation) == OperationShape::barrier)
      return;  // Complete when all ranks have entered.
    switch (outer_.signature.operation) {
      case Operation::all_reduce:
      case Operation::reduce:
        return reduce_in_chunks();
      case Operation::reduce_scatter:
        return reduce_scatter(outer_.input, outer_.output, part_counts());
      case Operation::broadcast:
        return all_gather(outer_.output, outer_.output, only_root(outer_.output.count));
      case Operation::gather:
        return gather(outer_.input, outer_.output, part_counts());
      case Operation::scatter:
        return scatter(part_counts());
      default:
        check(false, "this operation is not composed of others");
    }
  }

 private:
  Counts part_counts() const {
    if (outer_.counts.empty()) return Counts(size_, outer_.signature.count);
    return {outer_.counts.begin(), outer_.counts.end()};
  }

  Counts only_root(std::size_t count) const {
    Counts counts(size_, 0);
    counts[root_] = count;
    return counts;
  }

  // One part per rank, as even as possible.
  Counts shares_of(std::size_t count) const {
    Counts counts(size_, count / size_);
    for (std::size_t r = 0; r < count % size_; ++r) ++counts[r];
    return counts;
  }

  Buffer part(const Buffer& whole, std::size_t begin, std::size_t count) const {
    Buffer buffer = whole;
    buffer.data = count == 0 ? nullptr : static_cast<std::byte*>(whole.data) + begin * element_;
    buffer.count = count;
    return buffer;
  }

  void native(Operation operation, const Buffer& input, const Buffer& output,
              const Counts& counts) {
    Collective inner = outer_;
    inner.signature.operation = operation;
    inner.signature.count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    inner.signature.layout = hash_of(counts.data(), counts.size() * sizeof counts[0]);
    inner.input = input;
    inner.output = output;
    inner.counts = counts;
    native_(inner);
  }

  void all_gather(const Buffer& input, const Buffer& output, const Counts& counts) {
    native(Operation::all_gather, part(input, 0, counts[rank_]), output, counts);
  }

  void exchange(const Buffer& input, const Buffer& output, const Counts& counts) {
    Counts pairs(size_ * size_);
    for (std::size_t s = 0; s < size_; ++s)
      std::copy(counts.begin(), counts.end(),
                pairs.begin() + static_cast<std::ptrdiff_t>(s * size_));
    native(Operation::all_to_all, input, output, pairs);
  }

  void reduce_scatter(const Buffer& input, const Buffer& output, const Counts& counts) {
    const std::size_t bytes = counts[rank_] * element_;
    const Scratch scratch = make_scratch(size_ * bytes);
    Buffer received = output;
    received.data = scratch.get();
    received.count = size_ * counts[rank_];
    exchange(input, received, counts);
    std::vector<const std::byte*> sources;
    for (std::size_t r = 0; r < size_; ++r) sources.push_back(scratch.get() + r * bytes);
    reduce(sources, output, counts[rank_]);
  }

  void reduce(const std::vector<const std::byte*>& sources, const Buffer& output,
              std::size_t count) const {
    auto* const target = static_cast<std::byte*>(output.data);
    if (count > 0)
      reduce_function(outer_.signature.dtype, outer_.signature.op)(
          sources.data(), static_cast<int>(sources.size()), &target, 1, count);
  }

  void gather(const Buffer& input, const Buffer& output, const Counts& counts) {
    Counts pairs(size_ * size_, 0);
    for (std::size_t s = 0; s < size_; ++s) pairs[s * size_ + root_] = counts[s];
    native(Operation::all_to_all, input, rank_ == root_ ? output : Buffer{.dtype = output.dtype},
           pairs);
  }

  void scatter(const Counts& counts) {
    Counts pairs(size_ * size_, 0);
    std::copy(counts.begin(), counts.end(),
              pairs.begin() + static_cast<std::ptrdiff_t>(root_ * size_));
    native(Operation::all_to_all, outer_.input, outer_.output, pairs);
  }

  void reduce_in_chunks() {
    const Buffer& data = outer_.output;
    const std::size_t most = chunk_bytes / element_;
    const Scratch scratch = make_scratch(std::min(data.count, most) * element_);
    for (std::size_t begin = 0; begin < data.count; begin += most) {
      const Buffer chunk = part(data, begin, std::min(most, data.count - begin));
      if (size_ == 2 && outer_.signature.operation == Operation::all_reduce)
        swap_and_reduce(chunk, scratch.get());
      else
        reduce_shares(chunk, scratch.get());
    }
  }

  void reduce_shares(const Buffer& chunk, std::byte* scratch) {
    const Counts shares = shares_of(chunk.count);
    Buffer mine = chunk;
    mine.data = scratch;
    mine.count = shares[rank_];
    reduce_scatter(chunk, mine, shares);
    if (outer_.signature.operation == Operation::reduce)
      gather(mine, chunk, shares);
    else
      all_gather(mine, chunk, shares);
  }

  void swap_and_reduce(const Buffer& chunk, std::byte* scratch) {
    Buffer theirs = chunk;
    theirs.data = scratch;
    native(Operation::all_to_all, chunk, theirs, {0, chunk.count, chunk.count, 0});
    const auto* const mine = static_cast<const std::byte*>(chunk.data);
    std::vector<const std::byte*> sources{mine, scratch};
    if (rank_ == 1) std::swap(sources[0], sources[1]);
    reduce(sources, chunk, chunk.count);
  }

  const NativeCall& native_;
  const Collective& outer_;
  const std::size_t rank_;
  const std::size_t size_;
  const std::size_t root_;
  const std::size_t element_;
};

}  // namespace

void compose(const NativeCall& native, const Collective& collective, int rank, int size) {
  Composition(native, collective, rank, size).run();
}

}  // namespace lockstep::comm
