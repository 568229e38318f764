// The fd broker: passes descriptors of shared memory between the ranks of one host over Unix
// sockets.
//
// Each rank runs one in the poll() loop of its liveness thread. A rank publishes a descriptor, or a
// refusal with a reason, under a key; peers fetch() it before or after. A peer can also deliver() a
// descriptor to the receiving rank's own broker, which works even after the sender has exited. The
// agent, or rank 0 without an agent, runs one more, which sends the job control block
// (JobControlBlock) to ranks that join (HostLink).
//
// Thread safety: any thread may call any member or function; watch() and serve() are for the thread
// that runs the loop.
// Blocking: listen_on_abstract_socket() for at most two seconds; fetch(); deliver() while too many
// others connect to the same rank. A rank that does not read its replies is disconnected.

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

// A packet between a broker and a rank, with a fixed size and at most one descriptor. It is a plain
// struct, because both ends are the same build on the same host.
struct Packet {
  enum class Kind : std::uint32_t {
    hello,   // rank -> broker: `text` is the job's identity.
    offer,   // rank -> broker: a descriptor for `key`, for `readers` ranks; or `text`, a refusal.
    want,    // rank -> broker: requests `key`, now or when it is published. May be the first
             // packet, with the identity in `text`.
    given,   // broker -> rank: the descriptor.
    refused  // broker -> rank: the publishing rank refused, with the reason in `text`.
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

// Never blocks: not_now when the peer has too much unread data.
Sent send_packet(int socket, const Packet& packet, int fd = -1);

// Never blocks. Anything but one complete packet of this format counts as closed.
Received receive_packet(int socket, Packet& packet, FileDescriptor& fd);

// The descriptor in a broker's reply. Errors: system when the publishing rank refused, or this
// process had no free descriptor to receive it.
FileDescriptor descriptor_in(const Packet& packet, FileDescriptor fd);

// Listens on the abstract Unix socket named by this user and `identity`, the rendezvous of ranks
// without an agent. The kernel removes the name when its process ends. Errors: misuse when another
// process still holds the name after two seconds.
FileDescriptor listen_on_abstract_socket(std::string_view identity);

// Reserves this name without listening; empty when another process has it. Closing the descriptor,
// or the end of this process, releases the name.
LOCKSTEP_API FileDescriptor take_abstract_name(std::string_view identity);

// Connects to the broker on that socket and sends hello; empty when no process of this user
// listens.
FileDescriptor connect_to_fd_broker(std::string_view identity);

// Blocks until another process's broker has sent the descriptor that it publishes under `key`;
// empty at the deadline. fetch() calls `identity`, the name of that broker's socket, before each
// attempt to connect. `identity` may block briefly, and returns an empty text while the other
// process has no broker. fetch() calls `check` every 20 ms, also after the other process has
// ended; `check` may throw. Keeps no connection. Errors: system when this process has too many
// open files, or the other one has published a refusal.
FileDescriptor fetch(const std::function<std::string()>& identity, std::string_view key,
                     Deadline deadline, const std::function<void()>& check);

// Sends `fd` to the broker on the abstract socket of `identity`, under `key`, and returns. The
// kernel keeps `fd` until the other process reads it, even if this one ends first. The caller keeps
// `fd`. Returns false if no process listens there, or `is_there` returns false.
bool deliver(std::string_view identity, std::string_view key, int fd,
             const std::function<bool()>& is_there);

// The key of the job control block.
constexpr std::string_view job_control_block_key = "job page";

// The key under which an agent publishes the job's token to its ranks: host_link.h.
constexpr std::string_view job_token_key = "job token";

// The key under which ranks send their agent the control block of a session across several agents.
// Its slots are the ranks of all these agents. Every rank does this for every session.
constexpr std::string_view session_page_key = "session page";

class LOCKSTEP_API FdBroker {
 public:
  // Sends `job_control_block` to every rank that requests it; it must outlive the broker.
  explicit FdBroker(int job_control_block);

  // Adds a rank, whose end of the socket pair only this process gave it. Sends it the job control
  // block.
  void connect(FileDescriptor socket);

  // Any process can connect to `listener`, so a client must run as this user and send `identity`
  // first. Others are disconnected. A second call replaces the listener.
  void listen(FileDescriptor listener, std::string identity);

  // Publishes `fd` of this process, or a refusal, for any number of readers. A second call with the
  // same key replaces the first.
  void publish(std::string_view key, FileDescriptor fd);
  void publish_refusal(std::string_view key, std::string_view reason);

  // Returns and removes the latest descriptor that a rank sent to this process under `key`; empty
  // if there is none. Errors: system when this process had no free descriptor to receive it.
  FileDescriptor take(std::string_view key);

  // Removes what was published or offered under `key`. Never throws.
  void withdraw(std::string_view key) noexcept;

  // Removes what a rank offers to this process under `key`: the offer that has arrived, or the next
  // one. Never throws.
  void drop(std::string_view key) noexcept;

  // Removes all offers, disconnects all clients and accepts no more.
  void close();

  // watch() adds entries for poll(); serve() handles their results and ignores other entries.
  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

 private:
  struct Client {
    FileDescriptor socket;
    bool trusted = false;
    bool lost = false;                     // Will be removed at the end of serve().
    std::vector<std::string> wanted = {};  // Requested keys that nobody has offered yet.
  };
  static constexpr int everybody = -1;
  struct Offer {
    FileDescriptor fd = {};    // Empty for a refusal.
    std::string refusal = {};  // The reason.
    int readers = 0;           // Number of ranks that have not taken it, or `everybody` for no
                               // limit.
  };

  void accept_all();
  FileDescriptor accept_next();
  void keep_as_spare(FileDescriptor socket);
  void reserve_spare();
  void serve(Client& client);
  void offer(std::string key, Offer offer);
  void give(Client& client, const std::string& key);

  const int job_control_block_;
  mutable std::mutex mutex_;  // Guards the members below.
  FileDescriptor listener_;
  FileDescriptor spare_;      // Closed to accept a connection when no other descriptor is free.
  Deadline deaf_until_ = {};  // Without a descriptor for a new client, poll() would return at once.
  std::string identity_;
  std::vector<Client> clients_;
  std::map<std::string, Offer, std::less<>> offers_;
  std::set<std::string, std::less<>> unwanted_;  // Keys of drop() whose offer is still to come.
};

}  // namespace lockstep
