// The switchboard passes descriptors of shared memory between the ranks of one host.
//
// One process of the host, the agent or else rank 0, runs it inside its own poll() loop; each
// rank talks to it over a SOCK_SEQPACKET socket with a HostLink. A rank offers a descriptor (or
// the reason why it has none) under a key; ranks that want that key get it, before or after.
//
// Thread safety: none; used by the one thread whose loop it is part of.
// Blocking: never. A rank that does not read its replies is disconnected.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/api.h"
#include "lockstep/comm/host/file_descriptor.h"

namespace lockstep {

// The key under which every rank finds the job page.
constexpr std::string_view job_page_key = "job page";

class LOCKSTEP_API Switchboard {
 public:
  // `job_page` is given to whoever asks; it must outlive the switchboard.
  explicit Switchboard(int job_page);

  // A rank on a socket that it got from us: nobody else can be at its other end.
  void connect(FileDescriptor socket);

  // Strangers can reach `listener`, so whoever connects there must run as this user and say
  // `identity` first, or is turned away. With a second call the new listener replaces the old.
  void listen(FileDescriptor listener, std::string identity);

  // Adds what poll() has to watch, then acts on what it saw; other entries are passed over.
  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

 private:
  struct Client {
    FileDescriptor socket;
    bool trusted = false;
    bool lost = false;                     // To be forgotten at the end of this turn.
    std::vector<std::string> wanted = {};  // Keys that nobody has offered yet.
  };
  struct Offer {
    FileDescriptor fd;    // Empty for a refusal,
    std::string refusal;  // which says why.
    int readers = 0;      // How many have yet to take it.
  };

  void accept_all();
  void serve(Client& client);
  void offer(std::string key, Offer offer);
  void give(Client& client, const std::string& key);

  int job_page_;
  FileDescriptor listener_;
  std::string identity_;
  std::vector<Client> clients_;
  std::map<std::string, Offer> offers_;
};

}  // namespace lockstep
