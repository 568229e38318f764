// Images in one folder per class, such as train/cat/7.jpg and train/dog/more/8.png. Classes, their
// numbers and the order of images equal torchvision's ImageFolder (docs/guide/images.md). File
// names may have any bytes.
//
// Thread safety: const members may be called concurrently.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/toolkit/datasets/images/decoded_images.h"

namespace lockstep {

class LOCKSTEP_API ImageFolder : public DecodedImages {
 public:
  // Lists the folder: about one second per million files.
  // Errors: as DecodedImages. Corrupt, with counts per extension, if more files than
  // BadFiles::skip() allows have an extension and contents without a decoder, such as TIFF.
  // Otherwise a warning has the counts. Misuse without class folders, or for a class without
  // images. System for an unreadable folder, or a link that leads back to a parent folder. fill():
  // corrupt for a file whose size or modification time has changed since the listing.
  explicit ImageFolder(const std::filesystem::path& root, ImageOptions options = {});

  // Class names by number.
  const std::vector<std::string>& classes() const;

  std::filesystem::path path(std::size_t index) const;

 private:
  class Files;
  ImageFolder(std::shared_ptr<const Files> files, ImageOptions options);

  std::shared_ptr<const Files> files_;
};

}  // namespace lockstep
