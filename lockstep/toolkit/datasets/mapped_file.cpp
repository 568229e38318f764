// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/corrupt_file.h"

namespace lockstep::datasets {

namespace {

FileStamp stamp_in(const struct stat& status) {
  constexpr std::int64_t second = 1'000'000'000;
  return {.size = static_cast<std::uint64_t>(status.st_size),
          .changed_ns = status.st_mtim.tv_sec * second + status.st_mtim.tv_nsec};
}

}  // namespace

FileDescriptor open_to_read(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_errno(clean_text(path.native()));
  return fd;
}

struct stat status_of(const FileDescriptor& fd, const std::string& name) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno(clean_text(name));
  if (!S_ISREG(status.st_mode))
    throw Error(Fault::system, clean_text(name) + ": not a regular file");
  return status;
}

FileStamp stamp_of(const FileDescriptor& fd, const std::string& name) {
  return stamp_in(status_of(fd, name));
}

std::size_t read_next(const FileDescriptor& fd, std::span<std::uint8_t> out,
                      const std::string& name) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::read(fd.get(), out.data() + done, out.size() - done);
    if (got < 0 && errno != EINTR) throw_errno(clean_text(name));
    if (got == 0) break;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return done;
}

void read_exactly_at(const FileDescriptor& fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(clean_text(name));
    if (got == 0)
      throw_corrupt(name, offset, std::to_string(out.size()) + " more bytes",
                    "the end of the file");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

MappedFile::MappedFile(std::filesystem::path path, Pages pages) : path_(std::move(path)) {
  const FileDescriptor fd = open_to_read(path_);
  stamp_ = stamp_of(fd, name());
  if (size() == 0) return;
  // MAP_NORESERVE: no memory for unwritten pages.
  const bool writes = pages == Pages::copy_on_write;
  void* const data = ::mmap(nullptr, size(), writes ? PROT_READ | PROT_WRITE : PROT_READ,
                            (writes ? MAP_PRIVATE : MAP_SHARED) | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) throw_errno(name());
  data_ = static_cast<std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      stamp_(other.stamp_),
      data_(std::exchange(other.data_, nullptr)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size());
}

void MappedFile::require_unchanged() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) throw_errno(name());
  if (stamp_in(status) != stamp_)
    throw Error(Fault::corrupt, name() + ": the file was changed while it was in use");
}

}  // namespace lockstep::datasets
