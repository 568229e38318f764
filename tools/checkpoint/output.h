// Text formats of the commands, and a progress bar.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/tensor/state_types.h"
#include "tools/standard_output.h"

namespace lockstep::checkpoint {

// From sysexits.h.
inline constexpr int usage_error = 64;
inline constexpr int data_error = 65;
inline constexpr int no_input = 66;
inline constexpr int internal_error = 70;
inline constexpr int cannot_create = 73;
inline constexpr int io_error = 74;

using tools::flush_output;
using tools::print;

std::string bytes_text(std::uint64_t bytes);             // "12.3 MB".
std::string count_text(std::size_t count, const char*);  // For example "3 files".
std::string dtype_of(const at::Tensor& tensor);          // Python's name: "float32".
std::string type_text(const at::Tensor& tensor);         // "float32 [2, 3]".
std::string value_text(const StateValue& value);

// In bytes, on stderr if that is a terminal. Thread safety: none. Failed writes are ignored.
class ByteBar {
 public:
  ByteBar(std::string label, std::uint64_t total);
  ~ByteBar() { clear(); }
  ByteBar(const ByteBar&) = delete;
  ByteBar& operator=(const ByteBar&) = delete;

  void set_label(std::string label) { label_ = std::move(label); }
  void add(std::uint64_t bytes);

  // Removes the bar until the next progress.
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
