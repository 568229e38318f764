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
    expected_.assign(parameters, false);
    taken_.assign(parameters, false);
    pending_.assign(buckets, 0);
    next_ = 0;
  }

  // `bucket` waits for the gradient of parameter `index`.
  void expect(std::size_t index, std::size_t bucket) {
    expected_[index] = true;
    ++pending_[bucket];
  }

  void note_taken(std::size_t index, std::size_t bucket) {
    if (expected_[index] && !taken_[index]) --pending_[bucket];
    taken_[index] = true;
  }

  bool is_taken(std::size_t index) const { return taken_[index]; }

  // Whether `bucket` was not started yet.
  bool is_open(std::size_t bucket) const { return bucket >= next_; }

  // Buckets are started in their order.
  std::size_t next() const { return next_; }
  bool has_next() const { return next_ < pending_.size(); }
  bool is_next_complete() const { return has_next() && pending_[next_] == 0; }
  void advance() { ++next_; }

 private:
  std::vector<bool> expected_;        // By parameter.
  std::vector<bool> taken_;           // By parameter.
  std::vector<std::size_t> pending_;  // By bucket: gradients that have still to come.
  std::size_t next_ = 0;
};

}  // namespace lockstep
