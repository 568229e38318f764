// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/left_worlds.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/processes.h"

namespace lockstep::comm {
namespace {

struct LeftWorld {
  std::shared_ptr<HostsContext> context;
  pid_t pid = this_process();  // A fork()ed child has none of its threads.

  bool is_needed() const { return pid != this_process() || context->connections->has_peers(); }

  void begin_to_end() const {
    if (pid != this_process()) return;
    context->notices.reset();
    context->connections->begin_to_end();
  }

  void end() const {
    if (pid == this_process()) context->connections.reset();
  }
};

struct LeftWorlds {
  std::mutex mutex;
  std::vector<LeftWorld> kept;
};

// The threads of their sessions end with the process.
struct AtExit {
  LeftWorlds& worlds = *new LeftWorlds;
  ~AtExit() {
    const std::lock_guard lock(worlds.mutex);
    for (const LeftWorld& world : worlds.kept) world.begin_to_end();  // They wait concurrently.
    for (const LeftWorld& world : worlds.kept) world.end();
  }
};

LeftWorlds& left_worlds() {
  static AtExit ours;
  return ours.worlds;
}

}  // namespace

void keep_for_others(std::shared_ptr<HostsContext> context) {
  LeftWorlds& worlds = left_worlds();
  const std::lock_guard lock(worlds.mutex);
  worlds.kept.push_back({std::move(context)});
}

void let_go_of_left_worlds() {
  LeftWorlds& worlds = left_worlds();
  std::vector<LeftWorld> unneeded;  // Their threads end outside the lock.
  const std::lock_guard lock(worlds.mutex);
  const auto gone = std::ranges::partition(worlds.kept, &LeftWorld::is_needed);
  unneeded.assign(std::make_move_iterator(gone.begin()), std::make_move_iterator(gone.end()));
  worlds.kept.erase(gone.begin(), gone.end());
}

}  // namespace lockstep::comm
