// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/process_group.h"
#include "tests/file_size_limit.h"
#include "tests/ranks.h"

namespace lockstep::comm::record_test {
namespace {

using namespace std::chrono_literals;
using test::Exit;
using test::Rank;
using test::Ranks;

constexpr const char* text = "std::runtime_error: loss is nan";

bool contains(const std::string& all, const std::string& part) {
  return all.find(part) != all.npos;
}

// --- Exit codes ----------------------------------------------------------------------------------

// Each call has a separate process, because a process reports only its first exception. This
// process has one thread.
template <class Body>
int recorded(Body body, const std::string& error_file = "") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("TORCHELASTIC_ERROR_FILE", error_file.c_str(), 1);
    ::_exit(record(body));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Record, ReturnsWhatTheBodyDoes) {
  EXPECT_EQ(recorded([] { return 3; }), 3);
  EXPECT_EQ(recorded([] {}), 0);
}

TEST(Record, ReturnsTheCodeOfTheFault) {
  const std::pair<Fault, int> codes[] = {
      {Fault::misuse, 64},  {Fault::mismatch, 76},  {Fault::unsupported, 78},
      {Fault::timeout, 69}, {Fault::peer_lost, 69}, {Fault::aborted, 69},
      {Fault::corrupt, 65}, {Fault::system, 71},    {Fault::bug, 70}};
  for (const auto& [fault, code] : codes) {
    EXPECT_EQ(exit_code_of(fault), code) << name(fault);
    EXPECT_EQ(recorded([&] { throw Error(fault, "for a test"); }), code) << name(fault);
  }
  EXPECT_EQ(recorded([] { throw std::runtime_error("for a test"); }), 1);
  EXPECT_EQ(recorded([] { throw 5; }), 1);
}

// --- The peers -----------------------------------------------------------------------------------

void write_now(const Rank& rank) {
  std::ofstream(rank.scratch / "thrown") << Clock::now().time_since_epoch().count();
}

double seconds_since_thrown(const Rank& rank) {
  Clock::rep then = 0;
  std::ifstream(rank.scratch / "thrown") >> then;
  return seconds_since(Clock::time_point(Clock::duration(then)));
}

void expect_exit_report(const ProcessGroup& group, const Rank& rank) {
  try {
    for (int i = 0; i < 1000000; ++i) group.barrier();
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    const double seconds = seconds_since_thrown(rank);
    ASSERT_EQ(error.fault(), Fault::peer_lost) << error.what();
    EXPECT_EQ(error.failure()->what, text);
    EXPECT_EQ(error.failure()->group, "world");
    EXPECT_TRUE(contains(error.what(), std::string("ended with an exception: ") + text))
        << error.what();
    EXPECT_LT(seconds, 10.0);  // least_ms() checks the limit.
    std::printf("learned after_ms=%d\n", static_cast<int>(seconds * 1e3));
  }
}

using Throw = void (*)(const Rank& rank, ProcessGroup& group);

[[noreturn]] void throw_now(const Rank& rank) {
  write_now(rank);
  throw std::runtime_error("loss is nan");
}

Ranks one_throws(const char* how, Throw fail) {
  return {std::string("one throws ") + how, [fail](const Rank& rank) {
            ::setenv("TORCHELASTIC_ERROR_FILE",
                     (rank.scratch / ("error." + std::to_string(rank.rank))).c_str(), 1);
            ProcessGroup group = init_process_group();
            for (int i = 0; i < 3; ++i) group.barrier();
            if (rank.rank == 1) return fail(rank, group);
            expect_exit_report(group, rank);
          }};
}

const Ranks uncaught = one_throws(
    "uncaught", [](const Rank& rank, ProcessGroup&) { [&rank]() noexcept { throw_now(rank); }(); });

const Ranks in_a_thread = one_throws("in a thread", [](const Rank& rank, ProcessGroup&) {
  std::thread([&rank] { throw_now(rank); }).join();
});

const Ranks within_record = one_throws("within record", [](const Rank& rank, ProcessGroup& group) {
  std::_Exit(record([&rank, &group] {
    const ProcessGroup unwound = std::move(group);
    throw_now(rank);
  }));
});

// Returns the smallest "after_ms=" in `exits`. The limit is 100 ms, but a busy machine may be late
// once.
int least_ms(const std::vector<Exit>& exits, int least) {
  for (const Exit& exit : exits)
    if (const auto at = exit.output.find("learned after_ms="); at != std::string::npos)
      least = std::min(least, std::atoi(exit.output.c_str() + at + 17));
  return least;
}

void expect_peers_to_learn(const Ranks& ranks, int code, int signal) {
  int least = 1000000;
  for (int i = 0; i < 5 && least > 100; ++i) {
    const auto exits = ranks.run(3, 20s);
    for (const int survivor : {0, 2})
      EXPECT_EQ(exits[static_cast<std::size_t>(survivor)].code, 0)
          << exits[static_cast<std::size_t>(survivor)].output;
    EXPECT_EQ(exits[1].code, code) << exits[1].output;
    EXPECT_EQ(exits[1].signal, signal) << exits[1].output;
    EXPECT_TRUE(contains(exits[1].output, "loss is nan")) << exits[1].output;
    least = least_ms(exits, least);
  }
  EXPECT_LE(least, 100);
}

TEST(ExitReport, AnExceptionThatNobodyCatchesIsQuotedByThePeers) {
  expect_peers_to_learn(uncaught, -1, SIGABRT);
}

TEST(ExitReport, SoIsOneOfAnotherThread) { expect_peers_to_learn(in_a_thread, -1, SIGABRT); }

TEST(ExitReport, SoIsOneThatEndsTheGroupBeforeItIsRecorded) {
  expect_peers_to_learn(within_record, 1, 0);
}

const Ranks a_chain("a chain of handlers", [](const Rank&) {
  std::set_terminate([] { std::_Exit(42); });
  for (int i = 0; i < 2; ++i) {
    ProcessGroup group = init_process_group();
    destroy_process_group(group);
  }
  std::thread([] { throw std::runtime_error("loss is nan"); }).join();
});

TEST(ExitReport, TheTerminateHandlerThatWasThereIsCalledAfterwards) {
  EXPECT_EQ(a_chain.run(1, 20s)[0].code, 42);
}

// --- The file for torchrun -----------------------------------------------------------------------

struct Written {
  nlohmann::json error;
  mode_t mode;
};

template <class Body>
std::optional<Written> file_of(const std::filesystem::path& path, Body body) {
  recorded(body, path);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::ifstream in(path);
  return Written{nlohmann::json::parse(in), status.st_mode & 0777};
}

std::time_t stamp_of(const Written& written) {
  return std::stoll(written.error.at("message").at("extraInfo").at("timestamp").get<std::string>());
}

TEST(ErrorFile, IsWhatTorchrunReads) {
  const test::ScratchDirectory scratch;
  const std::time_t before = std::time(nullptr);
  const auto written =
      file_of(scratch.path() / "error.json", [] { throw std::runtime_error("loss is nan"); });
  ASSERT_TRUE(written);
  EXPECT_EQ(written->mode, 0600U);
  const auto& message = written->error.at("message");
  EXPECT_EQ(message.at("message"), text);
  // torchrun shows this one of the two.
  EXPECT_TRUE(contains(message.at("extraInfo").at("py_callstack"), text));
  EXPECT_GE(stamp_of(*written), before);
  EXPECT_LE(stamp_of(*written), std::time(nullptr));
}

TEST(ErrorFile, TextThatIsNotUtf8IsStillWritten) {
  const test::ScratchDirectory scratch;
  const auto written = file_of(scratch.path() / "error.json",
                               [] { throw std::runtime_error("a \xff \"quote\"\n and a line"); });
  ASSERT_TRUE(written);
  EXPECT_TRUE(contains(written->error.at("message").at("message"), "\"quote\"\n and a line"));
}

TEST(ErrorFile, TheLossOfAPeerComesLaterThanItsCause) {
  const test::ScratchDirectory scratch;
  const std::time_t before = std::time(nullptr);
  const auto lost = file_of(scratch.path() / "lost.json",
                            [] { throw Error("barrier #1", Failure{.rank = 1, .signal = 9}); });
  ASSERT_TRUE(lost);
  EXPECT_GT(stamp_of(*lost), before + 1);
}

TEST(ErrorFile, IsNotWrittenThroughALink) {
  const test::ScratchDirectory scratch;
  const auto victim = scratch.path() / "victim";
  std::ofstream(victim) << "kept";
  std::filesystem::create_symlink(victim, scratch.path() / "error.json");
  EXPECT_FALSE(file_of(scratch.path() / "error.json", [] { throw std::runtime_error("x"); }));
  EXPECT_EQ(std::filesystem::file_size(victim), 4U);
}

TEST(ErrorFile, MayBeADescriptor) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
  const auto loss = [] { throw std::runtime_error("loss is nan"); };
  EXPECT_EQ(recorded(loss, "/proc/self/fd/" + std::to_string(ends[1])), 1);
  char buffer[4096] = {};
  ASSERT_GT(::read(ends[0], buffer, sizeof buffer - 1), 0);
  EXPECT_EQ(nlohmann::json::parse(buffer).at("message").at("message"), text);
  ::close(ends[0]);
  EXPECT_EQ(recorded(loss, "/proc/self/fd/" + std::to_string(ends[1])), 1) << "nobody reads it";
  ::close(ends[1]);
}

TEST(ErrorFile, ALimitOfFileSizesKeepsNobodyFromEndingWithItsOwnCode) {
  const test::ScratchDirectory scratch;
  const auto fail_under_a_limit = [] {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);  // It may be a file too.
    static const test::FileSizeLimit limit(0);
    throw std::runtime_error("x");
  };
  EXPECT_EQ(recorded(fail_under_a_limit, scratch.path() / "error.json"), 1);
}

TEST(ErrorFile, HoldsTheFirstException) {
  const test::ScratchDirectory scratch;
  const auto written = file_of(scratch.path() / "error.json", [] {
    record_exception(std::make_exception_ptr(std::runtime_error("loss is nan")));
    throw std::runtime_error("and then some");
  });
  ASSERT_TRUE(written);
  EXPECT_EQ(written->error.at("message").at("message"), text);
}

TEST(ErrorFile, NothingIsWrittenWhenThereWasNoException) {
  const test::ScratchDirectory scratch;
  EXPECT_FALSE(file_of(scratch.path() / "error.json", [] { record_exception(nullptr); }));
}

const Ranks unwound_by_nobody("unwound by nobody", [](const Rank& rank) {
  const auto file = rank.scratch / "error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
  // Prints the content of the file when the process would end.
  static std::string path = file;
  std::set_terminate([] {
    std::ifstream in(path);
    const auto error = nlohmann::json::parse(in);
    std::printf("%s\n", error["message"]["extraInfo"]["py_callstack"].get<std::string>().c_str());
    std::fflush(stdout);
    std::_Exit(0);
  });
  ProcessGroup group = init_process_group();
  std::thread([] { throw std::runtime_error("loss is nan"); }).join();
});

TEST(ErrorFile, HoldsTheCallStackOfAnExceptionThatNobodyCaught) {
  const auto exits = unwound_by_nobody.run(1, 20s);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_TRUE(contains(exits[0].output, "Call stack (innermost call first):\n")) << exits[0].output;
  EXPECT_TRUE(contains(exits[0].output, std::string("\n") + text + "\n")) << exits[0].output;
}

}  // namespace
}  // namespace lockstep::comm::record_test
