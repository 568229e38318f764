// Finds the samples in a folder.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::datasets {

// A file, or a text, such as a class number.
struct SamplePart {
  std::string suffix;
  std::filesystem::path file;  // Empty if the part is a text.
  std::string text;
  std::uint64_t bytes = 0;
};

struct Sample {
  std::string key;
  std::vector<SamplePart> parts;
};

struct FolderSamples {
  std::vector<Sample> samples;       // Sorted by the bytes of their keys.
  std::vector<std::string> classes;  // With labels: the sorted top-level folders.
  std::size_t left_out = 0;
  std::string first_left_out;
};

// Finds the regular files below `folder`, also through links. Omits hidden files and files without
// a suffix. With `labels`, takes only samples with an image for ShardImages, and adds the class
// number. Files of a key without such an image are grouped by the name up to the last dot.
// Errors: system. Misuse for two files of one part, a link to a parent folder and, with labels,
// images in no class, or a class without images.
FolderSamples find_samples(const std::filesystem::path& folder, bool labels);

// Also through links. `path` need not exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// Depends only on `seed` and the number of samples.
void shuffle_samples(std::vector<Sample>& samples, std::uint64_t seed);

}  // namespace lockstep::datasets
