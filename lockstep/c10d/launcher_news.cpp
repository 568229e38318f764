// SPDX-License-Identifier: Apache-2.0
#include "lockstep/c10d/launcher_news.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/time.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/job_page.h"

namespace lockstep::c10d {
namespace {

// That a rank has ended in order is a failure for those that wait for it.
std::optional<Failure> failure_on(const JobPage& page) {
  for (int slot = 0; slot < page.slots() && !page.failure(); ++slot)
    if (const auto end = page.end_of(slot)) page.report(*end);
  return page.failure();
}

}  // namespace

void throw_if_launcher_lost_rank() {
  constexpr std::chrono::seconds patience{30};
  static const LaunchEnvironment who = read_environment();
  static const JobPage page = AgentLine(who.agent_fd.value()).own_page(in(patience));
  page.await_group(who.local_rank);
  const auto failure = failure_on(page);
  if (!failure) return;
  static std::once_flag logged;
  std::call_once(logged, [&] {
    log(LogLevel::error, failure_record(page.job_id(), *failure, page.since_failure()));
  });
  throw Error("init_process_group on rank " + std::to_string(who.rank), *failure);
}

}  // namespace lockstep::c10d
