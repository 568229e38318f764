// A rank's connection to the switchboard of its host.
//
// Thread safety: any thread may call any member at any time.
// Errors: peer_lost when the switchboard is gone, or when a rank of the job was lost during a wait.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/packet.h"

namespace lockstep {

class LOCKSTEP_API HostLink {
 public:
  explicit HostLink(FileDescriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }

  // Lets `readers` other ranks obtain `fd` under `key`. The caller keeps `fd`.
  void offer(std::string_view key, int readers, int fd);

  // Makes their obtain() throw Error(system) with this reason.
  void refuse(std::string_view key, int readers, std::string_view reason);

  // Blocks until a rank has offered `key`. Calls `give_up` every 20 ms; it may throw.
  FileDescriptor obtain(
      std::string_view key, Deadline deadline, const std::function<void()>& give_up = [] {});

  // obtain() in two steps that do not block. poll() returns nothing until the descriptor has come.
  void request(std::string_view key);
  FileDescriptor poll(std::string_view key);

 private:
  struct Reply {
    FileDescriptor fd;
    std::string refusal;
  };

  void send(const Packet& packet, int fd = -1) const;
  FileDescriptor take(std::string_view key);
  bool read_replies();  // Whether there were replies.

  const FileDescriptor socket_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool reading_ = false;  // One of the waiting threads reads for all of them.
  std::map<std::string, Reply, std::less<>> replies_;
};

}  // namespace lockstep
