// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>

#include "lockstep/comm/core/mailbox.h"
#include "lockstep/comm/tcp/stream.h"
#include "tests/rigs/connections_rig.h"

namespace lockstep::comm::streams_test {
namespace {

using namespace std::chrono_literals;
using test::ConnectionTeam;
using test::nothing;

// The pipes of a group with one rank per host.
class RemotePipes final : public Pipes {
 public:
  RemotePipes(Channels& group, int rank, int size) : group_(group), rank_(rank), size_(size) {
    group_.on_message([this] { ring(rank_); });
  }
  ~RemotePipes() override { group_.on_message(nullptr); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  PipeWriter& to(int peer) override { return group_.to(peer); }
  PipeReader* from(int peer) override { return peer == rank_ ? nullptr : group_.from(peer); }
  bool is_opening(int) const override { return false; }
  bool has_left(int peer) const override { return peer != rank_ && group_.has_left(peer); }
  std::optional<Failure> why_left(int) const override { return std::nullopt; }
  void ring(int peer) override {
    if (peer != rank_) return;
    ++bell_;
    bell_.notify_all();
  }
  std::uint32_t bell() const override { return bell_; }
  void await(std::uint32_t seen) override { bell_.wait(seen); }
  bool is_aborted() const override { return false; }
  void throw_if_over(const std::string&) const override {}

 private:
  Channels& group_;
  const int rank_;
  const int size_;
  std::atomic<std::uint32_t> bell_{0};
};

std::vector<std::int64_t> numbers(std::size_t count, std::int64_t first) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::shared_ptr<Message> message(Operation operation, std::vector<std::int64_t>& values, int peer,
                                 std::int64_t tag = 0) {
  auto made = std::make_shared<Message>();
  made->operation = operation;
  made->buffer = buffer_of(values);
  made->peer = peer;
  made->tag = tag;
  return made;
}

void complete(Mailbox& mailbox, Pipes& pipes, const std::vector<std::shared_ptr<Message>>& all) {
  for (const auto& one : all) mailbox.post(one);
  const auto is_complete = [&] {
    return std::all_of(all.begin(), all.end(),
                       [](const auto& one) { return one->complete.load(); });
  };
  for (;;) {
    const std::uint32_t seen = pipes.bell();
    mailbox.progress();
    if (is_complete()) return;
    pipes.await(seen);
  }
}

TEST(Streams, TakeNoMoreThanTheirCreditUntilSomebodyReads) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  const std::vector<std::byte> data(10'000'000, std::byte{7});
  PipeWriter& out = groups[0]->to(1);
  out.count_sent();
  std::size_t written = 0;
  const Deadline deadline = in(20s);
  while (written < stream_credit && Clock::now() < deadline)
    written += out.write(data.data() + written, data.size() - written);
  EXPECT_EQ(written, stream_credit);
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(out.write(data.data(), data.size()), 0U);

  // No rank has read, but other frames still arrive.
  groups[0]->say(1, "between");
  EXPECT_EQ(groups[1]->hear(0, in(20s), nothing), "between");

  std::vector<std::byte> got(data.size());
  std::size_t read = 0;
  while (read < data.size() && Clock::now() < deadline) {
    read += groups[1]->from(0)->read(got.data() + read, got.size() - read);
    written += out.write(data.data() + written, data.size() - written);
  }
  EXPECT_EQ(got, data);
}

TEST(Streams, NotifyWhenDataOrSpaceBecomesAvailable) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  RemotePipes here(*groups[0], 0, 2);
  RemotePipes there(*groups[1], 1, 2);
  const std::vector<std::byte> data(2 * stream_credit, std::byte{7});
  std::vector<std::byte> got(data.size());
  std::thread reader([&] {
    for (std::size_t read = 0; read < got.size();) {
      const std::uint32_t seen = there.bell();
      PipeReader* const in = there.from(0);
      const std::size_t more = in == nullptr ? 0 : in->read(got.data() + read, got.size() - read);
      read += more;
      if (more == 0) there.await(seen);  // Without a deadline: a missed bell hangs.
    }
  });
  here.to(1).count_sent();
  for (std::size_t written = 0; written < data.size();) {
    const std::uint32_t seen = here.bell();
    const std::size_t more = here.to(1).write(data.data() + written, data.size() - written);
    written += more;
    if (more == 0) here.await(seen);
  }
  reader.join();
  EXPECT_EQ(got, data);
}

TEST(Streams, CountMessagesThatWereNotReceived) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  PipeWriter& out = groups[0]->to(1);
  const std::byte byte{};
  for (int i = 0; i < 3; ++i) {
    out.count_sent();
    out.write(&byte, 1);
  }
  groups[0]->say(1, "sent");
  ASSERT_TRUE(groups[1]->hear(0, in(20s), nothing));
  EXPECT_EQ(out.pending(), 3U);
  EXPECT_EQ(groups[1]->from(0)->pending(), 3U);
  groups[1]->from(0)->count_received();
  groups[1]->say(0, "received");
  ASSERT_TRUE(groups[0]->hear(1, in(20s), nothing));
  EXPECT_EQ(out.pending(), 2U);
  EXPECT_EQ(groups[1]->from(0)->pending(), 2U);
}

TEST(Streams, CarryBigMessagesBothWaysAtOnce) {
  ConnectionTeam team(3);
  team.connect();
  const auto groups = team.open("world");
  constexpr std::size_t count = 1'000'000;  // 8 MB.
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      RemotePipes pipes(*groups[static_cast<std::size_t>(rank)], rank, 3);
      Mailbox mailbox(pipes, "world");
      auto mine = numbers(count, rank * 10'000'000);
      std::vector<std::vector<std::int64_t>> theirs(3, std::vector<std::int64_t>(count));
      std::vector<std::shared_ptr<Message>> all;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        all.push_back(message(Operation::send, mine, peer));
        all.push_back(message(Operation::recv, theirs[static_cast<std::size_t>(peer)], peer));
      }
      complete(mailbox, pipes, all);
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(theirs[static_cast<std::size_t>(peer)], numbers(count, peer * 10'000'000));
      }
      // Credit for the last bytes may arrive after they were read.
      groups[static_cast<std::size_t>(rank)]->say((rank + 1) % 3, "done");
      EXPECT_EQ(groups[static_cast<std::size_t>(rank)]->hear((rank + 2) % 3, in(20s), nothing),
                "done");
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(Streams, KeepMessagesThatAreAskedForInAnotherOrder) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  std::thread sender([&] {
    RemotePipes pipes(*groups[0], 0, 2);
    Mailbox mailbox(pipes, "world");
    auto first = numbers(300'000, 1);  // 2.4 MB: more than the credit.
    auto second = numbers(3, 7);
    complete(mailbox, pipes,
             {message(Operation::send, first, 1, 1), message(Operation::send, second, 1, 2)});
  });
  RemotePipes pipes(*groups[1], 1, 2);
  Mailbox mailbox(pipes, "world");
  std::vector<std::int64_t> second(3);
  complete(mailbox, pipes, {message(Operation::recv, second, 0, 2)});
  EXPECT_EQ(second, numbers(3, 7));
  std::vector<std::int64_t> first(300'000);
  complete(mailbox, pipes, {message(Operation::recv, first, 0, 1)});
  EXPECT_EQ(first, numbers(300'000, 1));
  sender.join();
}

}  // namespace
}  // namespace lockstep::comm::streams_test
