// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/images/image_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/text.h"
#include "lockstep/data/images/folder_index.h"

namespace lockstep {
namespace {

using Nanoseconds = std::int64_t;

Nanoseconds nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000L + time.tv_nsec;
}

// No file's time of modification is later, as far as this host writes it: the kernel stamps files
// by this clock, or up to some ms behind it.
Nanoseconds now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return nanoseconds(time);
}

// Notices files that change under the index. It costs no call for any file before it is read: a
// time of modification after the listing shows a change before the first read, another size or time
// one between two reads.
class FileVersions {
 public:
  explicit FileVersions(std::size_t files)
      : versions_(std::make_unique<std::atomic<std::uint64_t>[]>(files)) {}

  // Whether the file is still the one that was listed.
  bool is_same(std::size_t file, const struct stat& status) {
    const Nanoseconds changed = nanoseconds(status.st_mtim);
    // A time in the future comes from a wrong clock, not from a change.
    if (changed > listed_ && changed <= now()) return false;
    const std::uint64_t version = version_of(status);
    std::uint64_t known = 0;
    return versions_[file].compare_exchange_strong(known, version) || known == version;
  }

 private:
  // Differs for other sizes and times, up to a chance of 2^-63; never 0, which is unknown.
  static std::uint64_t version_of(const struct stat& status) {
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
    const auto time = static_cast<std::uint64_t>(nanoseconds(status.st_mtim));
    return ((time * odd) ^ static_cast<std::uint64_t>(status.st_size)) | 1;
  }

  const Nanoseconds listed_ = now();
  std::unique_ptr<std::atomic<std::uint64_t>[]> versions_;
};

}  // namespace

class ImageFolder::Files final : public EncodedImages {
 public:
  explicit Files(const std::filesystem::path& root) : index_(root), versions_(index_.size()) {}

  const data::FolderIndex& index() const { return index_; }

  std::size_t size() const override { return index_.size(); }
  std::int64_t label(std::size_t index) const override { return index_.class_of(index); }
  std::string name(std::size_t index) const override { return index_.path_of(index); }
  void will_read(std::span<const std::size_t>) const override {}
  std::uint64_t fingerprint() const override { return index_.fingerprint(); }

  std::span<const std::uint8_t> read(std::size_t index, EncodedBuffer& buffer) const override {
    const std::string path = index_.path_of(index);
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) throw_errno(clean_text(path));
    if (!S_ISREG(status.st_mode))
      throw Error(Fault::system, clean_text(path) + ": not a regular file");
    if (!versions_.is_same(index, status)) throw_changed(path);
    const std::span<std::uint8_t> bytes = buffer.take(static_cast<std::size_t>(status.st_size));
    read_all(fd.get(), bytes, path);
    return bytes;
  }

 private:
  [[noreturn]] static void throw_changed(const std::string& path) {
    throw Error(Fault::corrupt, clean_text(path) + ": the file has changed since it was listed");
  }

  static void read_all(int fd, std::span<std::uint8_t> to, const std::string& path) {
    while (!to.empty()) {
      const ssize_t got = ::read(fd, to.data(), to.size());
      if (got < 0 && errno != EINTR) throw_errno(clean_text(path));
      if (got == 0) throw_changed(path);
      if (got > 0) to = to.subspan(static_cast<std::size_t>(got));
    }
  }

  const data::FolderIndex index_;
  mutable FileVersions versions_;
};

ImageFolder::ImageFolder(const std::filesystem::path& root, ImageOptions options)
    : ImageFolder(std::make_shared<const Files>(root), std::move(options)) {}

ImageFolder::ImageFolder(std::shared_ptr<const Files> files, ImageOptions options)
    : DecodedImages(files, std::move(options)), files_(std::move(files)) {}

const std::vector<std::string>& ImageFolder::classes() const { return files_->index().classes(); }

std::filesystem::path ImageFolder::path(std::size_t index) const {
  return files_->index().path_of(index);
}

}  // namespace lockstep
