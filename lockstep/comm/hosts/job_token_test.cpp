// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/base/memory.h"
#include "lockstep/comm/hosts/device_engine.h"
#include "lockstep/job/store/handshake.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/job/store/tcp_store.h"
#include "tests/dumped_memory.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"

namespace lockstep::comm::job_token_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;

class StoreToken : public testing::Test {
 protected:
  ~StoreToken() override {
    ::unsetenv("LOCKSTEP_JOB_TOKEN");
    ::unsetenv("LOCKSTEP_JOB_TOKEN_FILE");
  }
  std::string write(const std::string& text, mode_t mode) {
    const std::string path = scratch_.path() / "token";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    ::setenv("LOCKSTEP_JOB_TOKEN_FILE", path.c_str(), 1);
    return path;
  }

  test::ScratchDirectory scratch_;
  const std::string text_{make_job_token().text()};
};

TEST_F(StoreToken, TwoMadeTokensDiffer) {
  EXPECT_EQ(text_.size(), 44u);
  EXPECT_NE(text_, make_job_token().text());
}

TEST_F(StoreToken, ShortOrStrangeTextIsRefusedAndNotRepeated) {
  for (const std::string bad : {"", "short", "twenty1charactersisno", "has a space in its midst!",
                                "====================================="}) {
    std::string message;
    EXPECT_EQ(fault_of([&] { JobToken{bad}; }, &message), Fault::misuse);
    if (!bad.empty()) {
      EXPECT_EQ(message.find(bad), message.npos);
    }
  }
  EXPECT_EQ(JobToken("twenty2charactersis-ok").text().size(), 22u);
}

TEST_F(StoreToken, TheVariableIsReadOnceAndWiped) {
  EXPECT_FALSE(read_job_token());
  ::setenv("LOCKSTEP_JOB_TOKEN", text_.c_str(), 1);
  const char* there = ::getenv("LOCKSTEP_JOB_TOKEN");
  EXPECT_EQ(read_job_token()->text(), text_);
  EXPECT_EQ(there[0], '\0');
  EXPECT_FALSE(read_job_token());
}

// --- What a core dump shows ----------------------------------------------------------------------

std::string reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

TEST(TokenMemory, TheSearchFindsWhatADumpShows) {
  const std::string end = "daednahtorwodnudesrever";
  const std::string text = reversed(end);
  EXPECT_FALSE(test::dumped_mappings_with(end).empty());
  const Secret secret(text);
  EXPECT_EQ(secret.text(), text);
}

void expect_no_dump_to_show_the_token() {
  for (const std::string& mapping : test::dumped_mappings_with(::getenv("LOCKSTEP_TEST_NEKOT")))
    ADD_FAILURE() << "the token is in " << mapping;
}

// Each rank gets the token in the environment, and the reversed token to search for.
void run_with_token(const test::Ranks& ranks, int count) {
  const JobToken token = make_job_token();
  ::setenv("LOCKSTEP_JOB_TOKEN", std::string(token.text()).c_str(), 1);
  ::setenv("LOCKSTEP_TEST_NEKOT", reversed(token.text()).c_str(), 1);
  EXPECT_TRUE(all_succeeded(ranks.run(count, std::chrono::seconds(30))));
  ::unsetenv("LOCKSTEP_JOB_TOKEN");
  ::unsetenv("LOCKSTEP_TEST_NEKOT");
}

const test::Ranks on_one_host("token on one host", [](const test::Rank&) {
  for (int i = 0; i < 2; ++i) {  // The second group needs it again.
    ProcessGroup group = init_process_group();
    group.barrier();
    expect_no_dump_to_show_the_token();
    destroy_process_group(group);
  }
});

TEST(TokenMemory, IsNotDumpedWithRanksOnOneHost) { run_with_token(on_one_host, 2); }

const test::Ranks on_two_hosts("token on two hosts", [](const test::Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  expect_no_dump_to_show_the_token();
  destroy_process_group(group);
});

TEST(TokenMemory, IsNotDumpedWithRanksOnTwoHosts) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  test::HostLayout{"ab", "gloo"}.set();
  run_with_token(on_two_hosts, 2);
  test::HostLayout::unset();
}

// Keeps the token as a launcher does, for hosts that join later.
const test::Ranks shakes_hands("token in a handshake", [](const test::Rank& rank) {
  const auto token = read_job_token();
  const JobMember member{.job_id = "job", .rank = rank.rank, .world_size = 1};
  ServerHandshake server(member, token, make_nonce());
  ClientHandshake client(member, token, make_nonce());
  const auto nobody = [](const JobMember&) { return std::nullopt; };
  client.confirm(server.answer(client.hello(server.challenge()), nobody).frame);
  expect_no_dump_to_show_the_token();
});

TEST(TokenMemory, IsNotDumpedOnEitherEndOfAHandshake) { run_with_token(shakes_hands, 1); }

// The store's process accepts the connection and sends nothing, so that this process waits.
TEST(TokenMemory, IsNotDumpedWhileARankConnectsToAStoreForDevices) {
  const FileDescriptor listener = try_to_listen(numeric_address("127.0.0.1", 0));
  const JobToken token = make_job_token();
  const DeviceMembers members{"world", {0, 1}, 1};
  HostSession session({.size = 2, .job_id = "job", .identity = "store for devices", .opens = true},
                      in(10s));
  {
    const auto memory = SharedMapping::create("store", 100);
    char* const text = reinterpret_cast<char*>(memory.data());
    const std::string port = std::to_string(local_address(listener.get()).port()) + " ";
    token.text().copy(text + port.copy(text, port.size()), token.text().size());
    session.offer(store_key(members), memory.descriptor());
  }
  const std::jthread joins([&] {
    EXPECT_EQ(fault_of([&] { open_device_store(session, members, in(3s)); }), Fault::timeout);
  });
  pollfd came{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&came, 1, 20'000), 1);
  for (const std::string& mapping : test::dumped_mappings_with(reversed(token.text())))
    ADD_FAILURE() << "the token is in " << mapping;
}

// --- Where it comes from -------------------------------------------------------------------------

TEST_F(StoreToken, AFileOfOursThatNobodyElseReadsIsRead) {
  write(text_ + "\n", 0600);
  EXPECT_EQ(read_job_token()->text(), text_);
  EXPECT_EQ(read_job_token()->text(), text_);
}

TEST_F(StoreToken, AFileThatOthersMayReadALinkAndNoFileAreRefused) {
  const std::string path = write(text_, 0640);
  std::string message;
  EXPECT_EQ(fault_of([] { read_job_token(); }, &message), Fault::misuse);
  EXPECT_NE(message.find("chmod 600"), message.npos) << message;
  ::chmod(path.c_str(), 0600);
  const std::string link = scratch_.path() / "link";
  std::filesystem::create_symlink(path, link);
  ::setenv("LOCKSTEP_JOB_TOKEN_FILE", link.c_str(), 1);
  EXPECT_EQ(fault_of([] { read_job_token(); }, &message), Fault::misuse);
  EXPECT_NE(message.find("symbolic link"), message.npos) << message;
  ::setenv("LOCKSTEP_JOB_TOKEN_FILE", "/nonexistent", 1);
  EXPECT_EQ(fault_of([] { read_job_token(); }), Fault::misuse);
}

TEST_F(StoreToken, BothVariablesAtOnceAreMisuse) {
  write(text_, 0600);
  ::setenv("LOCKSTEP_JOB_TOKEN", text_.c_str(), 1);
  EXPECT_EQ(fault_of([] { read_job_token(); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::comm::job_token_test
