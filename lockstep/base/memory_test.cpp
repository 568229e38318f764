// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"

namespace lockstep::base::memory_test {
namespace {

FileDescriptor copy_of(const SharedMapping& mapping) {
  return FileDescriptor(::fcntl(mapping.descriptor(), F_DUPFD_CLOEXEC, 0));
}

TEST(SharedMapping, WhatOneSideWritesTheOtherReads) {
  SharedMapping a = SharedMapping::create("test", 10000);
  SharedMapping b = SharedMapping::attach(copy_of(a));
  EXPECT_GE(a.bytes(), 10000U);
  EXPECT_EQ(a.bytes(), b.bytes());
  EXPECT_NE(a.data(), b.data());
  a.data()[9999] = std::byte{42};
  EXPECT_EQ(b.data()[9999], std::byte{42});
}

TEST(SharedMapping, ItsSizeIsSealedSoThatNobodyCanMakeAPeerCrash) {
  SharedMapping mapping = SharedMapping::create("test", 4096);
  EXPECT_EQ(::ftruncate(mapping.descriptor(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedMapping, MoreThanThereIsIsRefusedWithTheNumbersBeforeItIsTaken) {
  const std::size_t available = available_memory();
  try {
    SharedMapping::create("too much", available + (std::size_t{1} << 40));
    FAIL() << "was given";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::system);
    EXPECT_NE(std::string(error.what()).find("too much needs"), std::string::npos);
  }
  EXPECT_GT(available_memory(), available / 2);
}

TEST(SharedMapping, MoreThanTheLimitOfFileSizesIsAnErrorThatNamesItAndKillsNobody) {
  const test::FileSizeLimit limit(102400);
  std::string text;
  EXPECT_EQ(test::fault_of([] { SharedMapping::create("group", std::size_t{1} << 20); }, &text),
            Fault::system);
  EXPECT_NE(text.find("group needs 1048576 bytes"), text.npos) << text;
  EXPECT_NE(text.find("more than 102400 bytes: raise `ulimit -f`"), text.npos) << text;
}

TEST(SharedMapping, ASealThatTheKernelAddsIsNoReasonToRefuse) {
  constexpr unsigned no_exec = 8;  // MFD_NOEXEC_SEAL, which newer systems use by default.
  FileDescriptor other(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING | no_exec));
  if (!other) GTEST_SKIP() << "this kernel has no MFD_NOEXEC_SEAL (before 6.3)";
  constexpr int ours = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  ASSERT_EQ(::ftruncate(other.get(), 4096), 0);
  ASSERT_EQ(::fcntl(other.get(), F_ADD_SEALS, ours), 0);
  ASSERT_NE(::fcntl(other.get(), F_GET_SEALS), ours);
  EXPECT_EQ(SharedMapping::attach(std::move(other)).bytes(), 4096U);
}

TEST(SharedMapping, ADescriptorThatIsNotSealedIsRefused) {
  FileDescriptor file(::memfd_create("plain", MFD_CLOEXEC));
  EXPECT_THROW(SharedMapping::attach(std::move(file)), Error);
}

}  // namespace
}  // namespace lockstep::base::memory_test
