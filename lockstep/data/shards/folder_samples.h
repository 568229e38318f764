// Finds the samples in a folder.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::data {

// A part of a sample: a file, or a text, such as the number of a class.
struct SamplePart {
  std::string suffix;          // The suffix in the file's name.
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
  std::size_t left_out = 0;          // Number of files that belong to no sample.
  std::string first_left_out;        // The path of one of them.
};

// Finds the regular files below `folder`, also through links. Omits hidden files and files without
// a suffix. With `labels`, it takes only samples with an image that ShardImages finds, and gives
// each the number of its class. If the files of one key have no such image, they are grouped by the
// name up to the last dot instead.
// Errors: misuse, with the names, for two files that would be the same part of a sample, and for a
// link to a parent folder; with labels, for an image in no class, or a class without images;
// system.
FolderSamples find_samples(const std::filesystem::path& folder, bool labels);

// Whether `path` is `folder` or below it, also through links. `path` need not exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// Shuffles in place. The order depends only on `seed` and the number of samples.
void shuffle_samples(std::vector<Sample>& samples, std::uint64_t seed);

}  // namespace lockstep::data
