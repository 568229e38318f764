// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/agent_line.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/shared_mapping.h"
#include "lockstep/job/switchboard.h"

namespace lockstep {

AgentLine::AgentLine(int agent_fd) : link_(duplicate_agent_fd(agent_fd)) {}

std::optional<JobToken> AgentLine::job_token(Deadline deadline) {
  const auto memory = SharedMapping::attach(link_.obtain(job_token_key, deadline));
  const char* text = reinterpret_cast<const char*>(memory.data());
  const std::string_view token(text, ::strnlen(text, memory.bytes()));
  return token.empty() ? std::nullopt : std::optional<JobToken>(token);
}

int AgentLine::world_size(Deadline deadline) {
  return JobPage::attach(link_.obtain(job_page_key, deadline)).world_size();
}

void AgentLine::offer_session_page(const JobPage& page) {
  link_.offer(session_page_key, 1, page.descriptor());
}

FileDescriptor duplicate_agent_fd(int agent_fd) {
  ::fcntl(agent_fd, F_SETFD, FD_CLOEXEC);
  FileDescriptor copy(::fcntl(agent_fd, F_DUPFD_CLOEXEC, 0));
  if (!copy)
    throw Error(Fault::misuse, fmt::format("LOCKSTEP_AGENT_FD={} is not open: lockstep run must "
                                           "start this program itself, or a shell that execs it",
                                           agent_fd));
  return copy;
}

FileDescriptor share_job_token(const std::optional<JobToken>& token) {
  const std::string_view text = token ? token->text() : std::string_view();
  const auto memory = SharedMapping::create("job token", text.size() + 1);
  std::memcpy(memory.data(), text.data(), text.size());  // The mapping already ends with a zero.
  FileDescriptor fd(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!fd) throw_errno("duplicating a descriptor");
  return fd;
}

}  // namespace lockstep
