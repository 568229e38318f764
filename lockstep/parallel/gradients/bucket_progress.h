// Which gradients of a pass were taken, and which buckets that completes.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

class BucketProgress {
 public:
  void begin_pass(std::size_t parameters, std::size_t buckets) {
    taken_.assign(parameters, false);
    pending_.assign(buckets, 0);
    next_ = 0;
  }

  // A gradient of `bucket` is waited for.
  void expect(std::size_t bucket) { ++pending_[bucket]; }

  void note_taken(std::size_t index, std::size_t bucket) {
    taken_[index] = true;
    --pending_[bucket];
  }

  bool is_taken(std::size_t index) const { return taken_[index]; }

  // Buckets are started in their order.
  std::size_t next() const { return next_; }
  bool has_next() const { return next_ < pending_.size(); }
  bool is_next_complete() const { return has_next() && pending_[next_] == 0; }
  void advance() { ++next_; }

 private:
  std::vector<bool> taken_;           // By parameter.
  std::vector<std::size_t> pending_;  // By bucket: gradients that have still to come.
  std::size_t next_ = 0;
};

}  // namespace lockstep
