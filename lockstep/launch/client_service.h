// A service in the agent's loop that answers each of its clients once.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of.
// Blocking: never. A client that sends no request, or does not read the answer, is dropped after
// 2 s, or when 16 newer ones have come.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/loop.h"

namespace lockstep::launch {

class ClientService : public Pollable {
 public:
  explicit ClientService(FileDescriptor listener) : listener_(std::move(listener)) {}

  void watch(std::vector<pollfd>& entries) const final;
  Deadline deadline() const final;
  void serve(const std::vector<pollfd>& entries) final;

 protected:
  struct Client {
    FileDescriptor socket;
    Deadline deadline;
    std::string request = {};
    std::string rest = {};  // Bytes of the answer still to be sent.
    bool is_answered = false;
  };

  int listener() const { return listener_.get(); }

  // Sends what the kernel takes at once. False when the client has gone.
  static bool send_rest(Client& client);

 private:
  // Of a new client. False if it is not to be kept.
  virtual bool welcome(Client& client) = 0;

  // Of a client that has sent something or, with a rest, can take more. False when it is done or
  // has gone.
  virtual bool go_on(Client& client) = 0;

  void accept_client();

  const FileDescriptor listener_;
  std::vector<Client> clients_;
  Deadline accept_again_ = Clock::now();
};

}  // namespace lockstep::launch
