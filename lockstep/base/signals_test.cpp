// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/signals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/base/file_descriptor.h"
#include "tests/ranks.h"

namespace lockstep::base::signals_test {
namespace {

bool is_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  return ::sigismember(&pending, SIGXFSZ) == 1;
}

class IgnoredFileSizeSignal : public testing::Test {
 protected:
  IgnoredFileSizeSignal() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{.rlim_cur = 100, .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~IgnoredFileSizeSignal() override { ::setrlimit(RLIMIT_FSIZE, &old_); }

  // Returns the errno of a write beyond the limit.
  int write_too_much() {
    const std::array<char, 100> data{};
    const IgnoreSignals ignore{SIGXFSZ};
    while (::write(file_.get(), data.data(), data.size()) > 0) {
    }
    return errno;
  }

  const test::ScratchDirectory scratch_;
  const FileDescriptor file_{
      ::open((scratch_.path() / "file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  sigset_t signal_;
  rlimit old_{};
};

TEST_F(IgnoredFileSizeSignal, IsAnErrorOfTheCallAndNotTheEndOfTheProcess) {
  struct sigaction action {};
  ::sigaction(SIGXFSZ, nullptr, &action);
  ASSERT_EQ(action.sa_handler, SIG_DFL);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(write_too_much(), EFBIG);
  EXPECT_FALSE(is_pending());
  ::sigaction(SIGXFSZ, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST_F(IgnoredFileSizeSignal, IsLeftToAThreadThatHasBlockedIt) {
  ::pthread_sigmask(SIG_BLOCK, &signal_, nullptr);
  EXPECT_EQ(write_too_much(), EFBIG);
  sigset_t now;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
  EXPECT_EQ(::sigismember(&now, SIGXFSZ), 1);
  EXPECT_TRUE(is_pending());
  int taken = 0;
  ::sigwait(&signal_, &taken);
  ::pthread_sigmask(SIG_UNBLOCK, &signal_, nullptr);
}

}  // namespace
}  // namespace lockstep::base::signals_test
