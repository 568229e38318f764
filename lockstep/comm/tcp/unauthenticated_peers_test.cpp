// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "lockstep/comm/tcp/frames.h"
#include "lockstep/job/store/tcp_socket.h"
#include "tests/fault_of.h"
#include "tests/rigs/connections_rig.h"
#include "tests/rigs/store_rig.h"

namespace lockstep::comm::unauthenticated_peers_test {
namespace {

using namespace std::chrono_literals;
using test::authenticated_on;
using test::ConnectionTeam;
using test::fault_of;
using test::is_closed_by;
using test::member_of;
using test::nothing;
using test::send_all;
using test::unauthenticated_peer_on;

using Kind = Frame::Kind;

int port_of(const Connections& connections) { return host_and_port(connections.address())->second; }

std::string frame(const Frame& frame) { return encode_head(frame) + std::string(frame.bytes); }

// The test plays rank 0 of two; rank 1 is real.
class ByHand {
 public:
  ByHand()
      : real_({.member = member_of(1, 2), .on_failure = heard_.listener()}),
        socket_(authenticated_on(port_of(real_), member_of(0, 2), Channel::connections)) {}

  void connect() {
    send_all(socket_.get(), frame({.kind = Kind::rank}));
    real_.connect({{.rank = 0, .host = "host0", .pid = 100, .address = "127.0.0.1:1"}}, in(20s),
                  nothing);
  }

  void expect_lost(std::string_view bytes, const std::string& why) {
    connect();
    const auto group = real_.open("world", {0, 1});
    send_all(socket_.get(), bytes);
    EXPECT_TRUE(is_closed_by(socket_.get(), in(20s)));
    const auto failure = heard_.await_first(in(20s));
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->rank, 0);
    EXPECT_NE(failure->connection.find("broke the protocol: " + why), std::string::npos)
        << failure->connection;
  }

  Connections& real() { return real_; }
  int socket() const { return socket_.get(); }

 private:
  test::HeardFailures heard_;
  Connections real_;
  FileDescriptor socket_;
};

TEST(UnauthenticatedPeers, ThatSendNothingDelayNobody) {
  ConnectionTeam team(3);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 100; ++i)
    for (int rank = 0; rank < 3; ++rank)
      silent.push_back(unauthenticated_peer_on(port_of(team[rank])));
  const auto begin = Clock::now();
  team.connect();
  EXPECT_LT(Clock::now() - begin, 4s);  // Less than the time limit of an unauthenticated peer.
  EXPECT_TRUE(is_closed_by(silent[0].get(), in(20s)));
  EXPECT_TRUE(team.failures(0).all().empty());
}

TEST(UnauthenticatedPeers, ThatSendGarbageAreRejected) {
  ConnectionTeam team(2);
  const FileDescriptor garbage = unauthenticated_peer_on(port_of(team[1]));
  send_all(garbage.get(), std::string(4096, 'x'));
  EXPECT_TRUE(is_closed_by(garbage.get(), in(20s)));
  team.connect();
  const FileDescriptor later = unauthenticated_peer_on(port_of(team[1]));
  send_all(later.get(), std::string(4096, 'x'));
  EXPECT_TRUE(is_closed_by(later.get(), in(20s)));
  const auto groups = team.open("world");
  groups[0]->say(1, "still here");
  EXPECT_EQ(groups[1]->hear(0, in(20s), nothing), "still here");
}

TEST(UnauthenticatedPeers, WithAnotherTokenJobAttemptOrWorldAreRejected) {
  const JobToken token = make_job_token();
  Connections real({.member = member_of(1, 2), .token = token});
  const auto why_not = [&](JobMember member, const JobToken& its_token) {
    Connections other({.member = member, .token = its_token});
    std::string text;
    const Fault fault = fault_of(
        [&] {
          other.connect({{.rank = 1, .host = "host1", .pid = 101, .address = real.address()}},
                        in(1s), nothing);
        },
        &text);
    EXPECT_EQ(fault, Fault::timeout) << text;
    return text;
  };
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != text.npos;
  };
  const JobToken another_token = make_job_token();
  JobMember another_job = member_of(0, 2);
  another_job.job_id = "another";
  JobMember another_attempt = member_of(0, 2);
  another_attempt.attempt = 1;
  const auto expect_refusal = [&](const JobMember& member, const JobToken& its_token,
                                  std::string_view why) {
    const std::string text = why_not(member, its_token);
    EXPECT_TRUE(has(text, why)) << text;
  };
  {  // At the same time, as each waits for its deadline.
    const std::jthread first(
        [&] { expect_refusal(member_of(0, 2), another_token, "the rank refused this rank"); });
    const std::jthread second([&] {
      expect_refusal(another_job, token,
                     "the rank is job 'connections-test''s, this rank is of job 'another'");
    });
    const std::jthread third([&] {
      expect_refusal(another_attempt, token,
                     "the rank is of attempt 0 of the job, this rank of attempt 1");
    });
    expect_refusal(member_of(0, 3), token, "the rank expects 2 ranks, this rank 0 expects 3");
  }

  // The real rank is still expected.
  Connections right({.member = member_of(0, 2), .token = token});
  std::thread there([&] {
    real.connect({{.rank = 0, .host = "host0", .pid = 100, .address = right.address()}}, in(20s),
                 nothing);
  });
  right.connect({{.rank = 1, .host = "host1", .pid = 101, .address = real.address()}}, in(20s),
                nothing);
  there.join();
}

TEST(UnauthenticatedPeers, ThatClaimAConnectedRankAreRejected) {
  ConnectionTeam team(2);
  team.connect();
  std::string text;
  EXPECT_EQ(
      fault_of([&] { authenticated_on(port_of(team[1]), member_of(0, 2), Channel::connections); },
               &text),
      Fault::misuse);
  EXPECT_NE(text.find("rank 0 of job"), text.npos) << text;
  EXPECT_EQ(
      fault_of([&] { authenticated_on(port_of(team[1]), member_of(1, 2), Channel::connections); }),
      Fault::misuse);
  EXPECT_EQ(fault_of([&] { authenticated_on(port_of(team[1]), member_of(0, 2), Channel::store); }),
            Fault::misuse);
  const auto first_version = static_cast<Channel>(2);
  EXPECT_EQ(fault_of([&] { authenticated_on(port_of(team[1]), member_of(0, 2), first_version); }),
            Fault::misuse);
  const auto groups = team.open("world");
  groups[0]->say(1, "still here");
  EXPECT_EQ(groups[1]->hear(0, in(20s), nothing), "still here");
}

TEST(UnauthenticatedPeers, ThatDisconnectBeforeTheHandshakeMayReconnect) {
  Connections real({.member = member_of(1, 2)});
  { const auto gone = authenticated_on(port_of(real), member_of(0, 2), Channel::connections); }
  Connections other({.member = member_of(0, 2)});
  std::thread there([&] {
    real.connect({{.rank = 0, .host = "host0", .pid = 100, .address = other.address()}}, in(20s),
                 nothing);
  });
  other.connect({{.rank = 1, .host = "host1", .pid = 101, .address = real.address()}}, in(20s),
                nothing);
  there.join();
}

TEST(ConnectionsFrames, EndTheConnectionWhenTheyContainGarbage) {
  ByHand().expect_lost(std::string(100, '\xee'), "a frame has an impossible length");
}

TEST(ConnectionsFrames, EndTheConnectionWhenTheyNameRanksOutsideTheJob) {
  const std::string failure =
      encode_failure({.rank = 1, .fault = Fault::timeout, .ranks = {1, 2}, .call = "barrier"});
  ByHand().expect_lost(frame({.kind = Kind::failure, .bytes = failure}),
                       "a failure of ranks that the job does not have");
}

TEST(ConnectionsFrames, ThatAreTooLongEndTheConnection) {
  std::string head = frame({.kind = Kind::entry, .group = 1});
  head[2] = 2;  // 128 KiB.
  ByHand().expect_lost(head, "a frame has an impossible length");
}

TEST(ConnectionsFrames, BeyondTheCreditEndTheConnection) {
  const std::string part(max_frame_bytes, 'x');
  const std::string data =
      frame({.kind = Kind::data, .group = group_id("world"), .number = 1, .bytes = part});
  std::string all;
  for (int i = 0; i < 17; ++i) all += data;
  ByHand().expect_lost(all, "it sent more bytes than the buffer holds");
}

TEST(ConnectionsFrames, ForEverMoreGroupsEndTheConnection) {
  std::string all;
  for (std::uint64_t id = 1; id < 2000; ++id) all += frame({.kind = Kind::entry, .group = id});
  ByHand().expect_lost(all, "it named too many unknown groups");
}

TEST(ConnectionsFrames, EndTheConnectionWhenTheirEntriesHaveNoReceiver) {
  const std::string entry =
      frame({.kind = Kind::entry, .group = 1, .bytes = std::string(max_frame_bytes, 'x')});
  std::string all;
  for (int i = 0; i < 257; ++i) all += entry;
  ByHand().expect_lost(all, "it sent more entries");
}

TEST(ConnectionsFrames, ThatComeByteByByteAreWhole) {
  ByHand hand;
  hand.connect();
  const auto group = hand.real().open("world", {0, 1});
  for (const char byte :
       frame({.kind = Kind::entry, .group = group_id("world"), .bytes = "slow"})) {
    send_all(hand.socket(), {&byte, 1});
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(group->hear(0, in(20s), nothing), "slow");
}

}  // namespace
}  // namespace lockstep::comm::unauthenticated_peers_test
