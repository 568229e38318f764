// Lists the images of a folder with one folder per class, as torchvision's ImageFolder does.
//
// Classes are the sorted folders. Files of a class are in the order of sorted(os.walk(...,
// followlinks=True)), and sorted within each folder. As in Python, names are compared by code
// points, with surrogates for bytes that are not UTF-8.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::datasets {

class FolderIndex {
 public:
  // Errors: as ImageFolder.
  explicit FolderIndex(std::filesystem::path root);

  std::size_t size() const { return ends_.size(); }
  const std::vector<std::string>& classes() const { return classes_; }

  std::int64_t class_of(std::size_t image) const;
  std::string path_of(std::size_t image) const;

  // Below the class folder. Lives as long as this object.
  std::string_view name_of(std::size_t image) const;

  std::uint64_t fingerprint() const;

 private:
  void add_class(const std::string& name);

  std::filesystem::path root_;
  std::vector<std::string> classes_;
  std::vector<std::size_t> first_of_class_;  // First image of each class, and the end.

  // Names below the class folder, concatenated to avoid an allocation per name.
  std::string names_;
  std::vector<std::size_t> ends_;  // In names_.
};

// In lower case, such as ".jpg"; empty unless it is one of torchvision's for images.
std::string_view image_extension(std::string_view name);

bool python_sorts_before(std::string_view a, std::string_view b);

}  // namespace lockstep::datasets
