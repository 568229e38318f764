// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/engine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::engine_test {
namespace {

namespace fs = std::filesystem;

const fs::path engines = ENGINES;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Empty when the plugin in tests/engines/FOLDER is accepted.
std::string refusal(const std::string& folder) try {
  load_engine("gloo", {{engines / folder, true}});
  return {};
} catch (const Error& error) {
  EXPECT_EQ(error.fault(), Fault::unsupported) << error.what();
  EXPECT_TRUE(has(error.what(), "engine gloo: ")) << error.what();
  return error.what();
}

class EnginePath {
 public:
  explicit EnginePath(const std::string& value) { ::setenv(variable, value.c_str(), 1); }
  ~EnginePath() { ::unsetenv(variable); }
  EnginePath(const EnginePath&) = delete;
  EnginePath& operator=(const EnginePath&) = delete;

 private:
  static constexpr const char* variable = "LOCKSTEP_ENGINE_PATH";
};

TEST(Engine, IsOpenedWithTheVersionOfTheLibraryUnderneath) {
  const Engine engine = load_engine("gloo", {{engines / "good"}});
  EXPECT_EQ(engine.name, "gloo");
  EXPECT_EQ(engine.path, engines / "good" / "liblockstep-engine-gloo.so");
  EXPECT_EQ(engine.version, "1.0 of a test");
  EXPECT_EQ(engine.abi->abi, static_cast<unsigned>(LOCKSTEP_ENGINE_ABI));
  EXPECT_TRUE(engine.serves(DeviceKind::cpu));
  EXPECT_FALSE(engine.serves(DeviceKind::cuda));
}

TEST(Engine, IsLoadedFromTheFirstFolderThatHasIt) {
  EXPECT_EQ(load_engine("gloo", {{engines / "none"}, {engines / "other_good"}, {engines / "good"}})
                .version,
            "2.0 of a test");
}

TEST(Engine, ThatIsWrongIsNotCoveredUpByARightOneFurtherOn) {
  EXPECT_EQ(test::fault_of([] {
              load_engine("gloo", {{engines / "other_abi"}, {engines / "good"}});
            }),
            Fault::unsupported);
}

TEST(Engine, ThatIsAbsentIsMissedWithAllFoldersAndThePackage) {
  try {
    load_engine("oneccl", {{"/first/folder", true}, {"/second/folder"}});
    FAIL() << "there is no such folder";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.fault(), Fault::unsupported);
    EXPECT_TRUE(has(text, "liblockstep-engine-oneccl.so")) << text;
    EXPECT_TRUE(has(text, "/first/folder (of LOCKSTEP_ENGINE_PATH)\n")) << text;
    EXPECT_TRUE(has(text, "\n  /second/folder")) << text;
    EXPECT_TRUE(has(text, "oneccl-devel")) << text;
  }
}

TEST(Engine, IsRefusedForADifferentAbiAndNamesBothVersions) {
  for (const auto& [folder, version] :
       {std::pair("other_abi", "version 99"), std::pair("older_abi", "version 1")}) {
    const std::string text = refusal(folder);
    EXPECT_TRUE(has(text, std::string(" has ") + version +
                              " of the plugins' ABI, and this Lockstep 2: rebuild it"))
        << text;
  }
}

TEST(Engine, ThatDescribesLessThanTheCoreUsesIsRefused) {
  EXPECT_TRUE(has(refusal("short"), "in " + std::to_string(sizeof(lockstep_engine) - 8) +
                                        " bytes instead of " +
                                        std::to_string(sizeof(lockstep_engine))));
}

TEST(Engine, UnderTheNameOfAnotherIsRefused) {
  EXPECT_TRUE(has(refusal("other_name"), "belongs to another engine, 'sneaky'"));
}

TEST(Engine, ThatLacksAFunctionIsRefused) {
  EXPECT_TRUE(has(refusal("incomplete"), "lacks a function"));
}

TEST(Engine, WithoutTheSymbolIsRefusedInTheLoadersWords) {
  const std::string text = refusal("no_symbol");
  EXPECT_TRUE(has(text, "is not a plugin for this version")) << text;
  EXPECT_TRUE(has(text, "undefined symbol: lockstep_engine_v1")) << text;
}

TEST(Engine, NamesAMissingLibraryAndThePackageThatProvidesIt) {
  const std::string text = refusal("missing_library");
  EXPECT_TRUE(has(text, "libengine_test_absent.so: cannot open shared object file")) << text;
  EXPECT_TRUE(has(text, "libgloo-dev")) << text;
}

TEST(Engine, ReportsTheErrorOfAFailedProbeAndNeedsNoOtherFunction) {
  const std::string text = refusal("failing_probe");
  EXPECT_TRUE(has(text, "cannot run here: no device of a test")) << text;
}

TEST(Engine, IsNotSkippedWhenItsPluginIsABrokenLink) {
  const test::ScratchDirectory scratch;
  fs::create_symlink("/nowhere", scratch.path() / "liblockstep-engine-gloo.so");
  try {
    load_engine("gloo", {{scratch.path()}, {engines / "good"}});
    FAIL() << "the second folder's was taken";
  } catch (const Error& error) {
    EXPECT_TRUE(has(error.what(), "cannot be loaded")) << error.what();
  }
}

TEST(Engine, IsLookedForInTheUsersFoldersBeforeOurs) {
  const EnginePath path("/a::/b c:");
  const auto folders = engine_folders();
  ASSERT_EQ(folders.size(), 4u);
  EXPECT_EQ(folders[0].path, "/a");
  EXPECT_EQ(folders[1].path, "/b c");
  EXPECT_TRUE(folders[0].from_user && folders[1].from_user);
  const fs::path own =
      fs::canonical("/proc/self/exe").parent_path();  // The test binary contains the objects.
  EXPECT_EQ(folders[2].path, own);
  EXPECT_EQ(folders[3].path, own / "lockstep-engines");
  EXPECT_FALSE(folders[2].from_user || folders[3].from_user);
}

TEST(Engine, IsLookedForInOurFoldersAloneWithoutTheVariable) {
  ::unsetenv("LOCKSTEP_ENGINE_PATH");
  EXPECT_EQ(engine_folders().size(), 2u);
}

TEST(Engine, RejectsAnUnknownNameAndListsTheKnownOnes) {
  EXPECT_EQ(test::fault_of([] { open_engine("carrier-pigeon"); }), Fault::misuse);
  EXPECT_TRUE(has(why_no_engine("carrier-pigeon"), "mpi, gloo, oneccl, nccl"));
}

TEST(Engine, IsAskedForAsAQuestionWithoutAnException) {
  const EnginePath path((engines / "failing_probe").string());
  const std::string why = why_no_engine("gloo");
  EXPECT_TRUE(has(why, "no device of a test")) << why;
}

TEST(Engine, ThatAProcessBringsIsOpenedByItsName) {
  EXPECT_TRUE(has(why_no_engine("torch"), "engine torch: only Python programs have it"));
  static lockstep_engine brought = *load_engine("gloo", {{engines / "good"}}).abi;
  brought.name = "torch";
  bring_engine(brought);
  EXPECT_EQ(open_engine("torch").abi, &brought);
  EXPECT_EQ(open_engine("torch").version, "1.0 of a test");
  lockstep_engine second = brought;
  bring_engine(second);
  EXPECT_EQ(open_engine("torch").abi, &brought);
  second.abi = 99;
  EXPECT_EQ(test::fault_of([&] { bring_engine(second); }), Fault::unsupported);
}

// Must be the last test that opens gloo, because it stays open.
TEST(Engine, IsOpenedOnceForAllThreads) {
  const EnginePath path((engines / "good").string());
  std::vector<const Engine*> opened(8);
  {
    std::vector<std::jthread> threads;
    for (auto& each : opened) threads.emplace_back([&each] { each = &open_engine("gloo"); });
  }
  for (const Engine* each : opened) EXPECT_EQ(each, opened[0]);
  const EnginePath elsewhere("/nowhere");
  EXPECT_EQ(&open_engine("gloo"), opened[0]);
  EXPECT_EQ(why_no_engine("gloo"), "");
}

}  // namespace
}  // namespace lockstep::comm::engine_test
