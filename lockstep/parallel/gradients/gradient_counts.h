// How often each gradient comes in a backward pass, and how often it has still to come.
//
// With a static graph the first pass that is averaged teaches it. Otherwise each comes once.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

class GradientCounts {
 public:
  enum class Arrival : std::uint8_t {
    recorded,    // In a pass that teaches: nobody knows yet whether it is complete.
    incomplete,  // It comes again.
    complete,
    repeated,  // It came more often than it should.
  };

  GradientCounts(std::size_t parameters, bool static_graph)
      : static_(static_graph),
        recording_(static_graph),
        expected_(parameters, static_graph ? 0 : 1),
        remaining_(expected_) {}

  void begin_pass();
  Arrival note(std::size_t index);

  // The pass was averaged.
  void end_pass() { recording_ = false; }

  bool is_recording() const { return recording_; }

  // Whether the counts of a static graph are known.
  bool is_known() const { return static_ && !recording_; }

  bool expects(std::size_t index) const { return expected_[index] > 0; }
  bool misses(std::size_t index) const { return remaining_[index] > 0; }

 private:
  const bool static_;
  bool recording_;
  std::vector<int> expected_;   // In a whole pass.
  std::vector<int> remaining_;  // In the one under way.
};

}  // namespace lockstep
