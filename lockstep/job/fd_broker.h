// The fd broker: passes descriptors of shared memory between the ranks of one host over Unix
// sockets.
//
// A rank publishes a descriptor or a refusal under a key for fetch(), or sends a descriptor to one
// peer by deliver(). The agent, or without an agent rank 0, runs another broker that sends the job
// control block: docs/internals/communication.md.
//
// Thread safety: full, but only the loop's thread may call watch() and serve().
// Blocking: listen_on_abstract_socket() for at most 2 s; deliver() for at most 30 s; fetch(). A
// rank that does not read its replies is disconnected.

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

// Between a broker and a rank, which are the same build.
struct Packet {
  enum class Kind : std::uint32_t {
    hello,   // rank -> broker: `text` is the job's identity.
    offer,   // rank -> broker: `key`'s descriptor, for `readers` ranks; or a refusal in `text`.
    want,    // rank -> broker: requests `key`. If first, `text` is the identity.
    given,   // broker -> rank: the descriptor.
    refused  // broker -> rank: the publishing rank's reason is in `text`.
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

// Never blocks. not_now: the peer has too much unread data.
Sent send_packet(int socket, const Packet& packet, int fd = -1);

// Never blocks. Anything but one complete packet counts as closed.
Received receive_packet(int socket, Packet& packet, FileDescriptor& fd);

// The reply's descriptor. Errors: system when the publishing rank refused, or this process has too
// many open files.
FileDescriptor descriptor_in(const Packet& packet, FileDescriptor fd);

// Listens on the abstract Unix socket of this user and `identity`. Errors: misuse when another
// process still has the name after two seconds.
FileDescriptor listen_on_abstract_socket(std::string_view identity);

// Reserves the socket's name without listening, until the result is closed. Empty when another
// process has the name.
LOCKSTEP_API FileDescriptor take_abstract_name(std::string_view identity);

// Connects to the socket of `identity` and sends hello; empty if no process of this user accepts.
FileDescriptor connect_to_fd_broker(std::string_view identity);

// Blocks until another process's broker has sent the descriptor of `key`; empty at the deadline.
// `identity` returns the broker's socket name, empty without one, and may block briefly. `check` is
// called at least every 20 ms, also after the other process has ended, and may throw. Errors: as
// descriptor_in()'s.
FileDescriptor fetch(const std::function<std::string()>& identity, std::string_view key,
                     Deadline deadline, const std::function<void()>& check);

// Sends `fd`, which the caller keeps, to the broker of `identity` under `key`. The kernel keeps it
// until the broker reads it, even if this process ends first. Retries while the receiver is busy.
// False if no process listens, or `is_there` returns false. Errors: timeout.
bool deliver(std::string_view identity, std::string_view key, int fd,
             const std::function<bool()>& is_there);

constexpr std::string_view job_control_block_key = "job page";

// The job's token, from an agent to its ranks (host_link.h).
constexpr std::string_view job_token_key = "job token";

// The control block of several agents' session, from each rank to its agent.
constexpr std::string_view session_page_key = "session page";

class LOCKSTEP_API FdBroker {
 public:
  // `job_control_block` must outlive the broker.
  explicit FdBroker(int job_control_block);

  // Adds the rank at a socket pair's other end, and sends it the job control block.
  void connect(FileDescriptor socket);

  // Disconnects clients of other users, or that do not send `identity` first. A second call
  // replaces the listener.
  void listen(FileDescriptor listener, std::string identity);

  // For any number of readers. The last call for a key counts.
  void publish(std::string_view key, FileDescriptor fd);
  void publish_refusal(std::string_view key, std::string_view reason);

  // Returns and removes the latest descriptor that a rank sent under `key`; empty without one.
  // Errors: system when this process had too many open files.
  FileDescriptor take(std::string_view key);

  // Removes what was published or offered under `key`.
  void withdraw(std::string_view key) noexcept;

  // Removes the offer that has arrived under `key`, or the next one.
  void drop(std::string_view key) noexcept;

  // Removes all offers, disconnects all clients and accepts no more.
  void close();

  // watch() adds entries for poll(); serve() handles their results and ignores others.
  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

 private:
  struct Client {
    FileDescriptor socket;
    bool trusted = false;
    bool lost = false;  // Removed at the end of serve().
    std::vector<std::string> wanted = {};
  };
  static constexpr int everybody = -1;
  struct Offer {
    FileDescriptor fd = {};
    std::string refusal = {};
    int readers = 0;  // Still to take it, or `everybody`.
  };

  void accept_all();
  FileDescriptor accept_next();
  void keep_as_spare(FileDescriptor socket);
  void reserve_spare();
  void serve(Client& client);
  void offer(std::string key, Offer offer);
  void give(Client& client, const std::string& key);

  const int job_control_block_;
  mutable std::mutex mutex_;
  FileDescriptor listener_;
  FileDescriptor spare_;      // Closed to free a descriptor for accept().
  Deadline deaf_until_ = {};  // Until then accepts nothing: no descriptor is free.
  std::string identity_;
  std::vector<Client> clients_;
  std::map<std::string, Offer, std::less<>> offers_;
  std::set<std::string, std::less<>> unwanted_;  // Keys of drop() whose offer has not arrived.
};

}  // namespace lockstep
