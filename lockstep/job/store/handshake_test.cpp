// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/store/handshake.h"

#include <gtest/gtest.h>

#include "tests/fault_of.h"

namespace lockstep::job::handshake_test {
namespace {

using test::fault_of;

const JobToken token = make_job_token();
const JobMember job{"job-1", 0, 4, 2};

std::optional<std::string> nobody(const JobMember&) { return std::nullopt; }

struct Outcome {
  Verdict verdict;
  std::string error;  // The client's error; empty on success.
};

Outcome shake(const JobMember& client, const std::optional<JobToken>& client_token,
              const ServerHandshake::HolderOf& holder_of = nobody) {
  const ServerHandshake server(job, token, make_nonce());
  ClientHandshake there(client, client_token, make_nonce());
  const auto answer = server.answer(there.hello(server.challenge()), holder_of);
  Outcome outcome{answer.verdict, ""};
  try {
    there.confirm(answer.frame);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::misuse);
    outcome.error = error.what();
  }
  return outcome;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(StoreHandshake, ARankWithTheTokenIsAccepted) {
  for (int rank = 0; rank < 4; ++rank) {
    const Outcome outcome = shake({"job-1", rank, 4, 2}, token);
    EXPECT_EQ(outcome.verdict, Verdict::accepted);
    EXPECT_EQ(outcome.error, "");
  }
}

TEST(StoreHandshake, FramesHaveTheirFixedLengthsAndNoMoreThan256Bytes) {
  const ServerHandshake server(job, token, make_nonce());
  ClientHandshake client(job, token, make_nonce());
  EXPECT_EQ(server.challenge().size(), challenge_bytes);
  const std::string hello = client.hello(server.challenge());
  EXPECT_EQ(hello.size(), hello_bytes);
  EXPECT_EQ(server.answer(hello, nobody).frame.size(), verdict_bytes);
  EXPECT_EQ(server.answer("", nobody).frame.size(), verdict_bytes);
}

TEST(StoreHandshake, AnotherTokenOrNoneIsRefusedAndReceivesNoInformation) {
  for (const auto& other : {std::optional(make_job_token()), std::optional<JobToken>()}) {
    const Outcome outcome = shake({"job-1", 0, 4, 2}, other);
    EXPECT_EQ(outcome.verdict, Verdict::refused);
    EXPECT_TRUE(has(outcome.error, "token")) << outcome.error;
  }
  const ServerHandshake server(job, token, make_nonce());
  const auto answer = server.answer(std::string(hello_bytes, 'x'), nobody);
  EXPECT_EQ(answer.frame.find_first_not_of('\0', 4), std::string::npos);
}

TEST(StoreHandshake, MismatchesAreReportedToClientsWithTheToken) {
  const Outcome other_job = shake({"job-2", 0, 4, 2}, token);
  EXPECT_EQ(other_job.verdict, Verdict::other_job);
  EXPECT_TRUE(has(other_job.error, "'job-1'") && has(other_job.error, "'job-2'"));
  const Outcome other_size = shake({"job-1", 0, 5, 2}, token);
  EXPECT_EQ(other_size.verdict, Verdict::other_world_size);
  EXPECT_TRUE(has(other_size.error, "4") && has(other_size.error, "5")) << other_size.error;
  const Outcome out_of_range = shake({"job-1", 4, 4, 2}, token);
  EXPECT_EQ(out_of_range.verdict, Verdict::rank_out_of_range);
  EXPECT_TRUE(has(out_of_range.error, "rank 4")) << out_of_range.error;
  const Outcome stale = shake({"job-1", 0, 4, 1}, token);
  EXPECT_EQ(stale.verdict, Verdict::other_attempt);
  EXPECT_TRUE(has(stale.error, "attempt 2") && has(stale.error, "attempt 1")) << stale.error;
  const Outcome twin = shake({"job-1", 3, 4, 2}, token, [](const JobMember& member) {
    return std::optional("10.0.0.1:" + std::to_string(member.rank));
  });
  EXPECT_EQ(twin.verdict, Verdict::duplicate);
  EXPECT_TRUE(has(twin.error, "rank 3") && has(twin.error, "10.0.0.1:3")) << twin.error;
}

TEST(StoreHandshake, AReplayedHelloIsRefused) {
  const ServerHandshake first(job, token, make_nonce());
  const ServerHandshake second(job, token, make_nonce());
  ClientHandshake client(job, token, make_nonce());
  const std::string hello = client.hello(first.challenge());
  EXPECT_EQ(first.answer(hello, nobody).verdict, Verdict::accepted);
  EXPECT_EQ(second.answer(hello, nobody).verdict, Verdict::refused);
}

TEST(StoreHandshake, AReplayedVerdictIsNotBelieved) {
  const ServerHandshake server(job, token, make_nonce());
  ClientHandshake first(job, token, make_nonce());
  ClientHandshake second(job, token, make_nonce());
  const auto verdict = server.answer(first.hello(server.challenge()), nobody).frame;
  second.hello(server.challenge());
  first.confirm(verdict);
  EXPECT_EQ(fault_of([&] { second.confirm(verdict); }), Fault::corrupt);
}

TEST(StoreHandshake, AReflectedProofProvesNothing) {
  const ServerHandshake server(job, token, make_nonce());
  ClientHandshake client(job, token, make_nonce());
  const std::string hello = client.hello(server.challenge());
  const std::string verdict = server.answer(hello, nobody).frame;
  std::string forged = verdict;
  forged.replace(verdict_bytes - 32, 32, hello.substr(hello_bytes - 32));
  EXPECT_EQ(fault_of([&] { client.confirm(forged); }), Fault::corrupt);
  forged = hello;
  forged.replace(hello_bytes - 32, 32, verdict.substr(verdict_bytes - 32));
  EXPECT_EQ(server.answer(forged, nobody).verdict, Verdict::refused);
}

TEST(StoreHandshake, TruncatedFramesAreRefused) {
  const ServerHandshake server(job, token, make_nonce());
  ClientHandshake client(job, token, make_nonce());
  const std::string hello = client.hello(server.challenge());
  const std::string verdict = server.answer(hello, nobody).frame;
  for (std::size_t length = 0; length < hello_bytes; ++length)
    EXPECT_EQ(server.answer(hello.substr(0, length), nobody).verdict, Verdict::refused);
  for (std::size_t length = 0; length < verdict_bytes; ++length)
    EXPECT_EQ(fault_of([&] { client.confirm(verdict.substr(0, length)); }), Fault::corrupt);
  EXPECT_EQ(fault_of([&] { client.hello(server.challenge().substr(1)); }), Fault::corrupt);
}

TEST(StoreHandshake, EveryChangedBitIsNoticed) {
  const ServerHandshake server(job, token, make_nonce());
  ClientHandshake client(job, token, make_nonce());
  const std::string hello = client.hello(server.challenge());
  const std::string verdict = server.answer(hello, nobody).frame;
  for (std::size_t bit = 0; bit < 8 * hello_bytes; ++bit) {
    std::string changed = hello;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ASSERT_EQ(server.answer(changed, nobody).verdict, Verdict::refused) << bit;
  }
  for (std::size_t bit = 0; bit < 8 * verdict_bytes; ++bit) {
    std::string changed = verdict;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_THROW(client.confirm(changed), Error) << bit;
  }
}

TEST(StoreHandshake, AClientThatExpectsAnotherServiceIsRefusedWithTheReason) {
  const ServerHandshake server(job, token, make_nonce(), Channel::agents);
  ClientHandshake client(job, token, make_nonce());
  const auto answer = server.answer(client.hello(server.challenge()), nobody);
  EXPECT_EQ(answer.verdict, Verdict::other_channel);
  std::string text;
  EXPECT_EQ(fault_of([&] { client.confirm(answer.frame); }, &text), Fault::misuse);
  EXPECT_NE(text.find("the job's launcher, not a store"), text.npos) << text;
}

TEST(StoreHandshake, MembersThatNoFrameCanCarryAreMisuse) {
  const auto make = [](const JobMember& member) {
    return fault_of([&] { ClientHandshake(member, token, make_nonce()); });
  };
  EXPECT_EQ(make({"", 0, 1}), Fault::misuse);
  EXPECT_EQ(make({std::string(124, 'j'), 0, 1}), Fault::misuse);
  EXPECT_EQ(make({"j", -1, 1}), Fault::misuse);
  EXPECT_EQ(make({"j", 0, 0}), Fault::misuse);
  EXPECT_EQ(shake({std::string(123, 'j'), 0, 4, 2}, token).verdict, Verdict::other_job);
}

}  // namespace
}  // namespace lockstep::job::handshake_test
