// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t longest_name = 100;

// No separator, no "..", no character special to a shell.
std::string safe_name(std::string_view text) {
  std::string name(text.substr(0, longest_name));
  for (char& each : name)
    if (std::isalnum(static_cast<unsigned char>(each)) == 0 && each != '-' && each != '_' &&
        each != '.')
      each = '_';
  if (name.empty()) return "job";
  if (name.front() == '.' || name.front() == '-') name.front() = '_';
  return name;
}

FileDescriptor open_folder(int parent, const std::string& name, const std::string& path) {
  FileDescriptor fd(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) throw_errno("opening folder " + path);
  return fd;
}

// The folder may exist.
FileDescriptor make_folder(int parent, const std::string& name, const std::string& path) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    throw_errno("making folder " + path);
  return open_folder(parent, name, path);
}

std::string incarnation_folder(int incarnation) {
  return fmt::format("incarnation_{}", incarnation);
}

void make_directories(const std::filesystem::path& path) {
  std::filesystem::path made;
  for (const auto& part : path) {
    made /= part;
    struct stat status {};
    if (::stat(made.c_str(), &status) == 0) continue;
    if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST)
      return;  // The next step reports a missing folder.
  }
}

// Ranks may change their working directory.
std::string absolute(const std::string& directory) {
  std::error_code error;
  const auto path = std::filesystem::absolute(directory, error);
  if (error)
    throw Error(Fault::misuse,
                fmt::format("{}, the folder for logs: the working directory that this path begins "
                            "at cannot be found ({}): give an absolute path",
                            directory, error.message()));
  return path.lexically_normal();
}

constexpr std::size_t longest_file = std::size_t{1} << 20;  // A longer file is not a rank's error.

std::string read_whole(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() <= longest_file) {
    const ssize_t count =
        ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

int LogFile::write(std::string_view bytes) {
  while (fd_ && !bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const int reason = errno;
      const FileDescriptor closed = std::move(fd_);
      return reason;
    }
  }
  return 0;
}

RankFiles::RankFiles(std::string directory) {
  if (directory.empty()) return;
  directory_ = absolute(directory);
  make_directories(directory_);
  struct stat status {};
  if (::stat(directory_.c_str(), &status) == 0 && !S_ISDIR(status.st_mode))
    errno = ENOTDIR;
  else if (::access(directory_.c_str(), W_OK | X_OK) == 0)
    return;
  throw Error(Fault::misuse, fmt::format("{}, the folder for logs, cannot be written: {}",
                                         directory_, std::strerror(errno)));
}

void RankFiles::begin_attempt(const std::string& job_id, int attempt) {
  if (directory_.empty()) return;
  if (!job_) {
    job_path_ = fmt::format("{}/{}_XXXXXX", directory_, safe_name(job_id));
    if (::mkdtemp(job_path_.data()) == nullptr) throw_errno("making folder " + job_path_);
    job_ = open_folder(AT_FDCWD, job_path_, job_path_);
  }
  const std::string name = fmt::format("attempt_{}", attempt);
  attempt_path_ = job_path_ + "/" + name;
  if (::mkdirat(job_.get(), name.c_str(), 0700) != 0) throw_errno("making folder " + attempt_path_);
  attempt_ = open_folder(job_.get(), name, attempt_path_);
}

FileDescriptor RankFiles::folder_of(int local_rank, int incarnation) const {
  const std::string rank = std::to_string(local_rank);
  FileDescriptor folder = make_folder(attempt_.get(), rank, attempt_path_ + "/" + rank);
  if (incarnation == 0) return folder;
  const std::string name = incarnation_folder(incarnation);
  return make_folder(folder.get(), name, fmt::format("{}/{}/{}", attempt_path_, rank, name));
}

LogFile RankFiles::create(int local_rank, std::string_view name, int incarnation) const {
  check(static_cast<bool>(attempt_), "a log file is made before the attempt it belongs to");
  const FileDescriptor folder = folder_of(local_rank, incarnation);
  std::string path = path_of(local_rank, name, incarnation);
  FileDescriptor fd(::openat(folder.get(), std::string(name).c_str(),
                             O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             0600));
  if (!fd) throw_errno("making " + path);
  return {std::move(fd), std::move(path)};
}

std::string RankFiles::path_of(int local_rank, std::string_view name, int incarnation) const {
  if (!attempt_) return {};
  folder_of(local_rank, incarnation);
  const std::string folder = incarnation == 0 ? "" : incarnation_folder(incarnation) + "/";
  return fmt::format("{}/{}/{}{}", attempt_path_, local_rank, folder, name);
}

ErrorFile::ErrorFile(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) return;
  memory_ = FileDescriptor(::memfd_create("error.json", MFD_CLOEXEC));
  if (!memory_) throw_errno("making memory for a rank's exception: memfd_create");
  path_ = fmt::format("/proc/self/fd/{}", memory_.get());
}

std::string ErrorFile::message() const {
  const FileDescriptor file(
      memory_ ? -1 : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!memory_ && !file) return {};
  const auto json = nlohmann::json::parse(read_whole(memory_ ? memory_.get() : file.get()), nullptr,
                                          /*allow_exceptions=*/false);
  // torchrun accepts {"message": {"message": TEXT, ...}} and {"message": TEXT}.
  if (!json.is_object() || !json.contains("message")) return {};
  const auto& outer = json["message"];
  if (outer.is_string()) return outer.get<std::string>();
  if (!outer.is_object() || !outer.contains("message")) return {};
  const auto& inner = outer["message"];
  return inner.is_string() ? inner.get<std::string>() : std::string();
}

}  // namespace lockstep::launch
