// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/in_process.h"

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/thread.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "lockstep/job/step_clock.h"

namespace lockstep {
namespace {

class ThreadContext final : public comm::RankContext {
 public:
  ThreadContext(std::shared_ptr<comm::ThreadTeam> team, std::shared_ptr<comm::ThreadPeers> peers)
      : RankContext({team, &peers->activity(peers->rank())}),
        team_(std::move(team)),
        peers_(std::move(peers)) {}

  std::shared_ptr<const Activity> activity_of(int rank) const override {
    return {team_, &peers_->activity(rank)};
  }
  bool knows_of_loss() const override { return team_->has_lost_a_rank(); }
  void abandon() override { peers_->abandon(); }

 private:
  const std::shared_ptr<comm::ThreadTeam> team_;
  const std::shared_ptr<comm::ThreadPeers> peers_;
};

ProcessGroup make_group(std::string name, const std::shared_ptr<comm::ThreadTeam>& team, int rank,
                        std::chrono::milliseconds timeout) {
  auto peers = std::make_shared<comm::ThreadPeers>(team, rank);
  ProcessGroup::State::Parts parts;
  parts.identity = {
      .name = std::move(name), .rank = rank, .size = team->size(), .timeout = timeout};
  parts.rank_context = std::make_shared<ThreadContext>(team, peers);
  parts.backend =
      std::make_unique<comm::ShmBackend>(std::move(peers), parts.identity.name, timeout);
  return GroupAccess::make(std::move(parts));
}

}  // namespace

ProcessGroup ProcessGroup::self() {
  return make_group("self", std::make_shared<comm::ThreadTeam>(1), 0, default_timeout);
}

void run_in_process(int world_size, const std::function<void(ProcessGroup&)>& body,
                    std::chrono::milliseconds timeout) {
  require(world_size > 0, "run_in_process: at least one rank is needed");
  require(body != nullptr, "run_in_process: there is nothing to run");
  const auto team = std::make_shared<comm::ThreadTeam>(world_size);
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep_first_error = [&] {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto live = [&](int rank) {
    const StepClock::OfThread clock;
    try {
      ProcessGroup group = make_group("world", team, rank, timeout);
      try {
        body(group);
        destroy_process_group(group);
      } catch (...) {
        keep_first_error();  // Before the group is destroyed, which makes the other ranks throw.
      }
    } catch (...) {
      keep_first_error();
      team->lose(rank);
    }
  };
  std::vector<Thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    try {
      threads.emplace_back([&live, rank] { live(rank); });
    } catch (...) {  // The other ranks must not wait for this one.
      keep_first_error();
      team->lose(rank);
    }
  }
  for (Thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep
