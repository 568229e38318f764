// The switchboard passes descriptors of shared memory between the ranks of one host.
//
// One process of the host runs it inside its own poll() loop: the agent, or without one rank 0.
// Each rank talks to it over a SOCK_SEQPACKET socket with a HostLink. A rank offers a descriptor,
// or the reason why it has none, under a key. Ranks that ask for that key get it, before or after.
//
// Thread safety: only the thread that runs its loop.
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

// The key under which an agent offers the job's token to its ranks: agent_line.h.
constexpr std::string_view job_token_key = "job token";

// The key under which ranks give their agent the job page of a session across several agents. Its
// slots are the ranks of all these agents. Every rank does this for every session.
constexpr std::string_view session_page_key = "session page";

class LOCKSTEP_API Switchboard {
 public:
  // Gives `job_page` to every rank that asks; it must outlive the switchboard.
  explicit Switchboard(int job_page);

  // Adds a rank by a socket that this process gave it: nobody else can be at the other end.
  void connect(FileDescriptor socket);

  // Strangers can reach `listener`, so a client must run as this user and send `identity` first.
  // Others are disconnected. A second call replaces the listener.
  void listen(FileDescriptor listener, std::string identity);

  // Offers `fd` of this process itself, or the reason why there is none, any number of times. A
  // second call with the same key replaces the first.
  void publish(std::string_view key, FileDescriptor fd);
  void publish_refusal(std::string_view key, std::string_view reason);

  // Returns the latest descriptor that a rank offered to this process under `key`. Empty when
  // nothing new has come, or when this process had no descriptor left to receive it.
  std::optional<FileDescriptor> take(std::string_view key);

  // watch() adds entries for poll(), serve() handles the result; serve() ignores other entries.
  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

 private:
  struct Client {
    FileDescriptor socket;
    bool trusted = false;
    bool lost = false;                     // Will be removed at the end of this turn.
    std::vector<std::string> wanted = {};  // Keys that nobody has offered yet.
  };
  static constexpr int everybody = -1;
  struct Offer {
    FileDescriptor fd = {};    // Empty for a refusal.
    std::string refusal = {};  // Reason of a refusal.
    int readers = 0;           // Number of ranks yet to take it, or `everybody` for no limit.
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
