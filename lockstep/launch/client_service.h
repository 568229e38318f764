// A service in the agent's loop that sends each client one response.
//
// Thread safety: none. Blocking: never. A slow client is disconnected after 2 s, or after 16 newer
// connections.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/loop.h"

namespace lockstep::launch {

class ClientService : public Pollable {
 public:
  static constexpr std::chrono::seconds default_client_timeout{2};

  explicit ClientService(FileDescriptor listener,
                         std::chrono::milliseconds client_timeout = default_client_timeout)
      : listener_(std::move(listener)), client_timeout_(client_timeout) {}

  void watch(std::vector<pollfd>& entries) const final;
  Deadline deadline() const final;
  void serve(const std::vector<pollfd>& entries) final;

 protected:
  struct Client {
    FileDescriptor socket;
    Deadline deadline;
    std::string request = {};
    std::string rest = {};  // Unsent.
    bool is_answered = false;
  };

  int listener() const { return listener_.get(); }

  // False when the client has disconnected.
  static bool send_rest(Client& client);

 private:
  // False disconnects the new client.
  virtual bool welcome(Client& client) = 0;

  // The client has sent data or, with `rest`, can receive more. False disconnects it.
  virtual bool go_on(Client& client) = 0;

  void accept_client();

  const FileDescriptor listener_;
  const std::chrono::milliseconds client_timeout_;
  std::vector<Client> clients_;
  Deadline accept_again_ = Clock::now();
};

}  // namespace lockstep::launch
