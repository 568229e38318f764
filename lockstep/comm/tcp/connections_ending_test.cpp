// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/comm/tcp/frames.h"
#include "lockstep/job/store/tcp_socket.h"
#include "tests/fault_of.h"
#include "tests/rigs/connections_rig.h"
#include "tests/rigs/store_rig.h"

namespace lockstep::comm::connections_ending_test {
namespace {

using namespace std::chrono_literals;
using test::authenticated_on;
using test::fault_of;
using test::member_of;
using test::nothing;
using test::send_all;

using Kind = Frame::Kind;

std::string text_of(const Frame& frame) { return encode_head(frame) + std::string(frame.bytes); }

// The last rank has real Connections. The test plays all others through sockets with small buffers;
// `mute` never sends its rank.
class LastOf {
 public:
  explicit LastOf(
      int size, std::function<void(const Failure&)> on_failure = [](const Failure&) {},
      int mute = -1)
      : connections_(std::make_unique<Connections>(Connections::Options{
            .member = member_of(size - 1, size), .on_failure = std::move(on_failure)})) {
    const int port = host_and_port(connections_->address())->second;
    const int little = 64 << 10;
    for (int rank = 0; rank < size - 1; ++rank) {
      sockets_.push_back(authenticated_on(port, member_of(rank, size), Channel::connections));
      ::setsockopt(socket(rank), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
      if (rank != mute) say(rank, {.kind = Kind::rank, .number = static_cast<std::uint64_t>(rank)});
      ranks_.push_back({.rank = rank, .host = "a host", .pid = 1, .address = "127.0.0.1:1"});
      all_.push_back(rank);
    }
    all_.push_back(size - 1);
  }

  void connect() { connections_->connect(ranks_, in(20s), nothing); }
  std::shared_ptr<Channels> open(const std::string& name) { return connections_->open(name, all_); }
  int socket(int rank) const { return sockets_[static_cast<std::size_t>(rank)].get(); }
  void say(int rank, const Frame& frame) { send_all(socket(rank), text_of(frame)); }
  Connections& connections() { return *connections_; }

  // Returns all data up to an orderly end; empty after another end.
  std::string read_all(int rank) const {
    std::string all;
    std::array<char, 65536> part{};
    for (;;) {
      const ssize_t count = ::recv(socket(rank), part.data(), part.size(), 0);
      if (count < 0) return {};
      if (count == 0) return all;
      all.append(part.data(), static_cast<std::size_t>(count));
    }
  }

  std::future<void> finish() {
    connections_->finish();
    return std::async(std::launch::async, [this] { connections_.reset(); });
  }

 private:
  std::unique_ptr<Connections> connections_;
  std::vector<FileDescriptor> sockets_;
  std::vector<RemoteRank> ranks_;
  std::vector<int> all_;
};

void expect_all_of(const std::string& got, std::size_t entry_bytes) {
  const std::string finished = text_of({.kind = Kind::finished});
  EXPECT_GT(got.size(), entry_bytes);
  EXPECT_TRUE(got.ends_with(finished)) << got.size() << " bytes came";
}

TEST(ConnectionsEnd, WaitForNobodyLongerBecauseAnotherOneIsSlow) {
  LastOf last(3);
  last.connect();
  const auto group = last.open("world");
  const std::string entry(24'000'000, 'x');
  for (const int rank : {0, 1}) group->say(rank, entry);
  const auto begin = Clock::now();
  const auto ended = last.finish();
  const std::string got = last.read_all(1);  // Rank 0 reads nothing.
  expect_all_of(got, entry.size());
  ::shutdown(last.socket(1), SHUT_RDWR);
  ended.wait();
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST(ConnectionsEnd, WaitForAPeerThatStandsStillBeforeItReads) {
  LastOf last(2);
  last.connect();
  const auto group = last.open("world");
  const std::string entry(24'000'000, 'x');
  group->say(0, entry);
  const auto ended = last.finish();
  std::this_thread::sleep_for(1500ms);
  expect_all_of(last.read_all(0), entry.size());
  ::shutdown(last.socket(0), SHUT_RDWR);
  ended.wait();
}

TEST(ConnectionsEnd, BeforeTheReaderOfOthersHasRead) {
  LastOf slow(2), last(2);
  const std::string entry(24'000'000, 'x');
  std::vector<std::shared_ptr<Channels>> groups;
  for (LastOf* const one : {&slow, &last}) {
    one->connect();
    groups.push_back(one->open("world"));
    groups.back()->say(0, entry);
    one->connections().finish();
    one->connections().begin_to_end();
  }
  expect_all_of(last.read_all(0), entry.size());  // `slow` still waits for its reader.
  for (const LastOf* const one : {&slow, &last}) ::shutdown(one->socket(0), SHUT_RDWR);
}

TEST(ConnectionsEnd, WhenAPeerThatStillSpeaksHasReadEverything) {
  LastOf last(2);
  last.connect();
  const auto group = last.open("world");
  const std::string entry(1'000'000, 'x');
  group->say(0, entry);
  const auto ended = last.finish();
  std::this_thread::sleep_for(100ms);
  for (int i = 0; i < 100; ++i) last.say(0, {.kind = Kind::entry, .group = group_id("world")});
  std::this_thread::sleep_for(100ms);
  expect_all_of(last.read_all(0), entry.size());
  ::shutdown(last.socket(0), SHUT_RDWR);
  ended.wait();
}

// An on_failure that throws ends the thread, like any other exception.
LastOf failing(int size, int mute = -1) {
  return LastOf(
      size, [](const Failure&) { throw std::runtime_error("a listener's own"); }, mute);
}

void let_fail(LastOf& last) {
  const std::string failure = encode_failure({.rank = 0});
  last.say(0, {.kind = Kind::failure, .bytes = failure});
}

void expect_failed(Fault fault, const std::string& text) {
  EXPECT_EQ(fault, Fault::system);
  EXPECT_NE(text.find("a listener's own"), text.npos) << text;
}

TEST(ConnectionsThatFail, EndTheWaitForTheOthers) {
  LastOf last = failing(3, 1);
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    let_fail(last);
  });
  std::string text;
  const Fault fault = fault_of([&] { last.connect(); }, &text);
  expect_failed(fault, text);
  later.join();
}

TEST(ConnectionsThatFail, GiveAllGroupsUpAndEndTheHearing) {
  LastOf last = failing(2);
  last.connect();
  const auto group = last.open("world");
  const auto other = last.open("other");
  std::promise<std::string> reason;
  std::atomic<Fault> aborted_with = Fault::bug;
  other->on_abort([&](const AbortReason& why) {
    aborted_with = why.fault;
    reason.set_value(why.reason);
  });
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    let_fail(last);
  });
  std::string text;
  const Fault fault = fault_of([&] { group->hear(0, in(20s), nothing); }, &text);
  expect_failed(fault, text);
  later.join();
  auto told = reason.get_future();
  ASSERT_EQ(told.wait_for(20s), std::future_status::ready);
  expect_failed(aborted_with, told.get());

  // A later open() fails too.
  const Fault of_open = fault_of([&] { last.open("late"); }, &text);
  expect_failed(of_open, text);
  std::atomic<int> calls = 0;
  group->on_abort([&](const AbortReason&) { ++calls; });
  const Deadline deadline = in(20s);
  while (calls == 0 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace lockstep::comm::connections_ending_test
