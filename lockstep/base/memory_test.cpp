// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"

namespace lockstep::base::memory_test {
namespace {

FileDescriptor copy_of(const SharedMapping& mapping) { return duplicate(mapping.descriptor()); }

TEST(Pages, AreCountedUpwards) {
  EXPECT_EQ(page_size(), static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(whole_pages(0), page_size());
  EXPECT_EQ(whole_pages(page_size()), page_size());
  EXPECT_EQ(whole_pages(page_size() + 1), 2 * page_size());
}

TEST(SharedMapping, MakesWritesOfOneSideVisibleToTheOther) {
  SharedMapping a = SharedMapping::create("test", 10000);
  SharedMapping b = SharedMapping::attach(copy_of(a));
  EXPECT_GE(a.bytes(), 10000U);
  EXPECT_EQ(a.bytes(), b.bytes());
  EXPECT_NE(a.data(), b.data());
  a.data()[9999] = std::byte{42};
  EXPECT_EQ(b.data()[9999], std::byte{42});
}

std::size_t bytes_taken(const SharedMapping& mapping) {
  struct stat status {};
  EXPECT_EQ(::fstat(mapping.descriptor(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

TEST(SharedMapping, PagesCanBeReservedLater) {
  const std::size_t page = page_size();
  const SharedMapping mapping = SharedMapping::create("test", 10 * page, page);
  EXPECT_EQ(mapping.bytes(), 10 * page);
  EXPECT_EQ(bytes_taken(mapping), page);
  reserve_pages("test", mapping.data() + page, 2 * page);
  EXPECT_EQ(bytes_taken(mapping), 3 * page);
  EXPECT_TRUE(std::all_of(mapping.data(), mapping.data() + 3 * page,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(SharedMapping, ReportsAnErrorInsteadOfASignalWhenReservingFails) {
  const std::size_t page = page_size();
  const SharedMapping mapping = SharedMapping::create("test", 2 * page, page);
  ASSERT_EQ(::mprotect(mapping.data() + page, page, PROT_READ), 0);
  std::string text;
  EXPECT_EQ(test::fault_of([&] { reserve_pages("more", mapping.data() + page, page); }, &text),
            Fault::system);
  EXPECT_NE(text.find("reserving " + std::to_string(page) + " bytes for more"), text.npos) << text;
  const std::size_t available = available_memory();
  EXPECT_EQ(
      test::fault_of([&] { reserve_pages("too much", mapping.data(), available + (1ULL << 40)); },
                     &text),
      Fault::system);
  EXPECT_NE(text.find("too much needs"), text.npos) << text;
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
  constexpr unsigned no_exec = 8;  // MFD_NOEXEC_SEAL, the default of newer systems.
  FileDescriptor other(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING | no_exec));
  if (!other) GTEST_SKIP() << "this kernel has no MFD_NOEXEC_SEAL (before 6.3)";
  constexpr int ours = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  ASSERT_EQ(::ftruncate(other.get(), static_cast<off_t>(page_size())), 0);
  ASSERT_EQ(::fcntl(other.get(), F_ADD_SEALS, ours), 0);
  ASSERT_NE(::fcntl(other.get(), F_GET_SEALS), ours);
  EXPECT_EQ(SharedMapping::attach(std::move(other)).bytes(), page_size());
}

TEST(SharedMapping, ADescriptorThatIsNotSealedIsRefused) {
  FileDescriptor file(::memfd_create("plain", MFD_CLOEXEC));
  EXPECT_THROW(SharedMapping::attach(std::move(file)), Error);
}

}  // namespace
}  // namespace lockstep::base::memory_test
