// A disk fault or a kill during a save does not damage existing checkpoints.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/faults/forked_ranks.h"
#include "tests/faults/saved_state.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

constexpr int world_size = 2;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  names.erase(".lock");
  return names;
}

fs::path step_folder(const fs::path& root, std::int64_t step) {
  const std::string number = std::to_string(step);
  return root / ("step-" + std::string(10 - number.size(), '0') + number);
}

// A rank of a job that saves.
class Saver {
 public:
  Saver(const Rank& rank, fs::path root, bool async)
      : rank_(rank), root_(std::move(root)), checkpoints_(root_, world_, {.async = async}) {}

  void save(std::int64_t step) {
    SavedState state(state_at(step, rank_.rank, rank_.world_size));
    checkpoints_.save(step, {{"model", &state}});
    checkpoints_.wait();
  }

  // Returns the step.
  std::int64_t resume() {
    SavedState state;
    const auto resumed = checkpoints_.resume({{"model", &state}});
    return resumed ? resumed->step : 0;
  }

  // Returns the Error of the operating system; empty if there is none.
  std::string error_of_save(std::int64_t step, const std::string& fault) {
    world_.barrier();
    ::setenv("LOCKSTEP_TEST_FAULT", ("in=" + root_.string() + " " + fault).c_str(), 1);
    std::string message;
    try {
      save(step);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::system) << fault;
      message = error.what();
    }
    ::unsetenv("LOCKSTEP_TEST_FAULT");
    world_.barrier();
    return message;
  }

  enum class Outcome { failure, success, either };

  // Expects this outcome of the save of `step`. After a failure no checkpoint is damaged, and a
  // save succeeds when the fault is over. `step` - 1 was saved before.
  void save_despite(std::int64_t step, const std::string& fault,
                    Outcome expected = Outcome::failure) {
    const auto names = names_in(root_);
    const std::string message = error_of_save(step, fault);
    if (message.empty()) {
      EXPECT_NE(expected, Outcome::failure) << fault << ": was not noticed";
    } else {
      EXPECT_NE(expected, Outcome::success) << fault << ": " << message;
      EXPECT_NE(message.find(root_.string()), message.npos) << fault << ": " << message;
      EXPECT_EQ(names_in(root_), names) << fault;
      expect_whole(root_, step - 1, fault);
      world_.barrier();
      save(step);
    }
    world_.barrier();
    expect_whole(root_, step, fault);
    EXPECT_EQ(names_in(root_).size(), names.size() + 1) << fault;
    world_.barrier();
    if (rank_.rank == 0) fs::remove_all(step_folder(root_, step - 1));
    world_.barrier();
  }

  // Expects that this step is the newest one.
  static void expect_whole(const fs::path& root, std::int64_t step, const std::string& context) {
    SavedState state;
    EXPECT_EQ(load_checkpoint(root, {{"model", &state}}, ProcessGroup::self()), step) << context;
    EXPECT_TRUE(is_same(state.state(), state_at(step))) << context;
  }

  void end() { destroy_process_group(world_); }

 private:
  const Rank rank_;
  const fs::path root_;
  ProcessGroup world_ = init_process_group();
  Checkpointer checkpoints_;
};

std::string text_in(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Operation {
  int rank;
  int number;
  std::string name;
  std::string path;
};

// Whether it sets or follows the link `latest`. The save then succeeds without the link.
bool is_of_latest(const Operation& operation, const std::vector<Operation>& all) {
  const auto last = std::ranges::find_if(
      all.rbegin(), all.rend(), [](const Operation& each) { return each.name == "fsync"; });
  return operation.path.find("/latest") != operation.path.npos ||
         (operation.rank == last->rank && operation.number == last->number);
}

std::vector<Operation> read_operations(const fs::path& log) {
  std::vector<Operation> found;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    Operation operation{};
    std::istringstream(line) >> operation.rank >> operation.number >> operation.name >>
        operation.path;
    found.push_back(operation);
  }
  return found;
}

class CheckpointFaults : public testing::TestWithParam<bool> {
 protected:
  // Makes a base folder that contains step 1.
  void SetUp() override {
    EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
      Saver saver(rank, base_, GetParam());
      saver.save(1);
      saver.end();
    })));
  }

  // Returns all operations of a save.
  std::vector<Operation> operations() {
    fs::copy(base_, root_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const fs::path log = scratch_.path() / "log";
    EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
      Saver saver(rank, root_, GetParam());
      saver.error_of_save(2, "log=" + log.string());
      saver.end();
    })));
    fs::remove_all(root_);
    return read_operations(log);
  }

  // Kills a job while it saves step 2, then runs another job.
  void kill(const Operation& operation, const std::string& action) {
    const std::string fault = "rank=" + std::to_string(operation.rank) +
                              " at=" + std::to_string(operation.number) + " do=" + action;
    SCOPED_TRACE(fault + " (" + operation.name + ")");
    fs::copy(base_, root_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const fs::path done = scratch_.path() / "done";
    const auto exits = fork_ranks(world_size, [&](const Rank& rank) {
      Saver saver(rank, root_, GetParam());
      ::setenv("LOCKSTEP_TEST_FAULT", ("in=" + root_.string() + " " + fault).c_str(), 1);
      saver.save(2);
      std::ofstream(done) << "done";
      saver.end();
    });
    const Exit& victim = exits[static_cast<std::size_t>(operation.rank)];
    const Exit& other = exits[static_cast<std::size_t>(1 - operation.rank)];
    EXPECT_EQ(victim.signal, SIGKILL) << victim.output;
    if (action == "kill-all")
      EXPECT_EQ(other.signal, SIGKILL) << other.output;
    else
      EXPECT_TRUE(other.code == 0 || other.code == 10 + static_cast<int>(Fault::peer_lost))
          << other.code << " " << other.signal << other.output;
    fork_once([&] { resume(fs::exists(done)); });
    fs::remove(done);
    fs::remove_all(root_);
  }

  void resume(bool was_saved) {
    const std::string link = fs::read_symlink(root_ / "latest");
    SavedState linked;
    EXPECT_EQ(load_checkpoint(root_ / link, {{"model", &linked}}, ProcessGroup::self()),
              std::stoll(link.substr(5)));
    EXPECT_TRUE(is_same(linked.state(), state_at(std::stoll(link.substr(5)))));

    Checkpointer checkpoints(root_, ProcessGroup::self());
    SavedState state;
    const auto resumed = checkpoints.resume({{"model", &state}});
    ASSERT_TRUE(resumed.has_value());
    EXPECT_TRUE(resumed->skipped.empty()) << resumed->skipped.front().reason;
    EXPECT_TRUE(resumed->step == 2 || (resumed->step == 1 && !was_saved));
    EXPECT_TRUE(is_same(state.state(), state_at(resumed->step)));
    EXPECT_TRUE(!was_saved || link == step_folder(root_, 2).filename()) << link;

    checkpoints.save(3, {{"model", &state}});
    std::set<std::string> expected{"latest"};
    for (std::int64_t step : {std::int64_t{1}, resumed->step, std::int64_t{3}})
      expected.insert(step_folder(root_, step).filename());
    EXPECT_EQ(names_in(root_), expected);
  }

  void resume_newest() {
    Checkpointer checkpoints(root_, ProcessGroup::self());
    SavedState state;
    const auto resumed = checkpoints.resume({{"model", &state}});
    ASSERT_TRUE(resumed.has_value());
    EXPECT_TRUE(resumed->skipped.empty());
    EXPECT_EQ(resumed->directory, list_checkpoints(root_).front());
    checkpoints.save(resumed->step + 1, {{"model", &state}});
    for (const std::string& name : names_in(root_))
      EXPECT_EQ(name.find(".tmp-"), name.npos) << name;
  }

  const ScratchDirectory scratch_;
  const fs::path base_ = scratch_.path() / "base";
  const fs::path root_ = scratch_.path() / "root";
};

TEST_P(CheckpointFaults, AKillAtAnyOperationLeavesTheOldOrTheNewOne) {
  const auto all = operations();
  ASSERT_GT(std::ranges::count(all, 0, &Operation::rank), 15);
  ASSERT_GT(std::ranges::count(all, 1, &Operation::rank), 5);
  for (const Operation& operation : all) {
    kill(operation, "kill");
    if (operation.name == "write") kill(operation, "half");
    if (operation.name != "sync_file_range") kill(operation, "kill-after");
    if (HasFailure()) return;  // One failure is enough.
  }
}

TEST_P(CheckpointFaults, AKillOfAllRanksLeavesTheOldOrTheNewOne) {
  for (const Operation& operation : operations()) {
    kill(operation, "kill-all");
    if (HasFailure()) return;
  }
}

// The same for the first checkpoint: afterwards it exists completely or not at all.
TEST_P(CheckpointFaults, AKillInTheFirstSaveLeavesItOrNothing) {
  const auto save = [&](const std::string& fault) {
    return fork_ranks(world_size, [&](const Rank& rank) {
      Saver saver(rank, root_, GetParam());
      EXPECT_EQ(saver.error_of_save(1, fault), "");
      saver.end();
    });
  };
  const fs::path log = scratch_.path() / "log";
  EXPECT_TRUE(all_succeeded(save("log=" + log.string())));
  for (const Operation& operation : read_operations(log)) {
    if (operation.rank != 0) continue;
    fs::remove_all(root_);
    const std::string fault = "rank=0 at=" + std::to_string(operation.number) + " do=kill-all";
    EXPECT_EQ(save(fault)[0].signal, SIGKILL) << fault;
    fork_once([&] {
      Checkpointer checkpoints(root_, ProcessGroup::self());
      SavedState state(state_at(1));
      const bool is_there = checkpoints.resume({{"model", &state}}).has_value();
      EXPECT_TRUE(is_same(state.state(), state_at(1))) << fault;
      checkpoints.save(2, {{"model", &state}});
      std::set<std::string> expected{"latest", step_folder(root_, 2).filename()};
      if (is_there) expected.insert(step_folder(root_, 1).filename());
      EXPECT_EQ(names_in(root_), expected) << fault;
    });
    if (HasFailure()) return;
  }
}

// The newest checkpoint is never removed.
TEST_P(CheckpointFaults, AKillWhileOldOnesAreRemovedLeavesTheNewestWhole) {
  const auto save = [&](const std::string& fault) {
    fs::remove_all(root_);
    fs::copy(base_, root_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return fork_ranks(1, [&](const Rank&) {
      ::setenv("LOCKSTEP_TEST_FAULT", ("in=" + root_.string() + " " + fault).c_str(), 1);
      Checkpointer checkpoints(root_, ProcessGroup::self(), {.keep_last = 1, .async = GetParam()});
      SavedState state(state_at(2));
      checkpoints.save(2, {{"model", &state}});
      checkpoints.wait();
      EXPECT_EQ(names_in(root_).size(), 2U);
    });
  };
  const fs::path log = scratch_.path() / "log";
  EXPECT_TRUE(all_succeeded(save("log=" + log.string())));
  bool is_removing = false;
  for (const Operation& operation : read_operations(log)) {
    EXPECT_EQ(save("at=" + std::to_string(operation.number) + " do=kill")[0].signal, SIGKILL);
    is_removing = is_removing || operation.name == "unlink";
    fork_once([&] {
      Checkpointer checkpoints(root_, ProcessGroup::self(), {.keep_last = 1});
      SavedState state;
      const auto resumed = checkpoints.resume({{"model", &state}});
      ASSERT_TRUE(resumed.has_value());
      EXPECT_TRUE(resumed->skipped.empty());
      EXPECT_TRUE(is_same(state.state(), state_at(resumed->step)));
      EXPECT_TRUE(resumed->step == 2 || !is_removing);
      checkpoints.save(3, {{"model", &state}});
      EXPECT_EQ(names_in(root_),
                (std::set<std::string>{"latest", step_folder(root_, 3).filename()}));
    });
    if (HasFailure()) return;
  }
  EXPECT_TRUE(is_removing);
}

TEST_P(CheckpointFaults, AnOperationThatFailsFailsTheSaveOnAllRanksAndHarmsNothing) {
  // Calls that may fail without notice: fsync() precedes close(), and follows sync_file_range().
  const std::set<std::string> tolerated{"close", "sync_file_range"};
  using Outcome = Saver::Outcome;
  const auto all = operations();
  fs::copy(base_, root_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
    Saver saver(rank, root_, GetParam());
    std::int64_t step = 2;
    for (const Operation& operation : all)
      for (const std::string action : {"eio", "enospc"})
        saver.save_despite(step++,
                           "rank=" + std::to_string(operation.rank) +
                               " at=" + std::to_string(operation.number) + " do=" + action +
                               " name=" + operation.name,
                           is_of_latest(operation, all)         ? Outcome::success
                           : tolerated.contains(operation.name) ? Outcome::either
                                                                : Outcome::failure);
    saver.end();
  })));
}

// Afterwards a name may remain that could not be removed, but each named checkpoint is complete.
TEST_P(CheckpointFaults, ADiskThatDiesLeavesWholeOnesOnly) {
  const auto all = operations();
  fs::copy(base_, root_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
    Saver saver(rank, root_, GetParam());
    std::int64_t step = 2;
    for (const Operation& operation : all) {
      const std::string fault = "rank=" + std::to_string(operation.rank) +
                                " at=" + std::to_string(operation.number) + "+ do=eio";
      const std::string message = saver.error_of_save(step, fault);
      EXPECT_TRUE(!message.empty() || operation.name == "close" || is_of_latest(operation, all))
          << fault;
      SavedState state;
      const std::int64_t latest = load_checkpoint(root_, {{"model", &state}}, ProcessGroup::self());
      EXPECT_TRUE(latest == step || latest == step - 1) << fault;
      EXPECT_TRUE(is_same(state.state(), state_at(latest))) << fault;
      for (const fs::path& named : list_checkpoints(root_))
        EXPECT_NO_THROW(load_checkpoint(named, {{"model", &state}}, ProcessGroup::self()))
            << fault << ": " << named;
      saver.error_of_save(step + 1, "");
      Saver::expect_whole(root_, step + 1, fault);
      step += 2;
    }
    saver.end();
  })));
  fork_once([&] { resume_newest(); });
}

TEST_P(CheckpointFaults, InterruptionsAndShortWritesAreNotNoticed) {
  const auto all = operations();
  fs::copy(base_, root_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
    Saver saver(rank, root_, GetParam());
    std::int64_t step = 2;
    EXPECT_EQ(saver.error_of_save(step, "at=0 do=short"), "");
    Saver::expect_whole(root_, step++, "short");
    for (const Operation& operation : all)
      EXPECT_EQ(saver.error_of_save(step++, "rank=" + std::to_string(operation.rank) + " at=" +
                                                std::to_string(operation.number) + " do=eintr"),
                "")
          << operation.rank << " " << operation.number << " " << operation.name;
    Saver::expect_whole(root_, step - 1, "eintr");
    saver.end();
  })));
}

TEST_P(CheckpointFaults, ADiskThatIsFullAfterSoManyBytesHarmsNothing) {
  std::uintmax_t least = 1 << 20;
  for (const auto& entry : fs::directory_iterator(step_folder(base_, 1)))
    if (entry.path().extension() == ".safetensors") least = std::min(least, entry.file_size());
  EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
    Saver saver(rank, base_, GetParam());
    std::int64_t step = 2;
    for (unsigned i = 0; i < 16; ++i)
      for (const std::string victim : {"rank=0", "rank=1"})
        saver.save_despite(step++, victim + " do=full after=" + std::to_string(least * i / 16));
    saver.end();
  })));
}

TEST_P(CheckpointFaults, AFileThatMayNotBeSoLargeHarmsNothing) {
  EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
    Saver saver(rank, base_, GetParam());
    rlimit old{};
    ::getrlimit(RLIMIT_FSIZE, &old);
    const rlimit small{.rlim_cur = 1000, .rlim_max = old.rlim_max};
    if (rank.rank == 1) ::setrlimit(RLIMIT_FSIZE, &small);
    const std::string message = saver.error_of_save(2, "");
    ::setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_NE(message.find("File too large"), message.npos) << message;
    EXPECT_NE(message.find("at most 1000 bytes: ulimit -f"), message.npos) << message;
    EXPECT_NE(message.find(".safetensors"), message.npos) << message;
    Saver::expect_whole(base_, 1, "a limit");
    saver.save_despite(2, "", Saver::Outcome::either);
    saver.end();
  })));
}

// Returns true in a mount namespace where `folder` is a file system of `size`.
bool mount_small(const fs::path& folder, const char* size) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("lockstep", folder.c_str(), "tmpfs", 0, size) == 0;
}

TEST_P(CheckpointFaults, ReportAFullDiskAndSaveOnceSpaceIsFree) {
  const fs::path disk = scratch_.path() / "disk";
  fs::create_directory(disk);
  const int no_mount = 77;
  const auto exits = fork_ranks(1, [&](const Rank&) {
    if (!mount_small(disk, "size=112k")) ::_exit(no_mount);
    EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
      Saver saver(rank, disk / "runs", GetParam());
      saver.save(1);
      saver.save(2);
      for (int i = 0; i < 3; ++i) {
        const std::string message = saver.error_of_save(3, "");
        EXPECT_NE(message.find("No space left on device"), message.npos) << message;
        EXPECT_NE(message.find(disk.string()), message.npos) << message;
        Saver::expect_whole(disk / "runs", 2, "full");
      }
      if (rank.rank == 0) fs::remove_all(step_folder(disk / "runs", 1));
      saver.save(3);
      Saver::expect_whole(disk / "runs", 3, "with room");
      saver.end();
    })));
  });
  if (exits[0].code == no_mount) GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_TRUE(all_succeeded(exits));
}

// Possible on Lustre, NFS, FUSE and autofs.
TEST_P(CheckpointFaults, AFileSystemWithoutLocksServesWithOneWarning) {
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP, 524}) {
    const fs::path root = scratch_.path() / std::to_string(error);
    const auto save = [&](const Rank& rank, std::int64_t resumed) {
      ::setenv("LOCKSTEP_TEST_FLOCK_ERROR", std::to_string(error).c_str(), 1);
      std::atomic<int> warnings = 0;
      set_log_sink([&](LogLevel level, std::string_view message) {
        if (level != LogLevel::warning) return;
        ++warnings;
        EXPECT_NE(message.find("has no flock()"), message.npos) << message;
        EXPECT_NE(message.find(root.string()), message.npos) << message;
      });
      Saver saver(rank, root, GetParam());
      EXPECT_EQ(saver.resume(), resumed);
      saver.save(resumed + 1);
      saver.save(resumed + 2);
      saver.end();
      Saver::expect_whole(root, resumed + 2, std::to_string(error));
      set_log_sink({});
      EXPECT_EQ(warnings, rank.rank == 0 ? 1 : 0);
    };
    for (const std::int64_t resumed : {0, 2})
      EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
        save(rank, resumed);
      }))) << error;
  }
}

// All other errors of flock() are Errors.
TEST_P(CheckpointFaults, ALockThatFailsOtherwiseIsAnError) {
  EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
    ::setenv("LOCKSTEP_TEST_FLOCK_ERROR", std::to_string(EIO).c_str(), 1);
    Saver saver(rank, base_, GetParam());
    EXPECT_NE(saver.error_of_save(2, "").find("Input/output error"), std::string::npos);
    saver.end();
  })));
}

TEST_P(CheckpointFaults, AllowOneOfTwoJobsInOneFolderUntilItEnds) {
  const fs::path saved = scratch_.path() / "saved";
  const fs::path refused = scratch_.path() / "refused";
  const auto wait_for = [](const fs::path& mark) {
    EXPECT_TRUE(soon([&] { return fs::exists(mark) && !fs::is_empty(mark); }));
  };
  // Each rank is a separate job.
  const auto exits = fork_ranks(2, [&](const Rank& rank) {
    Checkpointer checkpoints(base_, ProcessGroup::self(), {.async = GetParam()});
    SavedState state(state_at(2));
    const auto save = [&](std::int64_t step) {
      checkpoints.save(step, {{"model", &state}});
      checkpoints.wait();
    };
    if (rank.rank == 0) {
      save(2);
      std::ofstream(saved) << ::getpid();
      wait_for(refused);
      save(3);
      ::raise(SIGKILL);
    }
    wait_for(saved);
    std::string message;
    EXPECT_EQ(fault_of([&] { checkpoints.resume({{"model", &state}}); }, &message), Fault::system);
    EXPECT_NE(message.find(base_.string() + ": another job"), message.npos) << message;
    EXPECT_NE(message.find("pid " + text_in(saved) + " on \"" + host_name()), message.npos)
        << message;
    EXPECT_EQ(names_in(base_).size(), 3U);
    std::ofstream(refused) << "refused";
    // Until the kernel has cleaned up the other process.
    for (int tries = 0; tries < 1000; ++tries) {
      try {
        return save(4);
      } catch (const Error&) {
        ::usleep(10'000);
      }
    }
    save(4);
  });
  EXPECT_EQ(exits[0].signal, SIGKILL) << exits[0].output;
  EXPECT_EQ(exits[1].code, 0) << exits[1].output;
  EXPECT_EQ(fs::read_symlink(base_ / "latest"), step_folder(base_, 4).filename());
}

// vfat returns the first three errors, and network file systems may; mounted object stores return
// others. The last two are those of a full disk.
TEST_P(CheckpointFaults, AFileSystemWithoutLinksKeepsCheckpointsAndIsNamedOnce) {
  for (const std::string refusal :
       {"eperm", "enosys", "eopnotsupp", "eio", "eacces", "einval", "enospc", "edquot"}) {
    const fs::path folder = root_ / refusal;
    EXPECT_TRUE(all_succeeded(fork_ranks(world_size, [&](const Rank& rank) {
      int warnings = 0;
      set_log_sink([&](LogLevel, std::string_view text) {
        if (text.find("latest will not lead to the newest") != text.npos) ++warnings;
      });
      Saver saver(rank, folder, GetParam());
      for (const std::int64_t step : {1, 2})
        EXPECT_EQ(saver.error_of_save(step, "at=0 only=symlink do=" + refusal), "");
      EXPECT_EQ(warnings, rank.rank == 0 ? 1 : 0);
      Saver::expect_whole(folder, 2, refusal);
      EXPECT_EQ(names_in(folder), (std::set<std::string>{step_folder(folder, 1).filename(),
                                                         step_folder(folder, 2).filename()}));
      saver.end();
      set_log_sink({});
    })));
  }
}

// The folder may be on a read-only mount, for example. Root may write where others may not.
TEST_P(CheckpointFaults, AFolderThatMayOnlyBeReadIsResumedFrom) {
  fs::permissions(scratch_.path(), fs::perms(0755));
  fs::permissions(base_, fs::perms(0555));
  EXPECT_TRUE(all_succeeded(fork_ranks(1, [&](const Rank&) {
    constexpr uid_t nobody = 65534;
    if (::geteuid() == 0 && ::setresuid(nobody, nobody, nobody) != 0) ::_exit(1);
    Checkpointer checkpoints(base_, ProcessGroup::self(), {.async = GetParam()});
    SavedState state;
    const auto resumed = checkpoints.resume({{"model", &state}});
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(resumed->step, 1);
    std::string message;
    EXPECT_EQ(fault_of([&] { checkpoints.save(2, {{"model", &state}}); }, &message), Fault::system);
    EXPECT_NE(message.find("Permission denied"), message.npos) << message;
  })));
  fs::permissions(base_, fs::perms(0755));
}

INSTANTIATE_TEST_SUITE_P(Save, CheckpointFaults, testing::Bool(), [](const auto& each) {
  return each.param ? "InTheBackground" : "AtOnce";
});

}  // namespace
}  // namespace lockstep::test
