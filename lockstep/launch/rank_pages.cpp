// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_pages.h"

#include <utility>

namespace lockstep {

RankPages::RankPages(int local_ranks, const Round& round)
    : first_rank_(round.first_rank),
      world_size_(round.world_size),
      own_(JobPage::create(local_ranks, round.job_id, round.world_size)) {}

void RankPages::use_session_page(FileDescriptor fd) {
  JobPage page = JobPage::attach(std::move(fd));
  if (page.slots() == world_size_) session_.emplace(std::move(page));
}

bool RankPages::is_attached(int local_rank) const {
  const JobPage::Phase now = phase(local_rank);
  return now == JobPage::Phase::alive || now == JobPage::Phase::abandoned;
}

bool RankPages::expects_preemption(int local_rank) const {
  return page().expects_preemption(slot(local_rank));
}

Failure RankPages::examine(int local_rank, pid_t pid) const {
  Failure failure = page().examine(slot(local_rank));
  failure.rank = number(local_rank);
  failure.pid = pid;
  return failure;
}

void RankPages::report_end(int local_rank, const Failure& end) const {
  page().report(page().cause_of(slot(local_rank), end));
}

RankStatus RankPages::status(int local_rank) const {
  return status_of(page(), slot(local_rank), session_ ? 0 : first_rank_);
}

}  // namespace lockstep
