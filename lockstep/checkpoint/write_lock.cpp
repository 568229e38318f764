// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/write_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/signals.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/job/environment.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr std::string_view lock_name = ".lock";

// A killed process keeps its lock until its memory is freed: 80 ms for each GB.
constexpr auto patience = std::chrono::seconds(1);
constexpr auto patience_with_own_job = std::chrono::seconds(30);
constexpr auto pause = std::chrono::milliseconds(10);

constexpr std::size_t longest_text = 4096;

// Syncs each new directory's parent, so that names survive a power failure.
void make_directories(const fs::path& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) == 0) return;
  make_directories(path.parent_path());
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) throw_errno(path.string());
  sync_directory(path.parent_path());
}

// Locks a regular file, because NFS cannot lock folders.
FileDescriptor open_lock(const fs::path& file) {
  for (;;) {
    FileDescriptor fd(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (fd) return fd;
    if (errno != EINTR) throw_errno(file.string());
  }
}

enum class Outcome { locked, held_by_another, unsupported };

// Errnos of every flock() on NFS without its lock manager, Lustre without the mount option flock,
// autofs and FUSE.
bool lacks_locks(int error) {
  constexpr int kernel_enotsupp = 524;  // ENOTSUPP, nameless outside of the kernel.
  return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == kernel_enotsupp;
}

Outcome lock(const FileDescriptor& fd, const fs::path& file) {
  for (;;) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return Outcome::locked;
    if (errno == EWOULDBLOCK) return Outcome::held_by_another;
    if (lacks_locks(errno)) return Outcome::unsupported;
    if (errno != EINTR) throw_errno(file.string());
  }
}

// Warns once per folder, even with several Checkpointers.
void warn_without_lock(const fs::path& root) {
  static std::mutex mutex;
  static std::set<fs::path> warned;
  const std::lock_guard guard(mutex);
  if (!warned.insert(root).second) return;
  log(LogLevel::warning,
      root.string() +
          ": this file system has no flock(), so nothing keeps a second job from saving its "
          "checkpoints here, which would damage them: give each job a folder of its own");
}

// Its ranks are exiting or being killed.
bool is_of_earlier_attempt(const std::optional<LockHolder>& holder, const LockHolder& self) {
  return holder && !self.job.empty() && holder->job == self.job && holder->attempt < self.attempt;
}

std::optional<LockHolder> parse_holder(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    return LockHolder{.host = json.at("host"),
                      .pid = json.at("pid"),
                      .job = json.at("job"),
                      .attempt = json.at("attempt")};
    // Empty, as by older versions, or written by other programs.
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

LockHolder this_holder() {
  LockHolder self{.host = host_name(), .pid = ::getpid(), .job = {}, .attempt = 0};
  try {
    const LaunchEnvironment environment = read_environment();
    self.job = environment.job_id;
    self.attempt = environment.attempt;
  } catch (const Error&) {  // Started without a launcher.
  }
  return self;
}

WriteLock::WriteLock(const fs::path& root, const LockHolder& self) : file_(root / lock_name) {
  require_folder(root);
  make_directories(root);
  if (!try_lock()) wait_for_holder(self);
  if (!is_locked_) warn_without_lock(root);
  write_holder(self);
}

bool WriteLock::is_in_place() const {
  struct stat ours {};
  struct stat named {};
  return ::fstat(fd_.get(), &ours) == 0 && ::stat(file_.c_str(), &named) == 0 &&
         ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

// Also false if the file was replaced; the next call opens the new one.
bool WriteLock::try_lock() {
  fd_ = open_lock(file_);
  const Outcome outcome = lock(fd_, file_);
  is_locked_ = outcome == Outcome::locked;
  return outcome != Outcome::held_by_another && is_in_place();
}

void WriteLock::wait_for_holder(const LockHolder& self) {
  const auto started = Clock::now();
  do {
    const auto holder = read_holder();
    const auto waited = Clock::now() - started;
    if (waited > (is_of_earlier_attempt(holder, self) ? patience_with_own_job : patience))
      refuse(holder);
    std::this_thread::sleep_for(pause);
  } while (!try_lock());
}

std::optional<LockHolder> WriteLock::read_holder() const {
  std::array<char, longest_text> text{};
  const ssize_t size = ::pread(fd_.get(), text.data(), text.size(), 0);
  if (size <= 0) return std::nullopt;
  return parse_holder({text.data(), static_cast<std::size_t>(size)});
}

void WriteLock::write_holder(const LockHolder& self) const {
  const Json json{
      {"host", self.host}, {"pid", self.pid}, {"job", self.job}, {"attempt", self.attempt}};
  const std::string text =
      json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  const IgnoreSignals ignore{SIGXFSZ};
  const ssize_t written = ::pwrite(fd_.get(), text.data(), text.size(), 0);
  const bool whole = written == static_cast<ssize_t>(text.size());
  [[maybe_unused]] const int result = ::ftruncate(fd_.get(), whole ? written : 0);
}

void WriteLock::refuse(const std::optional<LockHolder>& holder) const {
  std::string text =
      file_.parent_path().string() +
      ": another job, or another Checkpointer of this one, saves its checkpoints here";
  if (holder)
    text += "; caused by pid " + std::to_string(holder->pid) + " on " + shown(holder->host);
  if (holder && !holder->job.empty()) text += ", job " + shown(holder->job);
  throw Error(Fault::system,
              text + "; to do: wait until the other job ends, end it, or choose another folder");
}

void require_folder(const fs::path& root) {
  fs::path there = fs::path(root).lexically_normal();
  struct stat status {};
  while (::stat(there.c_str(), &status) != 0) {
    if (errno != ENOTDIR || !there.has_relative_path()) return;  // Its user reports the error.
    there = there.parent_path();
  }
  if (S_ISDIR(status.st_mode)) return;
  throw Error(Fault::system, there.string() + " is not a folder: checkpoints need a folder");
}

std::optional<std::string> why_not_writable(const fs::path& root) {
  const fs::path file = root / lock_name;
  const auto refusal = [&](const fs::path& path, int mode) -> std::optional<std::string> {
    if (::faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0) return std::nullopt;
    if (errno != EACCES && errno != EROFS && errno != EPERM) return std::nullopt;
    const std::string reason = std::generic_category().message(errno);
    return path == root ? reason : path.string() + ": " + reason;
  };
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0) {
    if (const auto refused = refusal(file, R_OK | W_OK)) return refused;
    return refusal(root, W_OK | X_OK);
  }
  fs::path there = fs::path(root).lexically_normal();
  while (::stat(there.c_str(), &status) != 0 && errno == ENOENT && there.has_relative_path())
    there = there.parent_path();
  return refusal(there.empty() ? "." : there, W_OK | X_OK);
}

}  // namespace lockstep::checkpoint
