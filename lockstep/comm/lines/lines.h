// The lines between ranks of different hosts: one TCP connection for each pair, authenticated by
// the job's token. They carry what engines do not: what ranks say of a collective before it begins,
// deaths and aborts, messages. docs/protocol.md has the frames.
//
// A thread of its own reads them all. A host or link that vanishes without a word is noticed within
// some 5 s: the kernel asks idle peers whether they are there, so a stopped process is not lost.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/pipe.h"
#include "lockstep/job/store/job_member.h"
#include "lockstep/job/store/job_token.h"

namespace lockstep {

// A rank of another host.
struct RemoteRank {
  int rank = 0;         // In the job.
  std::string host;     // For people.
  int pid = 0;          // There.
  std::string address;  // Its Lines::address().
};

class LineGroup;

class Lines {
 public:
  struct Options {
    JobMember member;                     // This rank.
    std::optional<JobToken> token = {};   // Needed beyond loopback: require_protection().
    std::string listen_on = "127.0.0.1";  // A numeric address of this host.
    std::function<void(const Failure&)> on_failure = [](const Failure&) {};
  };

  // Listens. `on_failure` is called on the lines' thread when a remote rank is lost: once for each
  // whose line ended without finish(), some 200 ms later unless a rank of its host has said why by
  // then; and with whatever a remote rank tells by tell_failure().
  // Errors: misuse for an address that is not this host's, or beyond loopback without a token.
  explicit Lines(Options options);

  // Ends all lines; peers take that for the end of this process unless finish() came before.
  // Blocking: until they have read what was sent, 200 ms at most and a second after finish().
  ~Lines();
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  std::string address() const;  // HOST:PORT where it listens.

  // Blocks until there is a line to each; the ranks connect to those of higher number. Once.
  // Strangers, other jobs and earlier attempts are turned away, without an end to the waiting.
  // `watch` is called every 20 ms, but for the some 6 s that a silent address may take, and may
  // throw.
  // Errors: timeout, naming all that did not come and why; peer_lost for one that was here and
  // went; system when the lines' thread has failed.
  void connect(const std::vector<RemoteRank>& ranks, Deadline deadline,
               const std::function<void()>& watch);

  // Tells all remote ranks of a rank of this host that was lost.
  void tell_failure(const Failure& failure);

  // The job has ended in order: that lines end is no failure from now on, here and there.
  void finish();

  // The lines of one group, whose rank r is world_ranks[r] of the job. `name` is the group's own.
  // After connect(), once for each name. What has come for it before is kept; what comes after the
  // last copy is gone is thrown away: of a group that was closed, eight bytes are kept.
  // Errors: misuse for a name that was opened before; system when the lines' thread has failed.
  std::shared_ptr<LineGroup> open(const std::string& name, std::vector<int> world_ranks);

 private:
  friend class LineGroup;
  class Loop;
  std::shared_ptr<Loop> loop_;
};

// One group's share of the lines. Ranks are those of the group.
class LineGroup {
 public:
  virtual ~LineGroup() = default;

  // Sends `entry` to a remote rank, which hears what this one says in order. Never blocks.
  virtual void say(int peer, std::string_view entry) = 0;

  // Blocks until `peer` has said something that was not taken yet, and takes the first; nothing at
  // the deadline. That moves by the time for which this process was stopped, and `peer` has 100 ms
  // at least. `watch` is called every 20 ms and may throw.
  // Errors: system when the lines' thread has failed.
  virtual std::optional<std::string> hear(int peer, Deadline deadline,
                                          const std::function<void()>& watch) = 0;

  // Tells all remote ranks of the group. Never blocks; nothing is said after it.
  virtual void give_up(Fault fault, std::string_view reason) = 0;

  // `act` is called on the lines' thread for what a remote rank gave up with, also if that was
  // before this call; must not call back, nor throw. A failure of the lines' thread itself counts
  // as such (Fault::system), and is told by this call if it was before.
  virtual void on_give_up(std::function<void(Fault, std::string_view)> act) = 0;

  // Of remote ranks only: see pipe.h. 1 MiB of each that nobody has read yet.
  virtual Pipe& to(int peer) = 0;
  virtual Pipe* from(int peer) = 0;

  // `act` is called on the lines' thread when a pipe has more to read, or room again; must not
  // call back.
  virtual void on_message(std::function<void()> act) = 0;
};

}  // namespace lockstep
