// Output of the launcher: its stdout or stderr. It never blocks, so a reader that is slow, or has
// stopped reading, does not disturb the watching of the ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

class Sink {
 public:
  // `fd` is borrowed and must outlive the sink.
  explicit Sink(int fd);

  // Queues text to be written. Up to 64 KiB of whole lines go in one write(), and no other text of
  // ours comes between.
  void add(std::string_view text);

  bool pending() const { return begin_ < pending_.size(); }

  // Too much is pending: add nothing until the reader has caught up.
  bool full() const { return pending_.size() - begin_ > capacity; }

  // Adds the descriptor that poll() has to watch, then acts on its result.
  void watch(std::vector<pollfd>& entries) const;

  // Returns the errno with which the reader has just been lost, otherwise 0. Then pending text is
  // dropped, and all text that is added later.
  int serve(const std::vector<pollfd>& entries);

  void drop();

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 20;

  std::string_view next_write() const;
  void advance(std::size_t written);

  FileDescriptor reopened_;
  int fd_;
  std::size_t largest_write_;
  bool lost_ = false;
  std::string pending_;
  std::size_t begin_ = 0;  // Bytes before it have been written.
};

// True if both are the same pipe, terminal or file.
bool same_file(int a, int b);

}  // namespace lockstep
