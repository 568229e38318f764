// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/flight_recorder.h"
#include "lockstep/job/record.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::small_file_test {
namespace {

namespace fs = std::filesystem;
using test::fault_of;
using test::Rank;
using test::Ranks;

// While it lives, no file of this process may exceed 100 bytes, as on a full disk.
class FullDisk {
 public:
  FullDisk() : handler_before_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit little{100, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &little);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_before_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_before_)(int);
  rlimit before_{};
};

std::string contents_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

const std::string long_text(1000, 'x');

TEST(SmallFile, TakesThePlaceOfWhatIsThereAndIsForThisUserAlone) {
  const test::ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file";
  std::ofstream(file) << "before";
  write_small_file(file, long_text);
  EXPECT_EQ(contents_of(file), long_text);
  EXPECT_EQ(files_in(scratch.path()).size(), 1U);
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST(SmallFile, OnAFullDiskNothingIsLeftOfItAndWhatWasThereStays) {
  const test::ScratchDirectory scratch;
  const fs::path file = scratch.path() / "file";
  std::ofstream(file) << "before";
  std::string text;
  Fault fault{};
  {
    const FullDisk full;
    fault = fault_of([&] { write_small_file(file, long_text); }, &text);
  }
  EXPECT_EQ(fault, Fault::system);
  EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  EXPECT_EQ(contents_of(file), "before");
  EXPECT_EQ(files_in(scratch.path()).size(), 1U);
}

const Ranks records_in_vain("cannot write its flight record", [](const Rank& rank) {
  const fs::path folder = rank.scratch / "records";
  fs::create_directory(folder);
  ::setenv("LOCKSTEP_LOG", "info", 1);
  ::setenv("LOCKSTEP_FLIGHT_RECORD", folder.c_str(), 1);
  std::string warnings, infos;
  set_log_sink([&](LogLevel level, std::string_view text) {
    (level == LogLevel::info ? infos : warnings) += text;
  });
  {
    const FullDisk full;
    save_flight_record({.group = "world", .backend = "shm"}, long_text);
  }
  set_log_sink({});
  EXPECT_TRUE(files_in(folder).empty());
  EXPECT_NE(warnings.find("was not saved"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("File too large"), std::string::npos) << warnings;
  EXPECT_NE(infos.find("flight record: " + long_text), std::string::npos) << infos;
});

TEST(FlightRecord, ThatCannotBeSavedIsLoggedInsteadAndLeavesNoFile) {
  EXPECT_TRUE(all_succeeded(records_in_vain.run(1)));
}

const Ranks throws_in_vain("cannot write its exception", [](const Rank& rank) {
  const fs::path folder = rank.scratch / "errors";
  fs::create_directory(folder);
  ::setenv("TORCHELASTIC_ERROR_FILE", (folder / "error.json").c_str(), 1);
  {
    const FullDisk full;
    record_exception(std::make_exception_ptr(std::runtime_error(long_text)));
  }
  EXPECT_TRUE(files_in(folder).empty());
});

TEST(ErrorFile, ThatCannotBeWrittenWholeIsNotThere) {
  EXPECT_TRUE(all_succeeded(throws_in_vain.run(1)));
}

}  // namespace
}  // namespace lockstep::comm::small_file_test
