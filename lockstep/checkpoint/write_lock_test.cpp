// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/write_lock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/message_parts.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::checkpoint::write_lock_test {
namespace {

namespace fs = std::filesystem;

const LockHolder first_attempt{.host = "node3", .pid = 42, .job = "a1b2", .attempt = 0};
const LockHolder second_attempt{.host = "node4", .pid = 43, .job = "a1b2", .attempt = 1};

class FolderLock : public testing::Test {
 protected:
  std::string refusal(const LockHolder& self) {
    std::string text;
    EXPECT_EQ(test::fault_of([&] { WriteLock(root_, self); }, &text), Fault::system);
    return text;
  }

  const test::ScratchDirectory scratch_;
  const fs::path root_ = scratch_.path() / "runs" / "a";
};

TEST_F(FolderLock, IsRefusedToAnotherJobAndReportsItsHolder) {
  const WriteLock held(root_, first_attempt);
  const std::string text = refusal({.host = "node3", .pid = 44, .job = "c3d4", .attempt = 9});
  const MessageParts parts = parts_of(text);
  EXPECT_EQ(parts.who, "pid 42 on \"node3\", job \"a1b2\"") << text;
  EXPECT_TRUE(parts.to_do.starts_with("wait until the other job ends")) << text;
}

TEST_F(FolderLock, NamesNoUnidentifiedHolder) {
  const WriteLock held(root_, first_attempt);
  std::ofstream(root_ / ".lock", std::ios::trunc) << R"({"host": 1, "pid": "x"})";
  const std::string text = refusal(second_attempt);
  EXPECT_EQ(text.find("pid"), text.npos) << text;
  EXPECT_NE(text.find("another job"), text.npos) << text;
}

TEST_F(FolderLock, IsWaitedForWhereAnEarlierAttemptOfTheJobHasIt) {
  std::optional<WriteLock> held(std::in_place, root_, first_attempt);
  std::thread ending([&] {
    // Other jobs would be rejected by then.
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    held.reset();
  });
  EXPECT_NO_THROW(WriteLock(root_, second_attempt));
  ending.join();
}

TEST_F(FolderLock, DoesNotApplyToARecreatedFolder) {
  const WriteLock held(root_, first_attempt);
  EXPECT_TRUE(held.is_in_place());
  fs::remove_all(root_);
  EXPECT_FALSE(held.is_in_place());
  const WriteLock again(root_, second_attempt);
  EXPECT_TRUE(again.is_in_place());
  EXPECT_FALSE(held.is_in_place());
}

TEST_F(FolderLock, IsAnErrorWhereNoFolderCanBe) {
  fs::create_symlink("loop", scratch_.path() / "loop");
  std::ofstream(scratch_.path() / "file") << "a file";
  for (const fs::path& place : {scratch_.path() / "loop" / "a", scratch_.path() / "file" / "a",
                                scratch_.path() / std::string(300, 'x')}) {
    EXPECT_FALSE(why_not_writable(place).has_value()) << "trying says it better";
    std::string text;
    EXPECT_EQ(test::fault_of([&] { WriteLock lock(place); }, &text), Fault::system);
    EXPECT_NE(text.find(scratch_.path().string()), text.npos) << text;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::write_lock_test
