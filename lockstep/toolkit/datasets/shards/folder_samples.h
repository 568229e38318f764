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

// Finds the regular files below `folder`, also through links. Omits hidden files, and those without
// a sample (divide_name()). With `labels`, takes only samples with an image for ShardImages, and
// adds the class number. If a key has no such image, its files are grouped by the name up to the
// last dot; other dots become _.
// Errors: system. Misuse without samples, and for two files of one part, or a link to a parent
// folder. With labels, also misuse for images in no class, or a class without images.
FolderSamples find_samples(const std::filesystem::path& folder, bool labels);

// Also through links. `path` need not exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// Depends only on `seed` and the number of samples.
void shuffle_samples(std::vector<Sample>& samples, std::uint64_t seed);

}  // namespace lockstep::datasets
