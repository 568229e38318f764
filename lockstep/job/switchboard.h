// The switchboard passes descriptors of shared memory between the ranks of one host. This header
// has its packets and its Unix sockets, too.
//
// One process of the host runs it inside its own poll() loop: the agent, or without one rank 0.
// Each rank talks to it over a SOCK_SEQPACKET socket with a HostLink. A rank offers a descriptor,
// or the reason why it has none, under a key. Ranks that ask for that key get it, before or after.
// Each rank also runs one for its own memory, which peers fetch() from it.
//
// Thread safety: any thread may call any member or function; watch() and serve() are for the thread
// that runs the loop.
// Blocking: listen_on_abstract_socket() for two seconds at most, and fetch(); no other. A rank that
// does not read its replies is disconnected.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

namespace lockstep {

// A packet between a switchboard and a rank. It has a fixed size and at most one descriptor. Both
// ends are of the same build on the same host, so it is a plain struct.
struct Packet {
  enum class Kind : std::uint32_t {
    hello,    // rank -> board: `text` is the job's identity.
    offer,    // rank -> board: a descriptor for `key`, for `readers` ranks; or `text`, a refusal.
    want,     // rank -> board: send me `key` when it is there.
    given,    // board -> rank: the descriptor.
    refused,  // board -> rank: the offering rank refused, for the reason in `text`.
    withdraw  // rank -> board: nobody needs `key` any more.
  };

  std::uint32_t magic = 0x4c530001;  // Changes with the layout.
  Kind kind = Kind::hello;
  std::int32_t readers = 0;
  char key[128] = {};
  char text[372] = {};
};

Packet make_packet(Packet::Kind kind, std::string_view key, std::string_view text = {});

enum class Received { packet, nothing_yet, closed };

enum class Sent { whole, not_now, closed };

// Never blocks: not_now when the peer has too much unread.
Sent send_packet(int socket, const Packet& packet, int fd = -1);

// Never blocks. Anything but one whole packet of this format counts as closed.
Received receive_packet(int socket, Packet& packet, FileDescriptor& fd);

// The descriptor that came with a switchboard's answer. Errors: system when the offering rank has
// refused, or this process had no descriptor left to receive it.
FileDescriptor descriptor_in(const Packet& packet, FileDescriptor fd);

// Listens on the abstract Unix socket named after this user and `identity`. A host's ranks find
// each other there when no agent started them. The kernel removes the name when the process that
// holds it ends. Errors: misuse when another process still holds that name after two seconds.
FileDescriptor listen_on_abstract_socket(std::string_view identity);

// Takes the same name for this process, which does not listen there; empty when another process has
// it. The name is free again when the descriptor is closed, and when this process ends.
LOCKSTEP_API FileDescriptor take_abstract_name(std::string_view identity);

// Connects to the switchboard that listens there, and says hello; empty when no process of this
// user hears it yet.
FileDescriptor connect_to_switchboard(std::string_view identity);

// Blocks until the switchboard on the abstract socket of `identity` has handed over what it
// publishes under `key`; empty at the deadline. Keeps no connection. Calls `give_up` every 20 ms,
// also once the other process has ended; it may throw. Errors: system when this process has too
// many open files.
FileDescriptor fetch(std::string_view identity, std::string_view key, Deadline deadline,
                     const std::function<void()>& give_up);

// The key under which every rank finds the job page.
constexpr std::string_view job_page_key = "job page";

// The key under which an agent offers the job's token to its ranks: host_link.h.
constexpr std::string_view job_token_key = "job token";

// The key under which ranks give their agent the job page of a session across several agents. Its
// slots are the ranks of all these agents. Every rank does this for every session.
constexpr std::string_view session_page_key = "session page";

class LOCKSTEP_API Switchboard {
 public:
  // Gives `job_page` to every rank that asks; it must outlive the switchboard.
  explicit Switchboard(int job_page);

  // Adds a rank by a socket that this process gave it: nobody else can be at the other end. Sends
  // it the job page.
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

  // Forgets all offers, and disconnects and hears nobody from now on.
  void close();

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

  const int job_page_;
  mutable std::mutex mutex_;  // Guards all below.
  FileDescriptor listener_;
  Deadline deaf_until_ = {};  // Without a descriptor for a new client, poll() would return at once.
  std::string identity_;
  std::vector<Client> clients_;
  std::map<std::string, Offer, std::less<>> offers_;
};

}  // namespace lockstep
