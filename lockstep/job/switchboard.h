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

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep {

// The key under which every rank finds the job page.
constexpr std::string_view job_page_key = "job page";

// Under which an agent has the job's token for its ranks: agent_line.h.
constexpr std::string_view job_token_key = "job token";

// Under which ranks of several agents offer each their own agent the job page of the session that
// they have formed: its slots are the ranks of all these agents. Every rank does, for every
// session.
constexpr std::string_view session_page_key = "session page";

class LOCKSTEP_API Switchboard {
 public:
  // `job_page` is given to whoever asks; it must outlive the switchboard.
  explicit Switchboard(int job_page);

  // A rank on a socket that it got from us: nobody else can be at its other end.
  void connect(FileDescriptor socket);

  // Strangers can reach `listener`, so whoever connects there must run as this user and say
  // `identity` first, or is turned away. With a second call the new listener replaces the old.
  void listen(FileDescriptor listener, std::string identity);

  // What this process itself has for its ranks: `fd`, or the reason why there is none, for whoever
  // asks and as often. A second call under the same key replaces the first.
  void publish(std::string_view key, FileDescriptor fd);
  void publish_refusal(std::string_view key, std::string_view reason);

  // What a rank has offered to this process under `key`, the latest; empty when nothing new has
  // come, or when this process had no descriptor left to receive it.
  std::optional<FileDescriptor> take(std::string_view key);

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
  static constexpr int everybody = -1;
  struct Offer {
    FileDescriptor fd = {};    // Empty for a refusal,
    std::string refusal = {};  // which says why.
    int readers = 0;           // How many have yet to take it; `everybody` for no end of them.
  };

  void accept_all();
  void serve(Client& client);
  void offer(std::string key, Offer offer);
  void give(Client& client, const std::string& key);

  int job_page_;
  FileDescriptor listener_;
  std::string identity_;
  std::vector<Client> clients_;
  std::map<std::string, Offer, std::less<>> offers_;
};

}  // namespace lockstep
