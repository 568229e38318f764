// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <random>
#include <span>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/output_file.h"
#include "lockstep/checkpoint/write_lock.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view aside = ".tmp-";
constexpr std::string_view damaged = ".damaged-";
constexpr std::size_t step_digits = 10;  // So that names sort by step.

bool is_unfinished(const fs::path& path) {
  const std::string name = path.filename();
  const auto end = name.find(aside);
  if (end == name.npos) return false;
  const std::string_view front = std::string_view(name).substr(0, end);
  std::error_code error;
  if (front == latest_name) return fs::is_symlink(path, error);
  return step_in(front).has_value();
}

void make_directory(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) throw_errno("making folder " + path.string());
}

// Fails if `to` exists. File systems without RENAME_NOREPLACE still refuse to replace a non-empty
// folder.
void rename_directory(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS)
    throw_errno("renaming " + from.string() + " to " + to.string());
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw_errno("renaming " + from.string() + " to " + to.string());
}

int try_to_link(const fs::path& link, const fs::path& target) {
  return ::symlink(target.c_str(), link.c_str()) == 0 ? 0 : errno;
}

void remove_or_log(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log(LogLevel::warning, path.string() + " cannot be removed: " + error.message());
}

std::vector<fs::path> entries_of(const fs::path& root) {
  require_folder(root);
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator entry(root, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    paths.push_back(entry->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw_errno("listing folder " + root.string(), error.value());
  return paths;
}

// Only logs errors: the new checkpoint is already saved.
std::vector<StepDirectory> find_checkpoints_or_log(const fs::path& root) {
  try {
    return find_checkpoints(root);
  } catch (const Error& error) {
    log(LogLevel::warning, error.what());
    return {};
  }
}

// Null for a link or no file.
const char* in_the_way(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || S_ISLNK(status.st_mode)) return nullptr;
  return S_ISDIR(status.st_mode) ? "a folder" : "a file";
}

std::string left_alone(const char* other) {
  return std::string("it is ") + other +
         ", perhaps from a copy that followed links, and is left alone";
}

}  // namespace

std::optional<std::int64_t> step_in(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  name.remove_prefix(step_prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && step >= 0 && name.size() >= step_digits ? std::optional(step) : std::nullopt;
}

std::string checkpoint_name(std::int64_t step) {
  const std::string number = std::to_string(step);
  return std::string(step_prefix) +
         std::string(step_digits - std::min(step_digits, number.size()), '0') + number;
}

std::vector<StepDirectory> find_checkpoints(const fs::path& root) {
  std::vector<StepDirectory> found;
  for (const fs::path& path : entries_of(root))
    if (const auto step = step_in(path.filename().string())) found.push_back({*step, path});
  std::ranges::sort(found, std::ranges::greater{}, &StepDirectory::step);
  return found;
}

std::optional<std::string> find_checkpoint_in(const fs::path& directory) {
  std::error_code error;
  const bool is_one = fs::exists(directory / manifest_name, error) ||
                      step_in(directory.filename().string()) || !fs::is_directory(directory, error);
  if (is_one) return directory.string();
  const std::vector<StepDirectory> found = find_checkpoints(directory);
  return found.empty() ? std::nullopt : std::optional(found.front().path.string());
}

std::string checkpoint_in(const fs::path& directory) {
  const std::optional<std::string> found = find_checkpoint_in(directory);
  require(found.has_value(), [&] {
    return directory.string() +
           " holds no checkpoint: it has neither a manifest.json nor folders such as " +
           checkpoint_name(100);
  });
  return *found;
}

fs::path beside(const fs::path& path) {
  std::array<char, 9> random{};
  std::snprintf(random.data(), random.size(), "%08x", std::random_device{}());
  fs::path name = path;
  name += aside;
  name += random.data();
  return name;
}

LatestLink::LatestLink(const fs::path& root) : path_(root / latest_name) {
  std::error_code none;
  if (fs::is_symlink(path_, none)) return;  // Links are possible.
  if (const char* other = in_the_way(path_)) {
    forgo(left_alone(other));
    return;
  }
  const fs::path link = beside(path_);
  const int error = try_to_link(link, path_.filename());
  if (error == 0) ::unlink(link.c_str());
  if (error != ENOSPC && error != EDQUOT) note_failure(error);
}

void LatestLink::set(const fs::path& target) {
  if (const char* other = in_the_way(path_)) return forgo(left_alone(other));
  const fs::path link = beside(path_);
  int error = try_to_link(link, target);
  if (error == 0 && ::rename(link.c_str(), path_.c_str()) != 0) {
    error = errno;
    ::unlink(link.c_str());
  }
  note_failure(error == 0 ? try_to_sync_directory(path_.parent_path()) : error);
}

void LatestLink::note_failure(int error) {
  if (error == 0) return;
  const bool is_clear = error == EPERM || error == EOPNOTSUPP || error == ENOSYS;
  forgo((is_clear ? "this file system has no symbolic links (" : "the link cannot be set (") +
        std::generic_category().message(error) + ")");
}

void LatestLink::forgo(const std::string& reason) {
  if (!is_forgone_)
    log(LogLevel::warning, path_.string() + " will not lead to the newest checkpoint: " + reason +
                               "; the newest is the one with the highest step");
  is_forgone_ = true;
}

StagedCheckpoint::StagedCheckpoint(fs::path root, std::int64_t step)
    : root_(std::move(root)), step_(step), target_(root_ / checkpoint_name(step)) {
  require_new();
  fs::path path = beside(target_);
  make_directory(path);
  path_ = std::move(path);
}

StagedCheckpoint::~StagedCheckpoint() {
  if (!path_.empty()) remove_or_log(path_);
}

void StagedCheckpoint::commit(std::string_view manifest, LatestLink& latest) {
  OutputFile file(path_ / manifest_name);
  file.reserve(manifest.size());
  file.write(std::as_bytes(std::span(manifest)));
  file.sync();
  sync_directory(path_);
  require_new();
  rename_directory(path_, target_);
  try {
    sync_directory(root_);
  } catch (...) {
    withdraw();
    throw;
  }
  path_.clear();
  latest.set(target_.filename());
}

void StagedCheckpoint::require_new() const {
  const std::vector<StepDirectory> found = find_checkpoints(root_);
  require(found.empty() || found.front().step < step_, [&] {
    return target_.string() + " cannot be saved, because " + found.front().path.string() +
           " exists already: resume from it, or save to another folder";
  });
}

// Frees the name for another attempt.
void StagedCheckpoint::withdraw() {
  if (::rename(target_.c_str(), path_.c_str()) == 0) return;
  path_.clear();
  log(LogLevel::warning, target_.string() + " was not saved, but keeps its name: " +
                             std::generic_category().message(errno));
}

void remove_unfinished(const fs::path& root) {
  for (const fs::path& path : entries_of(root))
    if (is_unfinished(path)) remove_or_log(path);
}

void set_damaged_aside(const fs::path& checkpoint) {
  std::string name = beside(checkpoint).string();
  name.replace(name.rfind(aside), aside.size(), damaged);
  if (::rename(checkpoint.c_str(), name.c_str()) != 0 && errno != ENOENT)
    throw_errno("renaming " + checkpoint.string() + " to " + name);
  log(LogLevel::warning, checkpoint.string() + " is damaged and was renamed to " + name);
}

void remove_old(const fs::path& root, int keep_last, std::int64_t keep_every) {
  if (keep_last <= 0) return;
  const std::vector<StepDirectory> found = find_checkpoints_or_log(root);
  for (std::size_t i = static_cast<std::size_t>(keep_last); i < found.size(); ++i) {
    if (keep_every > 0 && found[i].step % keep_every == 0) continue;
    const fs::path nameless = beside(found[i].path);
    if (::rename(found[i].path.c_str(), nameless.c_str()) == 0)
      remove_or_log(nameless);
    else
      log(LogLevel::warning,
          found[i].path.string() + " cannot be removed: " + std::generic_category().message(errno));
  }
}

}  // namespace lockstep::checkpoint
