// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/agree_on_meeting.h"

#include <fmt/format.h>

#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds retry_pause{2};
constexpr std::chrono::milliseconds time_to_come{2000};

std::vector<int> absent(HostSession& session) {
  std::vector<int> ranks;
  for (int rank = 0; rank < session.size(); ++rank)
    if (!session.page().told(rank, session.meeting())) ranks.push_back(rank);
  return ranks;
}

std::string_view shown(const std::string& backend) {
  return backend.empty() ? std::string_view("auto") : backend;
}

// Backends of one host that come to the same thing do not differ.
bool same_backend(const std::string& one, const std::string& other) {
  return one == other || (is_shared_memory(one) && is_shared_memory(other));
}

// In words, and the ranks that were told something else than the rest.
struct Difference {
  std::string text = {};
  std::vector<int> ranks = {};
};

Difference difference(HostSession& session) {
  Difference found;
  const JobPage& page = session.page();
  std::string sizes, backends;
  std::string first;
  int asked_first = -1;
  for (int rank = 0; rank < page.slots(); ++rank) {
    const auto told = page.told(rank, session.meeting());
    if (!told) continue;
    if (asked_first < 0) {
      asked_first = rank;
      first = told->backend;
    }
    const bool other_size = told->world_size != page.world_size();
    const bool other_backend = !same_backend(told->backend, first);
    if (other_size) sizes += fmt::format("rank {} was told of {} ranks, ", rank, told->world_size);
    if (other_backend) backends += fmt::format(", rank {} for '{}'", rank, shown(told->backend));
    if (other_size || other_backend) found.ranks.push_back(rank);
  }
  if (!sizes.empty())
    found.text =
        fmt::format("{}the launcher has started {} (WORLD_SIZE)", sizes, page.world_size());
  else if (!backends.empty())
    found.text =
        fmt::format("rank {} asks for backend '{}'{}", asked_first, shown(first), backends);
  return found;
}

}  // namespace

bool is_shared_memory(std::string_view backend) {
  return backend.empty() || backend == "auto" || backend == "shm";
}

void require_agreement(HostSession& session) {
  if (difference(session).ranks.empty()) return;
  for (const Deadline late = in(time_to_come); !absent(session).empty() && Clock::now() < late;)
    std::this_thread::sleep_for(retry_pause);
  Difference found = difference(session);
  throw Error(Fault::mismatch,
              fmt::format("init_process_group on rank {}: {}", session.rank(), found.text),
              std::move(found.ranks));
}

void await_agreement(HostSession& session, Deadline deadline) {
  const auto begin = Clock::now();
  for (;; std::this_thread::sleep_for(retry_pause)) {
    require_agreement(session);
    std::vector<int> missing = absent(session);
    if (missing.empty()) return;
    const auto context = fmt::format("init_process_group on rank {}", session.rank());
    session.throw_if_peer_lost(context);
    if (Clock::now() >= deadline)
      throw Error(Fault::timeout,
                  fmt::format("{}: {} did not come within {:.1f} s", context,
                              name_of_ranks(missing), seconds_since(begin)),
                  std::move(missing));
  }
}

}  // namespace lockstep
