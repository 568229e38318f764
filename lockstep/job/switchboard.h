// The switchboard passes descriptors of shared memory between the ranks of one host. This header
// has its packets and its Unix sockets, too.
//
// Each rank runs one inside the poll() loop of its sentinel thread. A rank publishes a descriptor,
// or the reason why it has none, under a key; peers fetch() it, before or after. A peer can also
// deliver() a descriptor, which the receiving rank then obtains from its own switchboard: no other
// process is needed, not even the sender's.
// The agent, or without one rank 0, runs one more, from which the ranks get the job page at the
// start (HostLink).
//
// Thread safety: any thread may call any member or function; watch() and serve() are for the thread
// that runs the loop.
// Blocking: listen_on_abstract_socket() for two seconds at most, fetch(), and deliver() while too
// many others connect to the same rank; no other. A rank that does not read its replies is
// disconnected.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
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
    hello,   // rank -> board: `text` is the job's identity.
    offer,   // rank -> board: a descriptor for `key`, for `readers` ranks; or `text`, a refusal.
    want,    // rank -> board: send me `key` when it is there. May be the first packet, with the
             // identity in `text`.
    given,   // board -> rank: the descriptor.
    refused  // board -> rank: the offering rank refused, for the reason in `text`.
  };

  std::uint32_t magic = 0x4c530002;  // Changes with the layout.
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

// Blocks until another process's switchboard has sent the descriptor that it publishes under `key`.
// Returns an empty one at the deadline. `identity` names that switchboard's socket; fetch() calls
// it before each try to connect. `identity` may block briefly, and returns an empty text while the
// other process has no switchboard. fetch() calls `give_up` every 20 ms, also after the other
// process has ended; `give_up` may throw. The connection is closed afterwards. Errors: system when
// this process has too many open files, or the other one has published a refusal.
FileDescriptor fetch(const std::function<std::string()>& identity, std::string_view key,
                     Deadline deadline, const std::function<void()>& give_up);

// Gives `fd` to the switchboard on the abstract socket of `identity`, under `key`, and returns: the
// kernel keeps it until the other process reads it, even if this one ends first. The caller keeps
// `fd`. Returns false if nobody listens there, or no longer `is_there`.
bool deliver(std::string_view identity, std::string_view key, int fd,
             const std::function<bool()>& is_there);

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

  // Returns the latest descriptor that a rank offered to this process under `key`, and forgets it.
  // Empty when nothing new has come. Errors: system when this process had no descriptor left to
  // receive it.
  FileDescriptor take(std::string_view key);

  // Forgets what was published or offered under `key`. Never throws.
  void withdraw(std::string_view key) noexcept;

  // Forgets what a rank offers to this process under `key`: the offer that has come, or the next
  // one. Never throws.
  void drop(std::string_view key) noexcept;

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
  FileDescriptor accept_next();
  void keep_as_spare(FileDescriptor socket);
  void reserve_spare();
  void serve(Client& client);
  void offer(std::string key, Offer offer);
  void give(Client& client, const std::string& key);

  const int job_page_;
  mutable std::mutex mutex_;  // Guards all below.
  FileDescriptor listener_;
  FileDescriptor spare_;      // Given up for a connection when no other descriptor is free.
  Deadline deaf_until_ = {};  // Without a descriptor for a new client, poll() would return at once.
  std::string identity_;
  std::vector<Client> clients_;
  std::map<std::string, Offer, std::less<>> offers_;
  std::set<std::string, std::less<>> unwanted_;  // Keys of drop() whose offer is still to come.
};

}  // namespace lockstep
