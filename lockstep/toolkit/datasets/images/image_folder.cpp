// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/image_folder.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/images/folder_index.h"
#include "lockstep/toolkit/datasets/images/image_reader.h"
#include "lockstep/toolkit/datasets/mapped_file.h"

namespace lockstep {
namespace {

using Nanoseconds = std::int64_t;

Nanoseconds nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000L + time.tv_nsec;
}

// Upper bound of this host's modification times: the kernel stamps files with this clock, at most
// some ms late.
Nanoseconds now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return nanoseconds(time);
}

// Detects files that change after the listing, without a system call per file. A later
// modification time shows a change before the first read; another size or time, a change between
// two reads.
class FileVersions {
 public:
  explicit FileVersions(std::size_t files)
      : versions_(std::make_unique<std::atomic<std::uint64_t>[]>(files)) {}

  bool is_same(std::size_t file, const struct stat& status) {
    const std::uint64_t version = version_of(status);
    std::uint64_t known = versions_[file];
    if (known == unknown && is_later(status)) return false;
    if (known == unknown) versions_[file].compare_exchange_strong(known, version);
    return known == unknown || known == version;
  }

 private:
  static constexpr std::uint64_t unknown = 0;

  // Whether the file was written after the listing. Both times count: a program can set a future
  // modification time. Future times do not count: a server's clock may be ahead.
  bool is_later(const struct stat& status) const {
    const Nanoseconds written = std::min(nanoseconds(status.st_mtim), nanoseconds(status.st_ctim));
    return written > listed_ && written <= now();
  }

  // Differs for other sizes and times, except with probability 2^-63. Never `unknown`.
  static std::uint64_t version_of(const struct stat& status) {
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
    const auto time = static_cast<std::uint64_t>(nanoseconds(status.st_mtim));
    return ((time * odd) ^ static_cast<std::uint64_t>(status.st_size)) | 1;
  }

  const Nanoseconds listed_ = now();
  std::unique_ptr<std::atomic<std::uint64_t>[]> versions_;
};

std::string why_not_decodable(const std::string& path) {
  const FileDescriptor fd = datasets::open_to_read(path);
  std::array<std::uint8_t, 12> beginning{};
  const std::size_t got = datasets::read_next(fd, beginning, path);
  return datasets::why_not_decodable(std::span(beginning).first(got));
}

void report_undecodable(const datasets::FolderIndex& index, const std::filesystem::path& root,
                        const BadFiles& bad_files) {
  std::map<std::string_view, std::size_t> counts;
  std::size_t all = 0;
  std::string example;
  for (std::size_t image = 0; image < index.size(); ++image) {
    const std::string_view extension = datasets::image_extension(index.name_of(image));
    // Opening all files would be slow.
    if (datasets::has_decoder(extension)) continue;
    const std::string reason = why_not_decodable(index.path_of(image));
    if (reason.empty()) continue;
    if (all++ == 0) example = clean_text(index.path_of(image)) + " is " + reason;
    ++counts[extension];
  }
  if (all == 0) return;
  std::string text =
      clean_text(root.native()) + " has " + std::to_string(all) + " files that cannot be decoded:";
  for (const auto& [extension, count] : counts)
    text +=
        (text.ends_with(':') ? " " : ", ") + std::to_string(count) + " *" + std::string(extension);
  text += "; " + example;
  const std::optional<std::size_t> at_most = bad_files.at_most();
  if (at_most && all <= *at_most) return log(LogLevel::warning, text + "; they are skipped");
  throw Error(Fault::corrupt, "ImageFolder: " + text + ": convert them to PNG or JPEG, or set " +
                                  "bad_files to BadFiles::skip(" + std::to_string(all) + ")");
}

}  // namespace

class ImageFolder::Files final : public EncodedImages {
 public:
  Files(const std::filesystem::path& root, const BadFiles& bad_files)
      : index_(root), versions_(index_.size()) {
    report_undecodable(index_, root, bad_files);
  }

  const datasets::FolderIndex& index() const { return index_; }

  std::size_t size() const override { return index_.size(); }
  std::int64_t label(std::size_t index) const override { return index_.class_of(index); }
  std::string name(std::size_t index) const override { return index_.path_of(index); }
  std::uint64_t fingerprint() const override { return index_.fingerprint(); }

  std::span<const std::uint8_t> read(std::size_t index, EncodedBuffer& buffer) const override {
    const std::string path = index_.path_of(index);
    const FileDescriptor fd = datasets::open_to_read(path);
    const struct stat status = datasets::status_of(fd, path);
    if (!versions_.is_same(index, status)) throw_changed(path);
    const std::span<std::uint8_t> bytes = buffer.take(static_cast<std::size_t>(status.st_size));
    if (datasets::read_next(fd, bytes, path) < bytes.size()) throw_changed(path);
    return bytes;
  }

 private:
  [[noreturn]] static void throw_changed(const std::string& path) {
    throw Error(Fault::corrupt, clean_text(path) + ": the file has changed since it was listed");
  }

  const datasets::FolderIndex index_;
  mutable FileVersions versions_;
};

ImageFolder::ImageFolder(const std::filesystem::path& root, ImageOptions options)
    : ImageFolder(std::make_shared<const Files>(root, options.bad_files), options) {}

ImageFolder::ImageFolder(std::shared_ptr<const Files> files, ImageOptions options)
    : DecodedImages(files, std::move(options)), files_(std::move(files)) {}

const std::vector<std::string>& ImageFolder::classes() const { return files_->index().classes(); }

std::filesystem::path ImageFolder::path(std::size_t index) const {
  return files_->index().path_of(index);
}

}  // namespace lockstep
