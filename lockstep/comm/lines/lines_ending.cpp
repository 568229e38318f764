// Ends the connections: in order, or because their thread failed.

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/lines/lines_loop.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds finished_linger{1000};
constexpr std::chrono::milliseconds linger{200};

// Returns the text of the exception being handled.
std::string text_of_current() {
  try {
    throw;
  } catch (const Error& error) {
    return bare_text(error);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

struct Leaving {
  std::shared_ptr<Line> line;
  bool has_said_all = false;
  bool has_ended = false;
};

void let_leave(Leaving& leaving, short events) {
  if ((events & POLLOUT) != 0) leaving.line->flush();
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) leaving.has_ended = !leaving.line->discard();
}

}  // namespace

// Called in an exception handler. Peers see their connections end, so this rank is lost to them.
void Lines::Loop::fail() {
  const Error error(Fault::system, fmt::format("the thread of rank {}'s lines failed: {}",
                                               options_.member.rank, text_of_current()));
  log(LogLevel::error, error.what());
  peers_.fail(error);
  groups_.fail(error);
}

// Waits, for a limited time, until all data was sent and read. A socket closed before the peer has
// closed its own answers later data with a reset, which drops data on its way.
void Lines::Loop::leave() {
  std::vector<Leaving> all;
  for (auto& [rank, line] : peers_.open_lines()) all.push_back({line});
  const Deadline deadline = in(peers_.has_finished() ? finished_linger : linger);
  while (!all.empty() && Clock::now() < deadline) {
    std::vector<pollfd> entries;
    for (Leaving& leaving : all) {
      const bool said_all = leaving.line->queued() == 0;
      if (said_all && !leaving.has_said_all) ::shutdown(leaving.line->socket(), SHUT_WR);
      leaving.has_said_all |= said_all;
      const int wanted = POLLIN | (said_all ? 0 : POLLOUT);
      entries.push_back({leaving.line->socket(), static_cast<short>(wanted), 0});
    }
    const int ready = ::poll(entries.data(), entries.size(), milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready <= 0) continue;
    for (std::size_t i = 0; i < all.size(); ++i) let_leave(all[i], entries[i].revents);
    std::erase_if(all, [](const Leaving& leaving) { return leaving.has_ended; });
  }
}

}  // namespace lockstep
