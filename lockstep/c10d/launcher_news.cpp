// SPDX-License-Identifier: Apache-2.0
#include "lockstep/c10d/launcher_news.h"

#include <chrono>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/job_page.h"

namespace lockstep::c10d {

void throw_if_launcher_lost_rank() {
  constexpr std::chrono::seconds patience{30};
  static const LaunchEnvironment who = read_environment();
  static const JobPage page = AgentLine(who.agent_fd.value()).own_page(in(patience));
  const auto failure = page.failure();
  if (!failure) return;
  static std::once_flag logged;
  std::call_once(logged, [&] {
    log(LogLevel::error, failure_record(page.job_id(), *failure, page.since_failure()));
  });
  throw Error("init_process_group on rank " + std::to_string(who.rank), *failure);
}

}  // namespace lockstep::c10d
