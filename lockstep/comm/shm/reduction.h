// The sources and targets of a reduction; reused for the next one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lockstep/comm/core/signature.h"
#include "lockstep/comm/reduce/reduce.h"
#include "lockstep/comm/shm/ownership.h"

namespace lockstep::comm {

class Reduction {
 public:
  explicit Reduction(int ranks) : sources_(static_cast<std::size_t>(ranks)) {}

  // Starts a new reduction. Every rank's source must then be set.
  void begin() { targets_.clear(); }
  void set_source(int rank, const std::byte* from) {
    sources_[static_cast<std::size_t>(rank)] = from;
  }
  void add_target(std::byte* to) { targets_.push_back(to); }

  void run(const Signature& signature, std::size_t count) const {
    if (count != 0) run(reduce_function(signature.dtype, signature.op), count);
  }

  // As run(), for sources that no other rank reads. Takes ownership of their cache lines, one block
  // ahead.
  void run_taking_over(const Signature& signature, std::size_t count, int own) {
    constexpr std::size_t block_bytes = 4096;
    const ReduceFunction reduce = reduce_function(signature.dtype, signature.op);
    const std::size_t element = size_of(signature.dtype);
    const std::size_t block = block_bytes / element;
    take_over_block(own, 0, std::min(count, block) * element);
    for (std::size_t begin = 0; begin < count; begin += block) {
      const std::size_t left = count - begin;
      if (left > block) take_over_block(own, block_bytes, std::min(left - block, block) * element);
      run(reduce, std::min(left, block));
      for (auto& source : sources_) source += block_bytes;
      for (auto& target : targets_) target += block_bytes;
    }
  }

 private:
  void run(ReduceFunction reduce, std::size_t count) const {
    reduce(sources_.data(), static_cast<int>(sources_.size()), targets_.data(),
           static_cast<int>(targets_.size()), count);
  }

  void take_over_block(int own, std::size_t begin, std::size_t bytes) const {
    for (std::size_t rank = 0; rank < sources_.size(); ++rank)
      if (rank != static_cast<std::size_t>(own)) take_over(sources_[rank] + begin, bytes);
  }

  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace lockstep::comm
