// A TCP port of this host that is kept free for one job: for programs whose rank 0 listens on
// MASTER_PORT.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

// During its lifetime the kernel gives the port only to a process that asks for it with
// SO_REUSEADDR, as servers do: that process may bind it and listen. The kernel never chooses it as
// a free port.
class ReservedPort {
 public:
  // `address` is a numeric address of this host; port 0 means any free port. Errors: misuse, with
  // the process that listens there already; system.
  explicit ReservedPort(const std::string& address = "127.0.0.1", int port = 0);

  int number() const { return number_; }

 private:
  FileDescriptor socket_;  // Bound, but never listening.
  int number_ = 0;
};

}  // namespace lockstep
