// Cuts what a rank writes into lines, and for a terminal also into status lines: text that the
// rank means to overwrite, such as a progress bar.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

class LineSplitter {
 public:
  struct Segment {
    std::string_view text;  // Without the character that ended it. Valid during the call.
    bool status = false;    // The stream's status line is now `text`; empty takes it away.
  };
  using Receiver = std::function<void(const Segment&)>;

  // A longer line is cut into several of this length.
  static constexpr std::size_t longest_line = 64 * 1024;

  // With `statuses` a carriage return ends a status line; otherwise it is a character like any.
  explicit LineSplitter(bool statuses) : statuses_(statuses) {}

  void add(std::string_view bytes, const Receiver& receive);

  // The stream has ended: what has no newline yet is the last line.
  void finish(const Receiver& receive);

 private:
  void end_line(const Receiver& receive);
  void end_status(const Receiver& receive);

  bool statuses_;
  std::string rest_;            // Since the last line or status ended.
  std::string status_;          // The status that is shown.
  bool after_return_ = false;   // A carriage return was the last character.
  bool overwriting_ = false;    // There was one in this line.
  bool returns_first_ = false;  // This line's statuses are "\r 50%", not "50%\r".
};

}  // namespace lockstep
