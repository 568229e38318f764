// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <termios.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/signals.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/output.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"
#include "tests/ranks.h"

namespace lockstep::launch::output_logs_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Console {
  Console() {
    make(out, out_read);
    make(err, err_read);
  }
  static void make(FileDescriptor& write, FileDescriptor& read) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  static void take(const FileDescriptor& from, std::string& text) {
    std::array<char, 65536> buffer;
    for (ssize_t length; (length = ::read(from.get(), buffer.data(), buffer.size())) > 0;)
      text.append(buffer.data(), static_cast<std::size_t>(length));
  }
  void settle(Output& output) {
    while (true) {
      std::vector<pollfd> entries;
      output.watch(entries);
      const int ready = entries.empty() ? 0 : ::poll(entries.data(), entries.size(), 0);
      if (ready > 0) output.serve(entries);
      take(out_read, out_text);
      take(err_read, err_text);
      if (ready <= 0) return;
    }
  }
  FileDescriptor out, err, out_read, err_read;
  std::string out_text, err_text;
};

void write_all(const FileDescriptor& to, std::string_view text) {
  ASSERT_EQ(::write(to.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

fs::path only_entry(const fs::path& folder) {
  const std::vector<fs::path> entries{fs::directory_iterator(folder), {}};
  EXPECT_EQ(entries.size(), 1U);
  return entries.empty() ? fs::path() : entries.front();
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

LogOptions to_files(const test::ScratchDirectory& scratch) {
  return {.directory = scratch.path() / "logs"};
}

TEST(OutputLogs, AreLaidOutAsTorchrunDoesAndAreThisUsersAlone) {
  const test::ScratchDirectory scratch;
  LogOptions options = to_files(scratch);
  options.tee.all = Streams::both;
  Console console;
  const mode_t before = ::umask(0);
  Output output(console.out.get(), console.err.get(), options);
  output.begin_attempt("job/../a b", 0);
  EXPECT_TRUE(output.add(4, 0).out);
  EXPECT_TRUE(output.add(5, 1).out);
  output.begin_attempt("job/../a b", 1);
  EXPECT_TRUE(output.add(4, 0).out);
  ::umask(before);

  const fs::path job = only_entry(options.directory);
  EXPECT_TRUE(job.filename().string().starts_with("job_.._a_b_")) << job;
  EXPECT_EQ(mode_of(options.directory), 0700U);
  for (const char* folder : {"", "attempt_0", "attempt_0/0", "attempt_0/1", "attempt_1/0"})
    EXPECT_EQ(mode_of(job / folder), 0700U) << folder;
  for (const char* folder : {"attempt_0/0", "attempt_0/1", "attempt_1/0"})
    for (const char* name : {"stdout.log", "stderr.log"})
      EXPECT_EQ(mode_of(job / folder / name), 0600U) << folder << " " << name;
  EXPECT_EQ(output.error_file(0), job / "attempt_1/0/error.json");
  EXPECT_EQ(output.error_file(1), job / "attempt_1/1/error.json");
  EXPECT_TRUE(fs::is_directory(job / "attempt_1/1")) << "the rank could not write its error there";
}

TEST(OutputLogs, WithoutAFolderThereIsNoErrorFileAndNoStreamCanBeRedirected) {
  Console console;
  Output output(console.out.get(), console.err.get());
  output.begin_attempt("job", 0);
  EXPECT_EQ(output.error_file(0), "");
  LogOptions options;
  options.redirects.of_local_rank[1] = Streams::err;
  EXPECT_EQ(test::fault_of([&] { Output(console.out.get(), console.err.get(), options); }),
            Fault::misuse);
}

TEST(OutputLogs, AFolderThatCannotBeMadeIsRefused) {
  Console console;
  EXPECT_EQ(test::fault_of([&] {
              Output(console.out.get(), console.err.get(), {.directory = "/dev/null/logs"});
            }),
            Fault::misuse);
}

TEST(OutputLogs, ASymbolicLinkInPlaceOfAFileOrFolderIsRefused) {
  const test::ScratchDirectory scratch;
  LogOptions options = to_files(scratch);
  options.redirects.all = Streams::out;
  Console console;
  Output output(console.out.get(), console.err.get(), options);
  output.begin_attempt("job", 0);
  const fs::path job = only_entry(options.directory);
  const fs::path elsewhere = scratch.path() / "elsewhere";
  fs::create_directory(elsewhere);
  fs::create_directory(job / "attempt_0/0");
  fs::create_symlink(elsewhere / "file", job / "attempt_0/0/stdout.log");
  fs::create_directory_symlink(elsewhere, job / "attempt_0/1");
  fs::create_directory_symlink(elsewhere, job / "attempt_1");
  EXPECT_EQ(test::fault_of([&] { output.add(0, 0); }), Fault::system);
  EXPECT_EQ(test::fault_of([&] { output.add(1, 1); }), Fault::system);
  EXPECT_EQ(test::fault_of([&] { output.begin_attempt("job", 1); }), Fault::system);
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST(OutputLogs, ARedirectedStreamGoesToItsFileAloneByteForByte) {
  const test::ScratchDirectory scratch;
  LogOptions options = to_files(scratch);
  options.redirects.of_local_rank[0] = Streams::out;
  Console console;
  Output output(console.out.get(), console.err.get(), options);
  output.begin_attempt("job", 0);
  const Output::Ends ends = output.add(0, 0);
  write_all(ends.out, "a\rb");
  write_all(ends.err, "shown\n");
  console.settle(output);
  EXPECT_EQ(console.out_text, "");
  EXPECT_EQ(console.err_text, "[0] shown\n");
  const fs::path folder = only_entry(options.directory) / "attempt_0/0";
  EXPECT_EQ(content(folder / "stdout.log"), "a\rb");
  EXPECT_FALSE(fs::exists(folder / "stderr.log"));
}

TEST(OutputLogs, ARedirectedStreamIsReadWhileNobodyReadsTheConsole) {
  const test::ScratchDirectory scratch;
  LogOptions options = to_files(scratch);
  options.redirects.of_local_rank[1] = Streams::out;
  Console console;
  Output output(console.out.get(), console.err.get(), options);
  output.begin_attempt("job", 0);
  const Output::Ends shown = output.add(0, 0);
  const Output::Ends redirected = output.add(1, 1);
  const auto serve_once = [&] {
    std::vector<pollfd> entries;
    output.watch(entries);
    if (::poll(entries.data(), entries.size(), 0) > 0) output.serve(entries);
    return std::any_of(entries.begin(), entries.end(),
                       [](const pollfd& entry) { return entry.revents != 0; });
  };
  ::fcntl(shown.out.get(), F_SETFL, O_NONBLOCK);
  const std::string line = std::string(999, 'x') + "\n";
  while (::write(shown.out.get(), line.data(), line.size()) > 0 || serve_once()) continue;
  write_all(redirected.out, "a\n");
  serve_once();
  EXPECT_EQ(content(only_entry(options.directory) / "attempt_0/1/stdout.log"), "a\n");
}

TEST(OutputLogs, ATeeKeepsEveryByteAsItCameAndShowsTheLines) {
  const test::ScratchDirectory scratch;
  LogOptions options = to_files(scratch);
  options.tee.all = options.redirects.all = Streams::both;
  Console console;
  Output output(console.out.get(), console.err.get(), options);
  output.begin_attempt("job", 0);
  Output::Ends ends = output.add(7, 0);
  const std::string bytes("10%\r20%\r\n\0\xff\n\nno newline", 23);
  write_all(ends.out, bytes);
  ends = {};
  console.settle(output);
  output.finish();
  console.settle(output);
  EXPECT_EQ(content(only_entry(options.directory) / "attempt_0/0/stdout.log"), bytes);
  EXPECT_EQ(console.out_text,
            std::string("[7] 10%\r20%\r\n[7] \0\xff\n[7] \n[7] no newline\n", 40));
}

TEST(OutputLogs, OnlyTheChosenRanksAreShownAndTheOthersGoToFiles) {
  const test::ScratchDirectory scratch;
  for (const bool with_files : {true, false}) {
    LogOptions options = with_files ? to_files(scratch) : LogOptions{};
    options.local_ranks = {1};
    Console console;
    Output output(console.out.get(), console.err.get(), options);
    output.begin_attempt("job", 0);
    const Output::Ends hidden = output.add(8, 0);
    const Output::Ends shown = output.add(9, 1);
    write_all(hidden.out, "a\n");
    write_all(hidden.err, "b\n");
    write_all(shown.out, "c\n");
    console.settle(output);
    EXPECT_EQ(console.out_text, "[9] c\n");
    EXPECT_EQ(console.err_text, "");
    if (!with_files) continue;
    EXPECT_EQ(content(only_entry(options.directory) / "attempt_0/0/stdout.log"), "a\n");
    EXPECT_EQ(content(only_entry(options.directory) / "attempt_0/0/stderr.log"), "b\n");
  }
}

// Four writes of a rank; the disk is full after the second.
void expect_full_disk_to_be_said_once(LogOptions options, const std::string& shown) {
  const test::ScratchDirectory scratch;
  options.directory = to_files(scratch).directory;
  Console console;
  Output output(console.out.get(), console.err.get(), options);
  output.begin_attempt("job", 0);
  const Output::Ends ends = output.add(0, 0);
  {
    const IgnoreSignals ignore{SIGXFSZ};  // As in the launcher.
    const test::FileSizeLimit disk(10);
    for (int i = 0; i < 4; ++i) {
      write_all(ends.out, "12345\n");
      console.settle(output);
    }
  }
  const fs::path file = only_entry(options.directory) / "attempt_0/0/stdout.log";
  EXPECT_EQ(console.out_text, shown);
  EXPECT_EQ(console.err_text, "lockstep run: writing " + file.string() +
                                  ": File too large; what follows is not in it\n");
  EXPECT_EQ(content(file), "12345\n1234");
}

TEST(OutputLogs, ReportAFullDiskOnceByFileNameAndKeepConsoleOutput) {
  LogOptions options;
  options.tee.all = Streams::out;
  expect_full_disk_to_be_said_once(options, "[0] 12345\n[0] 12345\n[0] 12345\n[0] 12345\n");
}

TEST(OutputLogs, ReportAFullDiskOnceForHiddenStreams) {
  LogOptions redirected;
  redirected.redirects.all = Streams::out;
  expect_full_disk_to_be_said_once(redirected, "");
  LogOptions hidden;
  hidden.local_ranks = {1};
  expect_full_disk_to_be_said_once(hidden, "");
}

TEST(OutputLogs, EachLineIsAnObjectWhereJsonIsAskedFor) {
  Console console;
  Output output(console.out.get(), console.err.get(), {.format = LogFormat::json});
  const Output::Ends ends = output.add(5, 1);
  write_all(ends.out, "10%\r\"quoted\"\t\\\n");
  write_all(ends.err, "broken \xc3( \xff\n");
  console.settle(output);
  output.say("it failed", Level::error);
  console.settle(output);

  const json out = json::parse(console.out_text);  // Two lines would not parse.
  EXPECT_EQ(out["rank"], 5);
  EXPECT_EQ(out["local_rank"], 1);
  EXPECT_EQ(out["stream"], "stdout");
  EXPECT_EQ(out["line"], "10%\r\"quoted\"\t\\");
  const std::string time = out["time"];
  ASSERT_EQ(time.size(), std::string("2026-01-02T03:04:05.678Z").size()) << time;
  EXPECT_EQ(time[10], 'T');
  EXPECT_EQ(time[19], '.');
  EXPECT_EQ(time.back(), 'Z');

  std::istringstream lines(console.err_text);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(json::parse(line)["line"], "broken \uFFFD( \uFFFD");
  EXPECT_EQ(json::parse(line)["stream"], "stderr");
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(json::parse(line)["message"], "it failed");
  EXPECT_EQ(json::parse(line)["level"], "error");
  EXPECT_FALSE(json::parse(line).contains("rank"));
  EXPECT_FALSE(std::getline(lines, line));
}

FileDescriptor terminal_of(Console& console) {
  int controller = -1;
  int terminal = -1;
  EXPECT_EQ(::openpty(&controller, &terminal, nullptr, nullptr, nullptr), 0);
  termios mode{};
  ::tcgetattr(terminal, &mode);
  ::cfmakeraw(&mode);
  ::tcsetattr(terminal, TCSANOW, &mode);
  ::fcntl(controller, F_SETFL, O_NONBLOCK);
  console.err_read = FileDescriptor(controller);
  return FileDescriptor(terminal);
}

void expect_on_terminal(const std::string& of_rank, const std::string& own) {
  Console console;
  const FileDescriptor terminal = terminal_of(console);
  Output output(console.out.get(), terminal.get());
  const Output::Ends ends = output.add(1, 1);
  write_all(ends.out, "a\n");
  write_all(ends.err, "b\n");
  console.settle(output);
  output.say("c");
  const Deadline deadline = in(std::chrono::seconds(10));
  while (console.err_text.size() < (of_rank + own).size() && Clock::now() < deadline)
    console.settle(output);
  EXPECT_EQ(console.out_text, "[1] a\n");
  EXPECT_EQ(console.err_text, of_rank + own);
}

TEST(OutputLogs, ColoursAreForTerminalsThatWantThem) {
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm-256color", 1);
  expect_on_terminal("\033[32m[1]\033[0m b\n", "\033[1mlockstep run: c\033[0m\n");
  ::setenv("TERM", "dumb", 1);
  expect_on_terminal("[1] b\n", "lockstep run: c\n");
  ::setenv("TERM", "xterm-256color", 1);
  ::setenv("NO_COLOR", "1", 1);
  expect_on_terminal("[1] b\n", "lockstep run: c\n");
}

std::string line_of(int rank, int number) {
  return std::to_string(rank) + ":" + std::to_string(number) + ":" +
         std::string(static_cast<std::size_t>(number * 7919 % 400), static_cast<char>('a' + rank));
}

// In chunks that do not end at line ends.
void write_lines(const FileDescriptor& to, int rank, int lines) {
  std::string rest;
  for (int number = 0; number < lines; ++number) {
    rest += line_of(rank, number) + "\n";
    if (rest.size() < 3000 && number + 1 < lines) continue;
    const std::size_t take = number + 1 < lines ? 3000 : rest.size();
    for (std::size_t done = 0; done < take;) {
      const ssize_t written = ::write(to.get(), rest.data() + done, take - done);
      ASSERT_GT(written, 0);
      done += static_cast<std::size_t>(written);
    }
    rest.erase(0, take);
  }
}

TEST(OutputLogs, TenMegabytesOfEachOfThreeRanksPassASlowReaderWholeAndInOrder) {
  ::signal(SIGPIPE, SIG_IGN);
  constexpr int ranks = 3;
  constexpr int lines = 50'000;  // 207 bytes on average.
  const test::ScratchDirectory scratch;
  LogOptions options = to_files(scratch);
  options.tee.all = Streams::out;
  Console console;
  std::optional<Output> output(std::in_place, console.out.get(), console.err.get(), options);
  output->begin_attempt("job", 0);
  std::vector<std::thread> writers;
  for (int rank = 0; rank < ranks; ++rank)
    writers.emplace_back([rank, ends = output->add(rank, rank)]() mutable {
      write_lines(ends.out, rank, lines);
      ends = {};
    });
  std::string got;
  std::thread reader([&] {
    ::fcntl(console.out_read.get(), F_SETFL, 0);
    std::array<char, 10'000> buffer;
    ssize_t length = 0;
    for (int i = 0; (length = ::read(console.out_read.get(), buffer.data(), buffer.size())) > 0;
         ++i) {
      got.append(buffer.data(), static_cast<std::size_t>(length));
      if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const Deadline deadline = in(std::chrono::seconds(90));
  while (Clock::now() < deadline) {
    std::vector<pollfd> entries;
    output->watch(entries);
    if (entries.empty()) break;  // All output has been written.
    ::poll(entries.data(), entries.size(), 100);
    output->serve(entries);
  }
  EXPECT_LT(Clock::now(), deadline);
  output.reset();  // Unblocks the writers if the test has failed.
  console.out = FileDescriptor();
  for (std::thread& writer : writers) writer.join();
  reader.join();

  std::array<int, ranks> next{};
  std::istringstream text(got);
  for (std::string line; std::getline(text, line);) {
    ASSERT_GE(line.size(), 5U);
    const int rank = line[1] - '0';
    ASSERT_TRUE(rank >= 0 && rank < ranks) << line;
    ASSERT_TRUE(line[0] == '[' && line.substr(2, 2) == "] ") << line;
    ASSERT_EQ(line.substr(4), line_of(rank, next[static_cast<std::size_t>(rank)]++));
  }
  const fs::path attempt = only_entry(options.directory) / "attempt_0";
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(next[static_cast<std::size_t>(rank)], lines) << "of rank " << rank;
    std::string all;
    for (int number = 0; number < lines; ++number) all += line_of(rank, number) + "\n";
    EXPECT_GT(all.size(), 10'000'000U);
    EXPECT_EQ(content(attempt / std::to_string(rank) / "stdout.log"), all);
  }
}

}  // namespace
}  // namespace lockstep::launch::output_logs_test
