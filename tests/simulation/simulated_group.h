// Groups of simulated processes: production ProcessGroups on a simulated backend.
//
// A rank leaves a collective only after all have entered it, each at its own time. A death or an
// abort in between may end it for some ranks alone. Ranks detect deaths at once on their own host,
// and later, or never, on others.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/core/abort_reason.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/process_group.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/simulation.h"

namespace lockstep::simulation {

// The state that the ranks of one group share.
class SharedGroup : public std::enable_shared_from_this<SharedGroup> {
 public:
  SharedGroup(Simulation& simulation, std::string name, std::vector<Process*> members,
              Mutant mutant);

  const std::string& name() const { return name_; }
  const std::vector<Process*>& members() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool has(const Process& process) const;

  // Blocks until all ranks have joined. Calls `look` meanwhile. Errors: peer_lost, timeout.
  void join(int rank, Time deadline, const std::function<void()>& look);

  void enter(int rank, const comm::Collective& collective);
  void run(int rank, const comm::Collective& collective);
  const comm::Signature& entered(int rank, int peer) const;
  void leave(int rank);
  void abort(int rank, const comm::AbortReason& why);
  bool has_lost(int rank, int peer) const;

  // The state of a training, from one rank to another. Errors: as enter().
  void send(int rank, int to, std::string state, Time deadline);
  std::string receive(int rank, int from, Time deadline);

  // `process`, a member, has died: the others detect it.
  void note_death(const Process& process);

  // The connection between two members on different hosts ended: each regards the other as lost,
  // and reports that to the rest.
  void lose_connection(const Process& one, const Process& other);

 private:
  struct Round {
    std::vector<comm::Signature> calls;
    std::vector<bool> has_entered;
    std::vector<std::int64_t> sums;
    int entered = 0;
    int left = 0;
    std::vector<Time> ends;  // By rank; empty until all have entered.
  };
  struct Member {
    bool has_left = false;
    Task* waiting = nullptr;
    std::uint64_t sequence = 0;  // The round that it has entered last.
    std::set<int> lost;          // Ranks that it regards as lost.
    std::optional<comm::AbortReason> abort;
    std::optional<std::string> state;  // The state that it has received.
  };

  int rank_of(const Process& process) const;
  void combine(Round& round, const comm::Collective& collective);
  void complete(Round& round);
  void throw_if_over(int rank, const std::string& what, const std::vector<bool>& has_come) const;
  bool await(int rank, Time deadline);
  void wake(int rank);
  void note_loss(int rank, int peer);
  Duration message_time();
  void after(Duration time, std::function<void()> act);  // Keeps this object alive.

  Simulation& simulation_;
  const std::string name_;
  const std::vector<Process*> members_;
  const Mutant mutant_;
  Random random_;
  std::vector<Member> state_;
  std::map<int, int> ranks_;  // By process.
  std::vector<bool> joined_;
  int joins_ = 0;
  std::map<std::uint64_t, Round> rounds_;
};

// All groups of a simulation.
class SharedGroups {
 public:
  SharedGroups(Simulation& simulation, Mutant mutant) : simulation_(simulation), mutant_(mutant) {}

  // As init_group(), for a process. Its ranks exchange their numbers in `options.store`.
  ProcessGroup make(Process& process, const InitOptions& options,
                    std::chrono::milliseconds call_timeout);

  // The latest group of the process; null if it has none.
  std::shared_ptr<SharedGroup> latest(const Process& process) const;

  void note_death(const Process& process);
  void lose_connection(const Process& one, const Process& other);

 private:
  std::shared_ptr<SharedGroup> find(const std::string& name, const std::string& members);

  Simulation& simulation_;
  const Mutant mutant_;
  std::map<std::string, std::weak_ptr<SharedGroup>> groups_;  // By name and processes.
  std::map<int, std::weak_ptr<SharedGroup>> latest_;          // By process.
};

}  // namespace lockstep::simulation
