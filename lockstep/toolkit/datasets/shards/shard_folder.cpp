// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/shard_folder.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/toolkit/datasets/mapped_file.h"
#include "lockstep/toolkit/datasets/shards/folder_samples.h"
#include "lockstep/toolkit/datasets/shards/local_shards.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/write_tar.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using datasets::Sample;
using datasets::SamplePart;
using Shard = std::span<const Sample>;

std::string name_of_part(const Sample& sample, const SamplePart& part) {
  return sample.key + "." + part.suffix;
}

std::uint64_t tar_bytes_of(const Sample& sample) {
  std::uint64_t bytes = 0;
  for (const SamplePart& part : sample.parts)
    bytes += datasets::tar_bytes(name_of_part(sample, part), part.bytes);
  return bytes;
}

std::vector<Shard> cut_into_shards(Shard samples, const ShardFolderOptions& options) {
  std::vector<Shard> shards;
  std::size_t begin = 0;
  std::uint64_t bytes = datasets::tar_end_bytes;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::uint64_t more = tar_bytes_of(samples[i]);
    const bool is_full = options.samples > 0 ? i - begin == options.samples
                                             : i > begin && bytes + more > options.shard_bytes;
    if (is_full) {
      shards.push_back(samples.subspan(begin, i - begin));
      begin = i;
      bytes = datasets::tar_end_bytes;
    }
    bytes += more;
  }
  shards.push_back(samples.subspan(begin));
  return shards;
}

fs::file_time_type time_of_change(const fs::path& path) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(path, error);
  if (error) throw_errno(path.string(), error.value());
  return time;
}

class EarlierShard {
 public:
  explicit EarlierShard(const fs::path& path)
      : path_(path),
        fd_(datasets::open_to_read(path)),
        written_(time_of_change(path)),
        members_(datasets::read_tar(fd_, path.native()).members) {}

  // By names, sizes and times.
  bool has(Shard shard) const {
    auto member = members_.begin();
    for (const Sample& sample : shard)
      for (const SamplePart& part : sample.parts) {
        if (member == members_.end() || member->name != name_of_part(sample, part)) return false;
        if (!has_content(*member++, part)) return false;
      }
    return member == members_.end();
  }

 private:
  bool has_content(const datasets::TarMember& member, const SamplePart& part) const {
    if (member.size != part.bytes) return false;
    if (!part.file.empty()) return time_of_change(part.file) <= written_;
    std::string text(part.bytes, '\0');
    datasets::read_exactly_at(fd_, path_, member.offset, std::as_writable_bytes(std::span(text)));
    return text == part.text;
  }

  const fs::path path_;
  const FileDescriptor fd_;
  const fs::file_time_type written_;
  const std::vector<datasets::TarMember> members_;
};

// Creates an index that a killed run did not.
bool is_there(const fs::path& path, Shard shard) {
  std::error_code absent;
  if (!fs::exists(path, absent)) return false;
  require(EarlierShard(path).has(shard), [&] {
    return path.string() +
           ": the shard exists with other samples, or with files that were changed since: remove "
           "it, or replace it with --force";
  });
  datasets::LocalShards({path.native()}, "").provide_index(0, /*wait=*/true);
  return true;
}

std::string content_of(const SamplePart& part) {
  if (part.file.empty()) return part.text;
  const FileDescriptor fd = datasets::open_to_read(part.file);
  if (datasets::stamp_of(fd, part.file).size != part.bytes)
    throw Error(Fault::system, part.file.string() + ": the file was changed meanwhile");
  std::string content(part.bytes, '\0');
  datasets::read_exactly_at(fd, part.file, 0, std::as_writable_bytes(std::span(content)));
  return content;
}

void write_shard(const fs::path& prefix, std::size_t number, Shard shard) {
  ShardWriter writer(
      prefix, {.shard_bytes = std::numeric_limits<std::uint64_t>::max(), .replace = true}, number);
  for (const Sample& sample : shard) {
    std::vector<std::string> contents;
    for (const SamplePart& part : sample.parts) contents.push_back(content_of(part));
    ShardWriter::Parts parts;
    for (std::size_t i = 0; i < contents.size(); ++i)
      parts.emplace_back(sample.parts[i].suffix, contents[i]);
    writer.write(sample.key, parts);
  }
  writer.finish();
}

void write_classes(const fs::path& prefix, const std::vector<std::string>& classes) {
  std::string text;
  for (const std::string& name : classes) text += name + "\n";
  fs::path path = prefix;
  AtomicFile file(path += "-classes.txt", text.size());
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::uint64_t bytes_of(const std::vector<Shard>& shards) {
  std::uint64_t bytes = 0;
  for (const Shard& shard : shards) {
    bytes += datasets::tar_end_bytes;
    for (const Sample& sample : shard) bytes += tar_bytes_of(sample);
  }
  return bytes;
}

// Another run's, from number `shards` on.
std::vector<fs::path> shards_beyond(const fs::path& prefix, std::size_t shards) {
  const std::string last = ShardWriter::shard_path(prefix, shards).filename();
  std::vector<fs::path> beyond;
  std::error_code error;
  for (fs::directory_iterator entry(prefix.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string file = entry->path().filename();
    const std::size_t number = prefix.filename().native().size() + 1;
    const bool is_shard = file.size() == last.size() && file.ends_with(".tar") &&
                          file.starts_with(last.substr(0, number)) &&
                          file.find_first_not_of("0123456789", number) == file.size() - 4;
    if (is_shard && file >= last) beyond.push_back(entry->path());
  }
  if (error) throw_errno(prefix.parent_path().string(), error.value());
  std::ranges::sort(beyond);
  return beyond;
}

// Returns the shards' prefix.
fs::path prepare_folder(const ShardFolderOptions& options, std::size_t shards) {
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) throw_errno(options.out.string(), error.value());
  remove_unfinished(options.out, options.name + "-");
  fs::path prefix = options.out / options.name;
  const std::vector<fs::path> beyond = shards_beyond(prefix, shards);
  require(options.replace || beyond.empty(), [&] {
    return beyond.front().string() +
           ": a shard of another run, beyond the last one of this: remove it, or do so with "
           "--force";
  });
  return prefix;
}

// Readers would take them as part of this run.
std::size_t remove_beyond(const fs::path& prefix, std::size_t shards) {
  const std::vector<fs::path> beyond = shards_beyond(prefix, shards);
  for (const fs::path& shard : beyond) {
    std::error_code error;
    fs::remove(datasets::index_beside(shard), error);
    fs::remove(shard, error);
    if (error) throw_errno(shard.string(), error.value());
  }
  return beyond.size();
}

}  // namespace

ShardFolderReport shard_folder(const ShardFolderOptions& options) {
  require(!datasets::lies_in(options.out, options.folder), [&] {
    return options.out.string() + ": shards there would be samples of " + options.folder.string() +
           " the next time";
  });
  datasets::FolderSamples found = datasets::find_samples(options.folder, options.labels);
  if (options.shuffle) datasets::shuffle_samples(found.samples, options.seed);
  const std::vector<Shard> shards = cut_into_shards(found.samples, options);
  const fs::path prefix = prepare_folder(options, shards.size());

  std::size_t kept = 0;
  for (std::size_t number = 0; number < shards.size(); ++number) {
    if (!options.replace && is_there(ShardWriter::shard_path(prefix, number), shards[number]))
      ++kept;
    else
      write_shard(prefix, number, shards[number]);
    if (options.at_shard) options.at_shard(shards.size(), shards[number].size());
  }
  if (options.labels) write_classes(prefix, found.classes);
  const std::size_t removed = options.replace ? remove_beyond(prefix, shards.size()) : 0;
  return {.samples = found.samples.size(),
          .shards = shards.size(),
          .kept = kept,
          .removed = removed,
          .bytes = bytes_of(shards),
          .classes = found.classes.size(),
          .left_out = found.left_out,
          .first_left_out = found.first_left_out};
}

}  // namespace lockstep
