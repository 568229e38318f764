// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"

namespace lockstep {

void throw_corrupt(std::string_view file, std::uint64_t offset, std::string_view expected,
                   std::string_view found, std::source_location where) {
  std::string message(file);
  message += ": byte " + std::to_string(offset) + ": expected ";
  message.append(expected).append(", found ").append(found);
  throw Error(Fault::corrupt, message, where);
}

void require_memory_for(std::string_view file, std::uint64_t bytes) {
  const std::uint64_t available = available_memory();
  if (bytes <= available) return;
  throw Error(Fault::system, std::string(file) + ": its data takes " + std::to_string(bytes) +
                                 " bytes of memory, but this process may take only " +
                                 std::to_string(available) + " more");
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  fd_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) throw_errno(name());
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno(name());
  if (!S_ISREG(status.st_mode)) throw Error(Fault::system, name() + ": not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::size_t InputFile::read(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::read(fd_.get(), out.data() + done, out.size() - done);
    if (got == 0) break;
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      throw_errno(name());
    }
  }
  return done;
}

void InputFile::seek(std::uint64_t offset) {
  if (::lseek(fd_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) throw_errno(name());
}

}  // namespace lockstep
