// A folder with a folder of images for each class, as torchvision's ImageFolder:
//
//   train/cat/7.jpg
//   train/dog/more/8.png
//
// Classes, their numbers and the order of the images are torchvision's: docs/guide/images.md. File
// names may have any bytes. See DecodedImages for the options.
//
// Thread safety: any thread may call any const member at any time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/data/images/decoded_images.h"

namespace lockstep {

class LOCKSTEP_API ImageFolder : public DecodedImages {
 public:
  // Lists the folder: a million files take about a second.
  // Errors: those of DecodedImages; corrupt, with counts for each extension, for files of a format
  // that cannot be decoded, such as TIFF, unless BadFiles::skip() allows as many: a warning has the
  // counts then; misuse without class folders, or if a class has no images;
  // system for a folder that cannot be read, or a link that leads back to a folder above it. Of
  // fill(): corrupt, naming it, for a file that has changed since it was listed; its size and time
  // of modification count.
  explicit ImageFolder(const std::filesystem::path& root, ImageOptions options = {});

  // Names of the classes, by their number.
  const std::vector<std::string>& classes() const;

  // Path of an image.
  std::filesystem::path path(std::size_t index) const;

 private:
  class Files;
  ImageFolder(std::shared_ptr<const Files> files, ImageOptions options);

  std::shared_ptr<const Files> files_;
};

}  // namespace lockstep
