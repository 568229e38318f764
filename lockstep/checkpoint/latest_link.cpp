// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/latest_link.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Describes a file that has the link's name and is not a link; null if the name is free or a
// link's.
const char* in_the_way(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || S_ISLNK(status.st_mode)) return nullptr;
  return S_ISDIR(status.st_mode) ? "a folder" : "a file";
}

std::string left_alone(const char* other) {
  return std::string("it is ") + other +
         ", as copying with links followed leaves one, and is left alone";
}

}  // namespace

LatestLink::LatestLink(const fs::path& root) : path_(root / latest_name) {
  if (!target().empty()) return;  // An existing link shows that links are possible.
  if (const char* other = in_the_way(path_)) {
    forgo(left_alone(other));
    return;
  }
  try {
    if (const auto link = make_aside(path_.filename())) ::unlink(link->c_str());
  } catch (const Error&) {  // For example a full disk; the first save will report it.
  }
}

fs::path LatestLink::target() const {
  std::error_code none;
  return fs::read_symlink(path_, none);
}

void LatestLink::set(const fs::path& target) {
  if (const char* other = in_the_way(path_)) return forgo(left_alone(other));
  if (target.empty()) {
    ::unlink(path_.c_str());
    return;
  }
  const auto link = make_aside(target);
  if (!link || ::rename(link->c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  ::unlink(link->c_str());
  throw_errno(path_.string(), error);
}

// Creates the link under another name. Returns nothing if the file system has no links.
std::optional<fs::path> LatestLink::make_aside(const fs::path& target) {
  const fs::path link = beside(path_);
  if (::symlink(target.c_str(), link.c_str()) == 0) return link;
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) throw_errno(link.string());
  forgo("this file system has no symbolic links (" + std::generic_category().message(errno) + ")");
  return std::nullopt;
}

void LatestLink::forgo(const std::string& reason) {
  if (!is_forgone_)
    log(LogLevel::warning, path_.string() + " will not lead to the newest checkpoint: " + reason +
                               "; the newest is the one with the highest step");
  is_forgone_ = true;
}

}  // namespace lockstep
