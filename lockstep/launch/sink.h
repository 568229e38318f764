// Where the launcher writes: its stdout or stderr. Never blocks, so that a reader who is slow,
// or has stopped reading, keeps nobody from watching the ranks.

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

  // Takes text that is to be written some time. Up to 64 KiB of whole lines go in one write();
  // nothing else of ours comes between.
  void add(std::string_view text);

  bool pending() const { return begin_ < pending_.size(); }

  // Too much is pending: nothing should be added until the reader has caught up.
  bool full() const { return pending_.size() - begin_ > capacity; }

  // Adds what poll() has to watch, then acts on what it saw.
  void watch(std::vector<pollfd>& entries) const;

  // The errno with which the reader was lost, when that has happened just now; otherwise 0.
  // What is pending is dropped then, and whatever is added later.
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
  std::size_t begin_ = 0;  // What is before it has been written.
};

// Whether both are the same pipe, terminal or file.
bool same_file(int a, int b);

}  // namespace lockstep
