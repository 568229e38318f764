// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/host_session.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "lockstep/base/log.h"

namespace lockstep::job::host_session_test {
namespace {

template <class Holds>
bool soon(Holds holds) {
  const Deadline deadline = in(std::chrono::seconds(10));
  while (!holds() && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return holds();
}

TEST(HostSession, TheHeartGoesOnWhileALogSinkTakesItsTime) {
  std::promise<void> release;
  std::atomic<bool> is_logging{false};
  set_log_sink([&, released = release.get_future().share()](LogLevel, std::string_view) {
    is_logging = true;
    released.wait();
  });
  {
    HostSession session({.job_id = "job", .opens = true, .is_alone = true},
                        in(std::chrono::seconds(10)));
    session.page().report({.rank = 1, .what = "std::bad_alloc", .fault = Fault::timeout});
    EXPECT_TRUE(soon([&] { return is_logging.load(); }));
    const auto& heartbeat = session.page().activity(0).heartbeat;
    const std::uint64_t before = heartbeat;
    EXPECT_TRUE(soon([&] { return heartbeat >= before + 3; }));
    release.set_value();
  }
  set_log_sink({});
}

}  // namespace
}  // namespace lockstep::job::host_session_test
