// A TCP port of this host that is kept free for one job, for programs whose rank 0 listens on
// MASTER_PORT.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

// As long as this lives, the kernel gives the port to nobody who asks for any port, nor to
// whoever asks for it without SO_REUSEADDR. Whoever asks for it with SO_REUSEADDR, as servers
// do, may bind it and listen.
class ReservedPort {
 public:
  // Of a numeric address of this host; any free one for port 0. Errors: misuse, with the process
  // that listens there already; system.
  explicit ReservedPort(const std::string& address = "127.0.0.1", int port = 0);

  int number() const { return number_; }

 private:
  FileDescriptor socket_;  // Bound, and never listening.
  int number_ = 0;
};

}  // namespace lockstep
