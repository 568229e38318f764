// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/folder_samples.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/shards/shard_names.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"

namespace lockstep::datasets {
namespace {

namespace fs = std::filesystem;

constexpr const char* label_suffix = "cls";
constexpr const char* more_dots =
    "with --labels each would be that part: rename the one with more dots";

void leave_out(FolderSamples& found, const std::string& path) {
  if (found.left_out++ == 0 || path < found.first_left_out) found.first_left_out = path;
}

void require_no_circle(const fs::directory_entry& entry) {
  std::error_code absent;
  if (!entry.is_symlink(absent) || !entry.is_directory(absent)) return;
  require(!lies_in(entry.path().parent_path(), entry.path()),
          [&] { return entry.path().string() + ": a link to a folder above it"; });
}

// By relative path. Follows links, as ImageFolder.
std::map<std::string, fs::path> files_in(const fs::path& folder, FolderSamples& found) {
  std::map<std::string, fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink,
                                         error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().lexically_relative(folder);
    require_no_circle(*entry);
    std::error_code absent;  // The link is dangling.
    if (entry->is_regular_file(absent))
      files.emplace(path, entry->path());
    else if (!entry->is_directory(absent))
      leave_out(found, path);
  }
  if (error) throw_errno(folder.string(), error.value());
  return files;
}

std::string last_extension(const std::string& suffix) {
  return suffix.substr(suffix.rfind('.') + 1);  // All without a dot.
}

[[noreturn]] void refuse_same(const std::string& key, const std::string& suffix,
                              const char* remedy) {
  throw Error(Fault::misuse, "'" + clean_text(key) + "' would be a sample with two files '" +
                                 clean_text(suffix) + "': " + remedy);
}

// Readers ignore the case of suffixes.
void require_distinct_parts(const Sample& sample, bool labels) {
  std::set<std::string> suffixes, extensions;
  for (const SamplePart& part : sample.parts) {
    const std::string suffix = divide_name("x." + part.suffix)->suffix;
    if (!suffixes.insert(suffix).second)
      refuse_same(sample.key, suffix, "names are equal up to upper and lower case");
    if (labels && !extensions.insert(last_extension(suffix)).second)
      refuse_same(sample.key, last_extension(suffix), more_dots);
  }
}

bool has_image(const Sample& sample) {
  const std::vector<std::string> images = ShardImagesOptions().image;
  return std::ranges::any_of(sample.parts, [&](const SamplePart& part) {
    const std::string suffix = divide_name("x." + part.suffix)->suffix;
    return std::ranges::find(images, suffix) != images.end();
  });
}

std::vector<Sample> with_image(Sample sample) {
  if (has_image(sample)) return {std::move(sample)};
  std::map<std::string, Sample> divided;
  for (SamplePart& part : sample.parts) {
    const std::string extension = last_extension(part.suffix);
    std::string key = sample.key;
    if (extension.size() < part.suffix.size())
      (key += '_') += part.suffix.substr(0, part.suffix.size() - extension.size() - 1);
    const std::size_t base = sample.key.size();
    std::replace(key.begin() + static_cast<std::ptrdiff_t>(base), key.end(), '.', '_');
    part.suffix = extension;
    divided[key].key = key;
    divided[key].parts.push_back(std::move(part));
  }
  std::vector<Sample> samples;
  for (auto& [key, each] : divided) samples.push_back(std::move(each));
  return samples;
}

// Empty outside of folders.
std::string class_of(const Sample& sample) {
  const std::size_t slash = sample.key.find('/');
  return slash == sample.key.npos ? "" : sample.key.substr(0, slash);
}

void keep_images(FolderSamples& found, const fs::path& folder) {
  std::set<std::string> without_images;
  std::error_code error, absent;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->is_directory(absent)) without_images.insert(entry->path().filename());
  if (error) throw_errno(folder.string(), error.value());
  std::vector<Sample> kept;
  for (Sample& whole : found.samples)
    for (Sample& sample : with_image(std::move(whole))) {
      if (has_image(sample)) {
        kept.push_back(std::move(sample));
        continue;
      }
      without_images.insert(class_of(sample));
      for (const SamplePart& part : sample.parts)
        leave_out(found, part.file.lexically_relative(folder));
    }
  found.samples = std::move(kept);
  std::ranges::sort(found.samples, {}, &Sample::key);
  const auto same = std::ranges::adjacent_find(found.samples, {}, &Sample::key);
  require(same == found.samples.end(), [&] {
    return "'" + clean_text(same->key) +
           "' would be two samples: with --labels, dots within a name become _";
  });
  for (const Sample& sample : found.samples) without_images.erase(class_of(sample));
  without_images.erase("");
  require(without_images.empty(), [&] {
    return "'" + clean_text(*without_images.begin()) + "' is a folder of a class without images";
  });
}

void add_labels(FolderSamples& found) {
  std::set<std::string> classes;
  for (const Sample& sample : found.samples) {
    require(!class_of(sample).empty(), [&] {
      return "'" + clean_text(sample.key) + "' lies in no folder of a class, as --labels needs";
    });
    classes.insert(class_of(sample));
  }
  found.classes.assign(classes.begin(), classes.end());
  for (Sample& sample : found.samples) {
    const auto place = std::ranges::lower_bound(found.classes, class_of(sample));
    std::string number = std::to_string(place - found.classes.begin());
    const std::uint64_t bytes = number.size();
    sample.parts.push_back({label_suffix, {}, std::move(number), bytes});
  }
}

fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path found = fs::weakly_canonical(path, error);
  if (error) throw_errno(path.string(), error.value());
  return found;
}

}  // namespace

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path inner = resolved(path);
  const fs::path outer = resolved(folder);
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

FolderSamples find_samples(const fs::path& folder, bool labels) {
  FolderSamples found;
  std::map<std::string, Sample> samples;
  for (const auto& [path, file] : files_in(folder, found)) {
    const auto name = divide_name(path);
    if (!name || file.filename().native().starts_with('.')) {
      leave_out(found, path);
      continue;
    }
    Sample& sample = samples[std::string(name->key)];
    sample.key = name->key;
    std::error_code error;
    const std::uint64_t bytes = fs::file_size(file, error);
    if (error) throw_errno(file.string(), error.value());
    sample.parts.push_back({path.substr(name->key.size() + 1), file, {}, bytes});
  }
  for (auto& [key, sample] : samples) found.samples.push_back(std::move(sample));
  if (labels) keep_images(found, folder);
  require(!found.samples.empty(), [&] {
    return folder.string() + ": there are no " + (labels ? "images" : "files NAME.SUFFIX") +
           " in it";
  });
  if (labels) add_labels(found);
  for (const Sample& sample : found.samples) require_distinct_parts(sample, labels);
  return found;
}

void shuffle_samples(std::vector<Sample>& samples, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t left = samples.size(); left > 1; --left)
    std::swap(samples[left - 1], samples[random() % left]);
}

}  // namespace lockstep::datasets
