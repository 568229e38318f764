// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/error_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

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

ErrorFile::ErrorFile(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) return;
  memory_ = FileDescriptor(::memfd_create("error.json", MFD_CLOEXEC));
  if (!memory_) throw_errno("memfd_create");
  path_ = fmt::format("/proc/self/fd/{}", memory_.get());
}

std::string ErrorFile::message() const {
  const FileDescriptor file(
      memory_ ? -1 : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!memory_ && !file) return {};
  const auto json = nlohmann::json::parse(read_whole(memory_ ? memory_.get() : file.get()), nullptr,
                                          /*allow_exceptions=*/false);
  // {"message": {"message": TEXT, ...}}, or {"message": TEXT}: torchrun accepts both.
  if (!json.is_object() || !json.contains("message")) return {};
  const auto& outer = json["message"];
  if (outer.is_string()) return outer.get<std::string>();
  if (!outer.is_object() || !outer.contains("message")) return {};
  const auto& inner = outer["message"];
  return inner.is_string() ? inner.get<std::string>() : std::string();
}

}  // namespace lockstep
