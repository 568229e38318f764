// Progress bar of a long task in bytes, on stderr if that is a terminal.
//
// Thread safety: none. Errors: none; failed writes are ignored.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep::checkpoint {

class ByteBar {
 public:
  ByteBar(std::string label, std::uint64_t total);
  ~ByteBar() { clear(); }
  ByteBar(const ByteBar&) = delete;
  ByteBar& operator=(const ByteBar&) = delete;

  void set_label(std::string label) { label_ = std::move(label); }
  void add(std::uint64_t bytes);

  // Removes the bar from the terminal until the next progress.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string text(Clock::time_point now, int columns) const;

  std::string label_;
  const std::uint64_t total_;
  const bool on_terminal_;
  const Clock::time_point started_ = Clock::now();
  Clock::time_point drawn_{};
  std::uint64_t done_ = 0;
  bool visible_ = false;
};

}  // namespace lockstep::checkpoint
