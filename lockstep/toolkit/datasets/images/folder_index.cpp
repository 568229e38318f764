// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/folder_index.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"

namespace lockstep::datasets {
namespace {

constexpr std::array<std::string_view, 9> extensions{".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                     ".pgm", ".tif",  ".tiff", ".webp"};

// --- Order ---------------------------------------------------------------------------------------

// Bytes of the first UTF-8 character; 0 without one.
std::size_t character_size(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead < 0xf0) {
    // Neither an overlong form nor a surrogate.
    const bool allowed = (lead != 0xe0 || byte(1) >= 0xa0) && (lead != 0xed || byte(1) < 0xa0);
    return allowed && continues(1) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead < 0xf5) {
    const bool allowed = (lead != 0xf0 || byte(1) >= 0x90) && (lead != 0xf4 || byte(1) < 0x90);
    return allowed && continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// os.fsdecode(): UTF-8, with a surrogate for each other byte (PEP 383).
std::u32string decoded(std::string_view name) {
  std::u32string text;
  while (!name.empty()) {
    const auto lead = static_cast<unsigned char>(name[0]);
    const std::size_t size = character_size(name);
    char32_t code = size <= 1 ? lead : lead & (0x7fU >> size);
    if (size == 0) code = 0xdc00U + lead;
    for (std::size_t i = 1; i < size; ++i)
      code = code << 6 | (static_cast<unsigned char>(name[i]) & 0x3fU);
    text += code;
    name.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return text;
}

bool is_ascii_or_end(std::string_view text, std::size_t at) {
  return at >= text.size() || static_cast<unsigned char>(text[at]) < 0x80;
}

}  // namespace

std::string_view image_extension(std::string_view name) {
  const auto lower = [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto found = std::ranges::find_if(extensions, [&](std::string_view extension) {
    return name.size() >= extension.size() &&
           std::ranges::equal(name.substr(name.size() - extension.size()), extension, {}, lower);
  });
  return found == extensions.end() ? std::string_view() : *found;
}

bool python_sorts_before(std::string_view a, std::string_view b) {
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  // An ASCII byte begins a character: all characters before are equal.
  if (is_ascii_or_end(a, at) && is_ascii_or_end(b, at)) return a < b;
  return decoded(a) < decoded(b);
}

namespace {

void sort_names(std::vector<std::string>& names) { std::ranges::sort(names, python_sorts_before); }

// --- Folders -------------------------------------------------------------------------------------

// Independent of the path.
struct Place {
  dev_t device = 0;
  ino_t inode = 0;

  bool operator==(const Place&) const = default;
};

struct Listing {
  std::vector<std::string> folders;
  std::vector<std::string> files;  // With an image extension.
  Place place;
};

bool is_folder(int folder, const dirent& entry) {
  if (entry.d_type != DT_UNKNOWN && entry.d_type != DT_LNK) return entry.d_type == DT_DIR;
  struct stat status {};
  return ::fstatat(folder, entry.d_name, &status, 0) == 0 && S_ISDIR(status.st_mode);
}

Listing list(const std::filesystem::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno(clean_text(path.native()));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno(clean_text(path.native()));
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::fdopendir(fd.get()), ::closedir);
  if (open == nullptr) throw_errno(clean_text(path.native()));
  fd.release();  // NOLINT(bugprone-unused-return-value): closedir() closes it.
  Listing listing;
  listing.place = {status.st_dev, status.st_ino};
  errno = 0;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (is_folder(::dirfd(open.get()), *entry))
      listing.folders.emplace_back(name);
    else if (!image_extension(name).empty())
      listing.files.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) throw_errno(clean_text(path.native()));
  return listing;
}

// `below` is empty for the class folder; otherwise it ends with a slash.
struct Branch {
  std::string below;
  std::vector<std::string> files;
};

class Walk {
 public:
  explicit Walk(std::filesystem::path top) : top_(std::move(top)) { visit(""); }

  std::vector<Branch>& branches() { return branches_; }

 private:
  void visit(const std::string& below) {
    const std::filesystem::path path = below.empty() ? top_ : top_ / below;
    Listing listing = list(path);
    if (std::ranges::find(above_, listing.place) != above_.end())
      throw Error(Fault::system,
                  clean_text(path.native()) + ": a link that leads back to a folder above it");
    sort_names(listing.files);
    branches_.push_back({below, std::move(listing.files)});
    above_.push_back(listing.place);
    for (const std::string& folder : listing.folders) visit(below + folder + "/");
    above_.pop_back();
  }

  std::filesystem::path top_;
  std::vector<Place> above_;
  std::vector<Branch> branches_;
};

// Python compares paths without a final slash.
std::string_view folder_path(const Branch& branch) {
  return std::string_view(branch.below)
      .substr(0, branch.below.empty() ? 0 : branch.below.size() - 1);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + clean_text(name);
  return text;
}

}  // namespace

FolderIndex::FolderIndex(std::filesystem::path root) : root_(std::move(root)) {
  classes_ = list(root_).folders;
  require(!classes_.empty(), [&] {
    return "ImageFolder: " + clean_text(root_.native()) +
           " has no class folders: one is expected for each class, with its images";
  });
  sort_names(classes_);
  std::vector<std::string> without_images;
  for (const std::string& name : classes_) {
    first_of_class_.push_back(size());
    add_class(name);
    if (size() == first_of_class_.back()) without_images.push_back(name);
  }
  first_of_class_.push_back(size());
  require(without_images.empty(), [&] {
    std::string text = "ImageFolder: " + clean_text(root_.native());
    text += " has classes without images: " + joined(without_images) + " (extensions:";
    for (const std::string_view extension : extensions) text.append(" ").append(extension);
    return text + ")";
  });
}

void FolderIndex::add_class(const std::string& name) {
  Walk walk(root_ / name);
  std::ranges::sort(walk.branches(), python_sorts_before, folder_path);
  for (const Branch& branch : walk.branches())
    for (const std::string& file : branch.files) {
      names_ += branch.below;
      names_ += file;
      ends_.push_back(names_.size());
    }
}

std::int64_t FolderIndex::class_of(std::size_t image) const {
  return std::ranges::upper_bound(first_of_class_, image) - first_of_class_.begin() - 1;
}

std::string_view FolderIndex::name_of(std::size_t image) const {
  const std::size_t begin = image == 0 ? 0 : ends_[image - 1];
  return std::string_view(names_).substr(begin, ends_[image] - begin);
}

std::string FolderIndex::path_of(std::size_t image) const {
  std::string path = root_.native();
  path += '/';
  path += classes_[static_cast<std::size_t>(class_of(image))];
  path += '/';
  return path.append(name_of(image));
}

std::uint64_t FolderIndex::fingerprint() const {
  std::vector<std::uint64_t> digests{hash_of_elements(names_), hash_of_elements(ends_),
                                     hash_of_elements(first_of_class_)};
  for (const std::string& name : classes_) digests.push_back(hash_of_elements(name));
  return hash_of_elements(digests);
}

}  // namespace lockstep::datasets
