// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/line_splitter.h"

#include <algorithm>

namespace lockstep {

void LineSplitter::add(std::string_view bytes, const Receiver& receive) {
  while (!bytes.empty()) {
    const auto at = statuses_ ? bytes.find_first_of("\r\n") : bytes.find('\n');
    const auto length = std::min(at == bytes.npos ? bytes.size() : at, longest_line - rest_.size());
    rest_.append(bytes.substr(0, length));
    if (length > 0) after_return_ = false;
    bytes.remove_prefix(length);
    if (length == at) {
      if (bytes.front() == '\n')
        end_line(receive);
      else
        end_status(receive);
      bytes.remove_prefix(1);
    } else if (length == 0) {
      end_line(receive);  // The line has reached its maximum length, and goes on.
    }
  }
  // A bar that begins with its carriage return ("\r 50%") would otherwise appear one update late.
  if (overwriting_ && !rest_.empty() && rest_ != status_) {
    receive({status_ = rest_, true});
    returns_first_ = true;
  }
}

void LineSplitter::finish(const Receiver& receive) {
  if (!rest_.empty()) end_line(receive);
  if (!status_.empty()) receive({"", true});
  status_.clear();
}

void LineSplitter::end_line(const Receiver& receive) {
  // "\r
  // " ends a line too, but when the carriage return arrived that was not known.
  if (after_return_) rest_.swap(status_);
  if (after_return_ || returns_first_) {
    status_.clear();
    receive({"", true});
  }
  receive({rest_, false});
  rest_.clear();
  after_return_ = overwriting_ = returns_first_ = false;
}

void LineSplitter::end_status(const Receiver& receive) {
  status_.swap(rest_);
  rest_.clear();
  receive({status_, true});
  after_return_ = overwriting_ = true;
}

}  // namespace lockstep
