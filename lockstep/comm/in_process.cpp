// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/in_process.h"

#include <exception>
#include <mutex>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/thread.h"
#include "lockstep/comm/group_state.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "lockstep/job/step_clock.h"

namespace lockstep {
namespace {

ProcessGroup make_group(const std::shared_ptr<comm::ThreadTeam>& team, int rank,
                        std::chrono::milliseconds timeout) {
  auto peers = std::make_shared<comm::ThreadPeers>(team, rank);
  ProcessGroup::State::Parts parts;
  parts.identity = {.name = "world", .rank = rank, .size = team->size(), .timeout = timeout};
  parts.in_job = std::make_shared<comm::RankInJob>(
      std::shared_ptr<Activity>(team, &peers->activity(rank)),
      comm::RankHooks{.activity_of = [team, peers](int other) -> std::shared_ptr<const Activity> {
                        return {team, &peers->activity(other)};
                      },
                      .knows_of_loss = [team] { return team->has_lost_a_rank(); }});
  parts.abandon = [team, rank] { team->lose(rank); };
  parts.backend =
      std::make_unique<comm::ShmBackend>(std::move(peers), parts.identity.name, timeout);
  return GroupAccess::make(std::move(parts));
}

}  // namespace

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
      ProcessGroup group = make_group(team, rank, timeout);
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
