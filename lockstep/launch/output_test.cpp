// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>

#include <array>
#include <cerrno>
#include <cstdlib>

namespace lockstep::launch::output_test {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
  FileDescriptor read;
  FileDescriptor write;
};

void write_all(const FileDescriptor& to, std::string_view text) {
  ASSERT_EQ(::write(to.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// Waits for `least` bytes, then briefly for more, of a terminal, which has some delay.
std::string read_all(const FileDescriptor& from, std::size_t least = 0) {
  const int patience_ms = ::isatty(from.get()) == 1 ? 100 : 0;
  ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
  std::string text;
  std::array<char, 4096> buffer;
  pollfd entry{from.get(), POLLIN, 0};
  while (::poll(&entry, 1, text.size() < least ? 10'000 : patience_ms) > 0) {
    const ssize_t length = ::read(from.get(), buffer.data(), buffer.size());
    if (length <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(length));
  }
  return text;
}

void settle(Output& output) {
  while (true) {
    std::vector<pollfd> entries;
    output.watch(entries);
    if (::poll(entries.data(), entries.size(), 0) <= 0) return;
    output.serve(entries);
  }
}

struct OneRank {
  explicit OneRank(Output& output, int rank = 0) {
    Output::Ends ends = output.add(rank, rank);
    out.write = std::move(ends.out);
    err.write = std::move(ends.err);
  }
  struct {
    FileDescriptor write;
  } out, err;
};

TEST(Output, PutsTheRankBeforeEachLineAndKeepsStdoutAndStderrApart) {
  Pipe out, err;
  Output output(out.write.get(), err.write.get());
  OneRank rank(output, 3);
  write_all(rank.out.write, "a\nb");
  write_all(rank.err.write, "c\n");
  settle(output);
  EXPECT_EQ(read_all(out.read), "[3] a\n");
  EXPECT_EQ(read_all(err.read), "[3] c\n");
  write_all(rank.out.write, "c\n");
  output.say("hello");
  settle(output);
  EXPECT_EQ(read_all(out.read), "[3] bc\n");
  EXPECT_EQ(read_all(err.read), "lockstep run: hello\n");
}

TEST(Output, AtTheEndOfAPipeTheLastLineGetsItsNewline) {
  Pipe out, err;
  Output output(out.write.get(), err.write.get());
  OneRank rank(output);
  write_all(rank.out.write, "a");
  rank.out.write = FileDescriptor();
  settle(output);
  EXPECT_EQ(read_all(out.read), "[0] a\n");
}

TEST(Output, FinishingTakesWhatIsLeftThoughAPipeIsStillOpen) {
  Pipe out, err;
  Output output(out.write.get(), err.write.get());
  OneRank rank(output);
  write_all(rank.out.write, "a\nb");
  output.finish();
  settle(output);
  EXPECT_EQ(read_all(out.read), "[0] a\n[0] b\n");
}

TEST(Output, ASlowReaderMakesTheRankWaitAndLosesNothing) {
  Pipe out, err;
  Output output(out.write.get(), err.write.get());
  OneRank rank(output);
  ::fcntl(rank.out.write.get(), F_SETFL, O_NONBLOCK);
  const std::string line(999, 'x');
  std::size_t written = 0;
  for (bool moved = true; moved;) {  // Until the rank's pipe stays full.
    moved = false;
    while (::write(rank.out.write.get(), (line + "\n").data(), 1000) == 1000) {
      ++written;
      moved = true;
    }
    settle(output);
  }
  EXPECT_LT(written, 4000U) << "the launcher takes 1 MiB and no more";
  std::string got;
  for (std::string chunk; !(chunk = read_all(out.read)).empty(); settle(output)) got += chunk;
  ASSERT_EQ(got.size(), written * 1004);
  for (std::size_t at = 0; at < got.size(); at += 1004)
    ASSERT_EQ(got.compare(at, 1004, "[0] " + line + "\n"), 0);
}

TEST(Output, AReaderWhoIsGoneHoldsNobodyUp) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe out, err;
  Output output(out.write.get(), err.write.get());
  OneRank rank(output);
  out.read = FileDescriptor();
  for (int i = 0; i < 100; ++i) {
    write_all(rank.out.write, std::string(1000, 'x') + "\n");
    settle(output);
  }
  EXPECT_FALSE(output.pending());
  EXPECT_EQ(read_all(err.read), "");
}

// Unlike a pipe, a socket cannot be reopened in non-blocking mode.
TEST(Output, ASocketThatNobodyReadsBlocksNobody) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const FileDescriptor reader(ends[0]);
  const FileDescriptor out(ends[1]);
  Pipe err;
  Output output(out.get(), err.write.get());
  OneRank rank(output);
  const std::string line(9'999, 'x');
  for (int i = 0; i < 100; ++i) {
    write_all(rank.out.write, line + "\n");
    settle(output);
  }
  EXPECT_TRUE(output.pending());
  std::string got;
  for (std::string chunk; !(chunk = read_all(reader)).empty(); settle(output)) got += chunk;
  EXPECT_EQ(got.size(), 100U * 10'004);
}

TEST(Output, ReportsAFullDiskOnce) {
  Pipe err;
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  Output output(full.get(), err.write.get());
  OneRank rank(output);
  for (int i = 0; i < 2; ++i) {
    write_all(rank.out.write, "a\n");
    settle(output);
  }
  EXPECT_EQ(read_all(err.read),
            "lockstep run: writing to stdout: No space left on device; what follows is dropped\n");
}

TEST(Output, OnePipeForBothKeepsTheOrder) {
  Pipe both;
  Output output(both.write.get(), both.write.get());
  OneRank rank(output);
  for (const auto* to : {&rank.out.write, &rank.err.write, &rank.out.write}) {
    write_all(*to, to == &rank.err.write ? "err\n" : "out\n");
    settle(output);
  }
  EXPECT_EQ(read_all(both.read), "[0] out\n[0] err\n[0] out\n");
}

// A terminal of 40 columns that leaves newlines unchanged.
struct Terminal {
  Terminal() {
    int controller = -1;
    int terminal = -1;
    const winsize size{.ws_row = 10, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
    screen = FileDescriptor(controller);
    line = FileDescriptor(terminal);
    termios mode{};
    ::tcgetattr(terminal, &mode);
    ::cfmakeraw(&mode);
    ::tcsetattr(terminal, TCSANOW, &mode);
    ::setenv("NO_COLOR", "1", 1);
  }
  FileDescriptor screen;
  FileDescriptor line;
};

void expect_shown(const Terminal& terminal, const std::string& text) {
  EXPECT_EQ(read_all(terminal.screen, text.size()), text);
}

constexpr const char* erase = "\r\033[K";

std::string status(const std::string& text) { return "\033[?7l" + text + "\033[?7h"; }

TEST(Output, OnATerminalAStatusStaysBelowTheLinesOfAllRanks) {
  Terminal terminal;
  Output output(terminal.line.get(), terminal.line.get());
  OneRank first(output, 0);
  OneRank second(output, 1);
  write_all(first.err.write, "50%\r");
  settle(output);
  expect_shown(terminal, status("[0] 50%"));
  write_all(second.out.write, "line\n");
  settle(output);
  expect_shown(terminal, erase + std::string("[1] line\n") + status("[0] 50%"));
  write_all(first.err.write, "60%\r");
  settle(output);
  expect_shown(terminal, erase + status("[0] 60%"));
}

TEST(Output, RemovesAStatusWhenItsRankEnds) {
  Terminal terminal;
  Output output(terminal.line.get(), terminal.line.get());
  OneRank rank(output);
  write_all(rank.err.write, "50%\r");
  rank.err.write = FileDescriptor();
  settle(output);
  expect_shown(terminal, status("[0] 50%") + erase);
}

TEST(Output, AStatusIsForTheTerminalAlone) {
  Terminal terminal;
  Pipe out;
  Output output(out.write.get(), terminal.line.get());
  OneRank rank(output);
  write_all(rank.err.write, "50%\r");
  write_all(rank.out.write, "a\rb\n");
  settle(output);
  expect_shown(terminal, status("[0] 50%"));
  EXPECT_EQ(read_all(out.read), "[0] a\rb\n");
}

TEST(Output, KnowsHowWideALineMayBe) {
  Terminal terminal;
  Pipe pipe;
  EXPECT_EQ(Output(pipe.write.get(), terminal.line.get()).columns(0), 36);
  EXPECT_EQ(Output(pipe.write.get(), terminal.line.get()).columns(10), 35);
  EXPECT_EQ(Output(terminal.line.get(), pipe.write.get()).columns(0), std::nullopt);
}

}  // namespace
}  // namespace lockstep::launch::output_test
