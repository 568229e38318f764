// The images of a folder of class folders, listed as torchvision's ImageFolder does.
//
// Classes are the sorted folders. Each one's files follow folder by folder, in the order of
// sorted(os.walk(..., followlinks=True)), then sorted; only files with an image's extension count.
// Names are compared as Python compares them: by code points, and bytes that are not UTF-8 by their
// surrogates. Listing asks the kernel for no file's type unless the file system hides it, or a link
// does.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

class FolderIndex {
 public:
  // Errors: misuse without class folders, or for classes without images; it names them. system for
  // folders that cannot be read, and for links that lead back to a folder above them.
  explicit FolderIndex(std::filesystem::path root);

  std::size_t size() const { return ends_.size(); }
  const std::vector<std::string>& classes() const { return classes_; }

  std::int64_t class_of(std::size_t image) const;
  std::string path_of(std::size_t image) const;

  // The path below its class folder. Valid as long as this object.
  std::string_view name_of(std::size_t image) const;

  // A digest of classes and names.
  std::uint64_t fingerprint() const;

 private:
  void add_class(const std::string& name);

  std::filesystem::path root_;
  std::vector<std::string> classes_;
  std::vector<std::size_t> first_of_class_;  // Images; one more than classes.

  // Names below the class folder, one after the other: a million of them take no million
  // allocations.
  std::string names_;
  std::vector<std::size_t> ends_;  // Of each image's name.
};

// The extension of an image that `name` ends with, in lower case, such as ".jpg"; empty if there is
// none.
std::string_view image_extension(std::string_view name);

// Whether Python sorts `a` before `b`, two names of files.
bool python_sorts_before(std::string_view a, std::string_view b);

}  // namespace lockstep::data
