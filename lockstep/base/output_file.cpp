// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/signals.h"

namespace lockstep {
namespace {

constexpr mode_t everybody = 0666;  // Reduced by the process's umask.

// Otherwise the disk would be idle until sync().
constexpr std::uint64_t write_back_size = 8 << 20;

// Network file systems may return EINTR.
template <class Call>
int uninterrupted(Call call) {
  int result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// For a message; empty if only the file system limits files.
std::string file_size_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return " (this process may write files of at most " + std::to_string(limit.rlim_cur) +
         " bytes: ulimit -f, RLIMIT_FSIZE)";
}

// Follows links, also to missing targets. Fails for other files.
std::filesystem::path regular_file(const std::filesystem::path& target) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (error == std::errc::too_many_symbolic_link_levels)
    throw_errno("following link " + target.string(), error.value());
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw Error(Fault::system, target.string() + ": it exists and is not a regular file");
  if (!std::filesystem::is_symlink(target, error)) return target;
  const std::filesystem::path linked = std::filesystem::read_symlink(target, error);
  if (error) throw_errno("reading link " + target.string(), error.value());
  return regular_file(target.parent_path() / linked);
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, std::string name)
    : name_(name.empty() ? path.string() : std::move(name)), fd_(uninterrupted([&] {
        return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      everybody);
      })) {
  if (!fd_) fail("making");
}

void OutputFile::reserve(std::uint64_t size) {
  if (size == 0) return;
  const IgnoreSignals ignore{SIGXFSZ};
  const int result =
      uninterrupted([&] { return ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size)); });
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail("reserving space for");
}

void OutputFile::write(std::span<const std::byte> bytes) {
  const IgnoreSignals ignore{SIGXFSZ};
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_.get(), bytes.data(), bytes.size());
    if (done >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      size_ += static_cast<std::uint64_t>(done);
    } else if (errno != EINTR) {
      fail("writing");
    }
  }
  if (size_ - started_ >= write_back_size) start_writing_back();
}

void OutputFile::sync() {
  if (uninterrupted([&] { return ::fsync(fd_.get()); }) != 0) fail("syncing");
}

// Ignores errors: sync() reports them too.
void OutputFile::start_writing_back() {
  ::sync_file_range(fd_.get(), static_cast<off_t>(started_), static_cast<off_t>(size_ - started_),
                    SYNC_FILE_RANGE_WRITE);
  started_ = size_;
}

void OutputFile::fail(std::string_view action) const {
  const int error = errno;
  const std::string what = std::string(action) + ' ' + name_;
  if (error != EFBIG) throw_errno(what, error);
  throw Error(Fault::system,
              what + ": " + std::generic_category().message(error) + file_size_limit());
}

namespace {

// ".tmp-HOST-": host and pid namespace in which the writer's pid is valid.
const std::string& mark_of_writers() {
  static const std::string mark = [] {
    std::error_code unknown;
    const std::string place =
        host_name() + ' ' + std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx",
                  static_cast<unsigned long long>(hash_of_elements(place)));
    return ".tmp-" + std::string(digits.data(), 8) + "-";
  }();
  return mark;
}

// In NAME.tmp-HOST-PID-N of this host, if it begins with `prefix`.
std::optional<pid_t> writer_of(std::string_view name, std::string_view prefix) {
  const std::string_view mark = mark_of_writers();
  const std::size_t at = name.rfind(mark);
  if (!name.starts_with(prefix) || at == name.npos) return std::nullopt;
  const char* const begin = name.data() + at + mark.size();
  const char* const end = name.data() + name.size();
  pid_t pid = 0;
  unsigned serial = 0;
  const auto after = std::from_chars(begin, end, pid);
  if (after.ec != std::errc() || after.ptr == end || *after.ptr != '-') return std::nullopt;
  const auto last = std::from_chars(after.ptr + 1, end, serial);
  if (last.ec != std::errc() || last.ptr != end) return std::nullopt;
  return pid;
}

}  // namespace

void remove_unfinished(const std::filesystem::path& directory, std::string_view prefix) {
  for (const std::string& name : names_in(directory)) {
    const auto pid = writer_of(name, prefix);
    const bool has_ended = pid && *pid > 0 && ::kill(*pid, 0) != 0 && errno == ESRCH;
    if (has_ended) ::unlink((directory / name).c_str());
  }
}

int try_to_sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path name = directory.empty() ? "." : directory;
  const FileDescriptor fd(
      uninterrupted([&] { return ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  // EINVAL: some network file systems.
  if (fd && uninterrupted([&] { return ::fsync(fd.get()); }) == 0) return 0;
  return fd && errno == EINVAL ? 0 : errno;
}

void sync_directory(const std::filesystem::path& directory) {
  if (const int error = try_to_sync_directory(directory))
    throw_errno("syncing folder " + (directory.empty() ? "." : directory.string()), error);
}

AtomicFile::AtomicFile(const std::filesystem::path& target, std::uint64_t size)
    : target_(regular_file(target)) {
  open_aside();
  try {
    file_->reserve(size);
  } catch (...) {
    remove_aside();
    throw;
  }
}

AtomicFile::~AtomicFile() { remove_aside(); }

void AtomicFile::commit() {
  file_->sync();
  commit_unsynced();
  sync_directory(target_.parent_path());
}

void AtomicFile::commit_unsynced() {
  if (::rename(aside_.c_str(), target_.c_str()) != 0)
    throw_errno("renaming " + aside_.string() + " to " + target_.string());
  aside_.clear();
}

void AtomicFile::open_aside() {
  static std::atomic<int> serial{0};
  std::filesystem::path path;
  do {  // A killed process may have left the file.
    path = target_;
    path += mark_of_writers() + std::to_string(::getpid()) + "-" + std::to_string(serial++);
  } while (::faccessat(AT_FDCWD, path.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0);
  file_.emplace(path, target_.string());
  aside_ = std::move(path);
}

void AtomicFile::remove_aside() {
  if (!aside_.empty()) ::unlink(aside_.c_str());
  aside_.clear();
}

}  // namespace lockstep
