// Authenticated connections between a job's processes on different hosts. A Door admits clients
// that prove the job's token.
//
// Thread safety: a Door belongs to one thread; any thread may call the functions.
// Blocking: the functions until their deadline; a Door never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <list>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/time.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

// Returns a socket to a server that has accepted this process. Retries while the server does not
// listen or drops the connection. `server` is for messages. Errors: as TcpStore's constructor.
FileDescriptor join_store(const TcpStoreOptions& options, const std::string& server);

// Tries one address once, for about 6 s at most. Empty, with the reason in `why`, if another
// attempt may succeed. Errors: as ClientHandshake's.
LOCKSTEP_API FileDescriptor try_to_join(const SocketAddress& address, const JobMember& member,
                                        const std::optional<JobToken>& token, Channel channel,
                                        Deadline deadline, std::string& why);

// Limits unauthenticated peers in number and time.
class LOCKSTEP_API Door {
 public:
  struct Options {
    JobMember job;  // This process.
    std::optional<JobToken> token = {};
    Channel channel = Channel::agents;
    std::string name;
    ServerHandshake::HolderOf holder_of = [](const JobMember&) { return std::nullopt; };
  };
  struct Arrival {
    FileDescriptor socket;
    JobMember member;
  };

  // `listener` is non-blocking.
  Door(FileDescriptor listener, Options options);

  void watch(std::vector<pollfd>& entries) const;
  Deadline deadline() const;

  // Returns the processes admitted by this call.
  std::vector<Arrival> serve(const std::vector<pollfd>& entries, Clock::time_point now);

 private:
  struct UnauthenticatedPeer {
    FileDescriptor socket;
    ServerHandshake handshake;
    std::string hello;
    Deadline deadline;
    JobMember member = {};
  };
  enum class Progress { waits, is_in, is_out };

  void accept_some(Clock::time_point now);
  void welcome(FileDescriptor socket, Clock::time_point now);
  Progress hear(UnauthenticatedPeer& peer);

  FileDescriptor listener_;
  const Options options_;
  std::list<UnauthenticatedPeer> unauthenticated_;
  Deadline accept_again_ = Clock::time_point{};
  std::minstd_rand random_{std::random_device{}()};
  SparseLog log_{std::chrono::seconds(10)};
};

}  // namespace lockstep
