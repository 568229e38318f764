// Options of an elastic group whose store is a file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/comm/elastic_group.h"
#include "lockstep/job/store/store.h"
#include "tests/ranks.h"

namespace lockstep::test {

// `incarnation`: number of earlier processes in this rank's place.
inline ElasticOptions elastic_options(const Rank& rank, int incarnation = 0) {
  ElasticOptions options;
  options.init.timeout = std::chrono::seconds(20);
  options.init.environment = LaunchEnvironment{.launcher = "a test",
                                               .rank = rank.rank,
                                               .world_size = rank.world_size,
                                               .local_world_size = 0,
                                               .job_id = {},
                                               .agent_fd = {}};
  options.init.store =
      std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"});
  options.incarnation = incarnation;
  return options;
}

}  // namespace lockstep::test
