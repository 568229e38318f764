// Splits a rank's output into lines and, for a terminal, status lines: text that the rank means to
// overwrite, such as a progress bar.

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
    bool status = false;    // `text` replaces the stream's status line; empty text removes it.
  };
  using Receiver = std::function<void(const Segment&)>;

  // A longer line is cut into several of this length.
  static constexpr std::size_t longest_line = 64 * 1024;

  // With `statuses` a carriage return ends a status line; otherwise it is an ordinary character.
  explicit LineSplitter(bool statuses) : statuses_(statuses) {}

  void add(std::string_view bytes, const Receiver& receive);

  // Ends the stream: text without a newline becomes the last line.
  void finish(const Receiver& receive);

 private:
  void end_line(const Receiver& receive);
  void end_status(const Receiver& receive);

  bool statuses_;
  std::string rest_;            // Text since the last line or status ended.
  std::string status_;          // The status that is shown.
  bool after_return_ = false;   // The last character was a carriage return.
  bool overwriting_ = false;    // This line has had a carriage return.
  bool returns_first_ = false;  // This line's statuses are "\r 50%", not "50%\r".
};

}  // namespace lockstep
