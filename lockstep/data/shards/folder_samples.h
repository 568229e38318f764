// The samples in a folder.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::data {

// A part of a sample: a file, or, for a class, a text.
struct SamplePart {
  std::string suffix;          // As in the file's name.
  std::filesystem::path file;  // Empty for a text.
  std::string text;
  std::uint64_t bytes = 0;
};

struct Sample {
  std::string key;
  std::vector<SamplePart> parts;
};

struct FolderSamples {
  std::vector<Sample> samples;       // In the order of their keys' bytes.
  std::vector<std::string> classes;  // With labels: the top-level folders, in order.
  std::size_t left_out = 0;          // Files that belong to no sample.
  std::string first_left_out;        // The path of one of them.
};

// Finds the regular files below `folder`, also through links. Hidden files and those without a
// suffix are left out. With `labels`, only samples with an image that ShardImages finds are taken,
// and each gets the number of its class; where the files of one key have no such image, they are
// divided at their last dots. Errors: misuse, naming the files, for two that would be the same part
// of a sample, and for a link to a folder above it; with labels, for an image in no class, or a
// class without images; system.
FolderSamples find_samples(const std::filesystem::path& folder, bool labels);

// Whether `path`, which need not exist, is `folder` or below it, also by links.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// Shuffles in place. The order depends on `seed` and the number of samples only.
void shuffle_samples(std::vector<Sample>& samples, std::uint64_t seed);

}  // namespace lockstep::data
