// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/checkpointer.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/base/thread.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_ranks.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/save_plan.h"
#include "lockstep/checkpoint/write_lock.h"
#include "lockstep/job/step_times.h"

namespace lockstep {
namespace {

using checkpoint::CheckpointRanks;
using checkpoint::CheckpointWriter;
using checkpoint::NamedStateDicts;
using checkpoint::SavePlan;
using checkpoint::StagedCheckpoint;
using checkpoint::StepDirectory;

namespace fs = std::filesystem;

NamedStateDicts dicts_of(const NamedStates& states) {
  NamedStateDicts dicts;
  for (const auto& [name, state] : states) dicts.emplace_back(name, state->state_dict());
  return dicts;
}

std::string encode(const std::vector<ManifestFile>& files) {
  Manifest manifest;
  manifest.files = files;
  for (const ManifestFile& file : files) manifest.values[file.part];
  return format_manifest(manifest);
}

std::vector<ManifestFile> decode_files(const std::vector<std::string>& of_ranks) {
  std::vector<ManifestFile> files;
  for (const std::string& text : of_ranks)
    for (ManifestFile& file : parse_manifest("a rank's files", text).files)
      files.push_back(std::move(file));
  std::ranges::sort(files, {}, &ManifestFile::name);
  return files;
}

CheckpointRanks ranks_of(const ProcessGroup& group, std::chrono::milliseconds timeout) {
  return {group.split(/*color=*/0), timeout};
}

std::string text_of(const std::optional<std::int64_t>& step) {
  return step ? "saves step " + std::to_string(*step) : "prepares a copy";
}

// --- Loading -------------------------------------------------------------------------------------

enum class UnknownParts { ignore, refuse };

std::string quoted(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

void require_parts(const CheckpointReader& reader, const NamedStates& states,
                   UnknownParts unknown) {
  const std::vector<std::string> parts = reader.parts();
  const std::set<std::string> all(parts.begin(), parts.end());
  std::set<std::string> saved = all;
  std::set<std::string> missing;
  for (const auto& [name, state] : states)
    if (saved.erase(name) == 0) missing.insert(name);
  require(missing.empty(), [&] {
    return reader.directory().string() + " has no part " + quoted(missing) + "; it has " +
           quoted(all);
  });
  require(unknown == UnknownParts::ignore || saved.empty(), [&] {
    return reader.directory().string() + " has the part " + quoted(saved) +
           ", which this program's state lacks";
  });
}

std::vector<StateRequest> requests_of(const CheckpointReader& reader, const NamedStates& states) {
  std::vector<StateRequest> requests;
  for (const auto& [part, state] : states) {
    try {
      requests.push_back(state->wanted(reader.contents(part)));
      reader.require_readable(part, requests.back());
    } catch (const Error& error) {
      if (error.fault() != Fault::misuse && error.fault() != Fault::mismatch) throw;
      throw Error(error.fault(),
                  reader.directory().string() + ", part '" + part + "': " + bare_text(error));
    }
  }
  return requests;
}

// Verifies adjacent tensors: each rank reads one disk range sequentially.
void verify_share(const CheckpointReader& reader, const NamedStates& states,
                  const CheckpointRanks& ranks) {
  std::uint64_t all = 0;
  for (const auto& [part, state] : states)
    for (const auto& [name, tensor] : reader.contents(part).tensors) all += tensor.data.nbytes();
  const std::uint64_t share = all / static_cast<std::uint64_t>(ranks.size()) + 1;
  std::uint64_t before = 0;
  for (const auto& [part, state] : states)
    for (const auto& [name, tensor] : reader.contents(part).tensors) {
      if (before / share == static_cast<std::uint64_t>(ranks.rank())) reader.verify(part, name);
      before += tensor.data.nbytes();
    }
}

std::vector<StateDict> read_all(const CheckpointReader& reader, const NamedStates& states,
                                const std::vector<StateRequest>& requests) {
  try {
    std::vector<StateDict> loaded;
    for (std::size_t i = 0; i < states.size(); ++i)
      loaded.push_back(reader.read(states[i].first, requests[i]));
    return loaded;
  } catch (const Error& error) {
    throw Error(
        error.fault(),
        bare_text(error) + "; it was intact when verified, and the state is half loaded now");
  }
}

// Each rank verifies a share of all tensors, then reads its data, into the program's memory if
// possible. A damaged checkpoint thus changes nothing, without a second copy of the state.
std::int64_t load_state(const fs::path& directory, const NamedStates& states,
                        const CheckpointRanks& ranks, UnknownParts unknown) {
  const InPhase phase(StepPhase::checkpoint);
  // Rank 0 chooses: a training may be saving another.
  const fs::path checkpoint =
      ranks.rank_0("name of a checkpoint", [&] { return checkpoint::checkpoint_in(directory); });

  std::optional<CheckpointReader> reader;
  std::vector<StateRequest> requests;
  ranks.all("a checkpoint to verify", [&] {
    reader.emplace(checkpoint);
    require_parts(*reader, states, unknown);
    requests = requests_of(*reader, states);
    verify_share(*reader, states, ranks);
    return std::string();
  });

  std::vector<StateDict> loaded;
  ranks.all("a checkpoint to load", [&] {
    loaded = read_all(*reader, states, requests);
    return std::string();
  });
  for (std::size_t i = 0; i < states.size(); ++i)
    states[i].second->load_state_dict(std::move(loaded[i]));
  return reader->step();
}

}  // namespace

class Checkpointer::Implementation {
 public:
  Implementation(fs::path root, CheckpointRanks ranks, const CheckpointerOptions& options)
      : root_(std::move(root)), ranks_(std::move(ranks)), options_(options) {
    require(options.keep_last >= 0 && options.keep_every >= 0,
            "Checkpointer: keep_last or keep_every is negative");
    require(!root_.empty(), "Checkpointer: the directory has no name");
    ranks_.before_end(last_act_);
  }

  ~Implementation() {
    // After an exception, notify other ranks without waiting for a disk.
    if (std::uncaught_exceptions() > exceptions_ && background_.joinable())
      ranks_.abort("an exception ends the training");
    if (background_.joinable()) background_.join();
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      log(LogLevel::error, "a checkpoint was not saved: " + std::string(error.what()));
    }
  }

  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  void prepare(const NamedStates& states) {
    require(options_.async, "Checkpointer: only asynchronous checkpoints are prepared");
    wait();
    try {
      const CheckpointWriter writer(plan(std::nullopt, states), states_, ranks_);
      states_.clear();
      ranks_.all("memory for a copy of a state", [&] {
        memory_.prepare(writer.copy_size());
        return std::string();
      });
    } catch (...) {
      states_.clear();
      throw;
    }
  }

  void save(std::int64_t step, const NamedStates& states) {
    wait();
    require(step >= 0, "Checkpointer: the step is negative");
    try {
      auto writer = std::make_unique<CheckpointWriter>(plan(step, states), states_, ranks_);
      states_.clear();
      if (options_.async) return start_writing(step, std::move(writer));
      write(step, *writer);
    } catch (...) {
      states_.clear();
      staged_.reset();
      throw;
    }
  }

  void wait() {
    if (background_.joinable()) background_.join();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  std::optional<Resumed> resume(const NamedStates& states) {
    wait();
    skipped_.clear();
    Resumed resumed;
    Fault fault = Fault::corrupt;  // The newest checkpoint's.
    for (const fs::path& candidate : candidates()) {
      try {
        resumed.step = load_state(candidate, states, ranks_, UnknownParts::refuse);
        resumed.directory = candidate;
        return resumed;
      } catch (const Error& error) {
        // All ranks get the same Error, so all continue.
        if (error.fault() != Fault::corrupt && error.fault() != Fault::system) throw;
        if (ranks_.rank() == 0)
          log(LogLevel::warning,
              "checkpoint " + candidate.filename().string() + " is skipped: " + bare_text(error));
        if (resumed.skipped.empty()) fault = error.fault();
        skipped_.push_back(candidate);
        resumed.skipped.push_back({candidate, error.what()});
      }
    }
    if (resumed.skipped.empty()) return std::nullopt;
    throw Error(fault,
                root_.string() + ": none of its " + std::to_string(resumed.skipped.size()) +
                    " checkpoints can be loaded; the newest: " + resumed.skipped.front().reason);
  }

 private:
  std::vector<fs::path> candidates() {
    const std::string names = ranks_.rank_0("checkpoints", [&] {
      open_folder_to_resume();
      std::string text;
      for (const StepDirectory& each : checkpoint::find_checkpoints(root_))
        text += each.path.filename().string() + '\n';
      return text;
    });
    std::vector<fs::path> paths;
    for (std::size_t begin = 0; begin < names.size();) {
      const std::size_t end = names.find('\n', begin);
      paths.push_back(root_ / names.substr(begin, end - begin));
      begin = end + 1;
    }
    return paths;
  }

  // Sets states_. Creates the folder of the step; prepare() passes none.
  SavePlan plan(const std::optional<std::int64_t>& step, const NamedStates& states) {
    const auto descriptions = ranks_.all("description of a state", [&] {
      states_ = dicts_of(states);
      std::string description = checkpoint::describe(states_);
      if (ranks_.rank() == 0 && step) stage(*step);
      return text_of(step) + '\n' + description;
    });
    return agree(step, descriptions);
  }

  static SavePlan agree(const std::optional<std::int64_t>& step,
                        std::vector<std::string> descriptions) {
    for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
      const std::size_t end = descriptions[rank].find('\n');
      const std::string text = descriptions[rank].substr(0, end);
      if (text != text_of(step))
        throw Error(Fault::mismatch, "rank " + std::to_string(rank) + " " + text +
                                         ", another rank " + text_of(step));
      descriptions[rank].erase(0, end + 1);
    }
    return checkpoint::make_plan(descriptions);
  }

  // Rejects a second job before it trains. Accepts a read-only folder.
  void open_folder_to_resume() {
    checkpoint::require_folder(root_);
    require_not_a_checkpoint();
    if (const auto reason = checkpoint::why_not_writable(root_))
      return log(LogLevel::warning,
                 "no checkpoint can be saved in " + root_.string() + ": " + *reason);
    open_folder();
  }

  void open_folder() {
    if (folder_ && folder_->lock.is_in_place()) return;
    require_not_a_checkpoint();
    folder_.reset();
    checkpoint::WriteLock lock(root_);
    checkpoint::remove_unfinished(root_);
    folder_.emplace(Folder{std::move(lock), checkpoint::LatestLink(root_)});
  }

  // keep_last would remove it with all that is saved in it.
  void require_not_a_checkpoint() const {
    std::error_code ignored;
    require(!fs::exists(root_ / checkpoint::manifest_name, ignored), [&] {
      return root_.string() + " is a checkpoint: give a Checkpointer the folder that contains it";
    });
  }

  void stage(std::int64_t step) {
    open_folder();
    for (const fs::path& each : std::exchange(skipped_, {})) checkpoint::set_damaged_aside(each);
    staged_ = std::make_unique<StagedCheckpoint>(root_, step);
  }

  void start_writing(std::int64_t step, std::unique_ptr<CheckpointWriter> writer) {
    ranks_.all("copy of a state", [&] {
      writer->copy_into(memory_);
      return std::string();
    });
    const std::shared_ptr<CheckpointWriter> shared = std::move(writer);
    try {
      background_ = Thread([this, step, shared] {
        try {
          write(step, *shared);
        } catch (...) {
          error_ = std::current_exception();
        }
      });
    } catch (const Error& error) {
      log(LogLevel::warning,
          std::string("a checkpoint is saved without a background thread: ") + error.what());
      write(step, *shared);
    }
  }

  // Collective. With `async` on the background thread.
  void write(std::int64_t step, CheckpointWriter& writer) {
    const std::unique_ptr<StagedCheckpoint> staged = std::move(staged_);
    const fs::path directory =
        ranks_.rank_0("folder of a checkpoint", [&] { return staged->path().string(); });
    const auto written =
        ranks_.all("a checkpoint", [&] { return encode(writer.write(directory)); });
    ranks_.rank_0("end of a checkpoint", [&] {
      staged->commit(format_manifest({.step = step,
                                      .world_size = ranks_.size(),
                                      .files = decode_files(written),
                                      .values = writer.plan().values}),
                     folder_->latest);
      checkpoint::remove_old(root_, options_.keep_last, options_.keep_every);
      return std::string();
    });
  }

  const fs::path root_;
  const CheckpointRanks ranks_;
  const CheckpointerOptions options_;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<fs::path> skipped_;  // By resume(), as damaged.
  NamedStateDicts states_;         // Set during a save.

  // Exists only on rank 0.
  struct Folder {
    checkpoint::WriteLock lock;
    checkpoint::LatestLink latest;
  };
  std::optional<Folder> folder_;  // Set while this process holds the lock.
  std::unique_ptr<StagedCheckpoint> staged_;

  checkpoint::SnapshotMemory memory_;
  const std::shared_ptr<const std::function<void()>> last_act_ =
      std::make_shared<const std::function<void()>>([this] {
        if (background_.joinable()) background_.join();
      });
  Thread background_;
  std::exception_ptr error_;  // Set by the background thread before it ends.
};

Checkpointer::Checkpointer(fs::path directory, const ProcessGroup& group,
                           CheckpointerOptions options)
    : implementation_(std::make_unique<Implementation>(
          std::move(directory), ranks_of(group, options.timeout), options)) {}

Checkpointer::~Checkpointer() = default;

void Checkpointer::prepare(const NamedStates& state) {
  const InPhase phase(StepPhase::checkpoint);
  implementation_->prepare(state);
}

void Checkpointer::save(std::int64_t step, const NamedStates& state) {
  const InPhase phase(StepPhase::checkpoint);
  implementation_->save(step, state);
}

void Checkpointer::wait() {
  const InPhase phase(StepPhase::checkpoint);
  implementation_->wait();
}

std::optional<Resumed> Checkpointer::resume(const NamedStates& state) {
  const InPhase phase(StepPhase::checkpoint);
  return implementation_->resume(state);
}

std::int64_t load_checkpoint(const fs::path& directory, const NamedStates& state,
                             const ProcessGroup& group) {
  return load_state(directory, state, {group, CheckpointerOptions{}.timeout}, UnknownParts::ignore);
}

std::optional<fs::path> latest_checkpoint(const fs::path& directory) {
  const std::vector<StepDirectory> found = checkpoint::find_checkpoints(directory);
  return found.empty() ? std::nullopt : std::optional(found.front().path);
}

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const StepDirectory& each : checkpoint::find_checkpoints(directory))
    paths.push_back(each.path);
  return paths;
}

}  // namespace lockstep
