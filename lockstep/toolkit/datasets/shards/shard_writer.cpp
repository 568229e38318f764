// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/shard_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/mapped_file.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "lockstep/toolkit/datasets/shards/shard_names.h"
#include "lockstep/toolkit/datasets/shards/tar_members.h"
#include "lockstep/toolkit/datasets/shards/write_tar.h"

namespace lockstep {

struct ShardWriter::State {
  State(std::filesystem::path start, ShardWriterOptions chosen, std::size_t first_number)
      : prefix(std::move(start)), options(chosen), first(first_number) {}

  std::filesystem::path path() const { return shard_path(prefix, first + complete); }
  void open();
  void add(const std::string& name, std::string_view bytes);
  void close();

  const std::filesystem::path prefix;
  const ShardWriterOptions options;
  const std::size_t first;
  std::size_t complete = 0;
  std::optional<AtomicFile> file;  // Being written.
  std::vector<datasets::TarMember> members;
  std::uint64_t bytes = 0;  // Written to `file`.
  std::size_t samples = 0;  // Written to `file`.
  std::optional<std::string> last_key;
  bool has_ended = false;  // After finish() or an Error.
};

void ShardWriter::State::open() {
  std::error_code ignored;
  require(options.replace || !std::filesystem::exists(path(), ignored),
          [&] { return path().string() + ": the shard exists already"; });
  file.emplace(path(), 0);
  members.clear();
  bytes = 0;
  samples = 0;
}

void ShardWriter::State::add(const std::string& name, std::string_view content) {
  const std::string header = datasets::tar_headers(name, content.size());
  file->write(std::as_bytes(std::span(header)));
  file->write(std::as_bytes(std::span(content)));
  static constexpr std::array<std::byte, datasets::tar_block> zeros{};
  const std::uint64_t padding = datasets::padded_to_blocks(content.size()) - content.size();
  file->write(std::span(zeros).first(padding));
  bytes += header.size();
  members.push_back({.name = name, .offset = bytes, .size = content.size()});
  bytes += content.size() + padding;
}

void ShardWriter::State::close() {
  const std::string end = datasets::tar_end();
  file->write(std::as_bytes(std::span(end)));
  file->commit();
  file.reset();
  const FileDescriptor shard = datasets::open_to_read(path());
  const datasets::FileStamp stamp = datasets::stamp_of(shard, path());
  datasets::write_shard_index(
      datasets::index_beside(path()),
      datasets::format_shard_index(path().native(), stamp, {.members = members}));
  ++complete;
}

ShardWriter::ShardWriter(std::filesystem::path prefix, ShardWriterOptions options,
                         std::size_t first)
    : state_(std::make_unique<State>(std::move(prefix), options, first)) {
  require(options.shard_bytes > 0, "ShardWriterOptions::shard_bytes must be positive");
}

ShardWriter::~ShardWriter() = default;

namespace {

// Whether unpacking `key` writes only below the folder.
bool stays_below(std::string_view key) {
  for (std::size_t begin = 0; begin <= key.size();) {
    const std::size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view folder = key.substr(begin, end - begin);
    if (folder.empty() || folder == "." || folder == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

void ShardWriter::write(std::string_view key, const Parts& parts) {
  State& state = *state_;
  require(!state.has_ended, "ShardWriter: write() after finish() or an Error");
  require(key != state.last_key, [&] {
    return "ShardWriter: sample '" + clean_text(key) +
           "' follows another one of this key: write() takes all parts of a sample at once";
  });
  require(!parts.empty(), [&] { return "ShardWriter: sample '" + clean_text(key) + "' is empty"; });
  require(stays_below(key), [&] {
    return "ShardWriter: '" + clean_text(key) +
           "' is no key of a sample: it is empty, or has a folder that is empty, . or ..";
  });
  std::uint64_t size = 0;
  std::set<std::string> suffixes;
  std::vector<std::string> names;
  for (const auto& [suffix, bytes] : parts) {
    const std::string& name = names.emplace_back(std::string(key) + "." + suffix);
    const auto divided = datasets::divide_name(name);
    require(divided && divided->key == key && name.find('\0') == name.npos, [&] {
      return "ShardWriter: '" + clean_text(name) + "' cannot be read back as a part of sample '" +
             clean_text(key) + "'";
    });
    require(suffixes.insert(divided->suffix).second, [&] {
      return "ShardWriter: sample '" + clean_text(key) + "' has two parts '" +
             clean_text(divided->suffix) + "'";
    });
    size += datasets::tar_bytes(name, bytes.size());
  }
  state.has_ended = true;  // Stays set after an Error.
  const std::uint64_t most = state.options.shard_bytes;
  if (state.file && (state.bytes + size + datasets::tar_end_bytes > most)) state.close();
  if (!state.file) state.open();
  for (std::size_t i = 0; i < parts.size(); ++i) state.add(names[i], parts[i].second);
  if (++state.samples == state.options.samples) state.close();
  state.last_key = key;
  state.has_ended = false;
}

void ShardWriter::finish() {
  require(!state_->has_ended, "ShardWriter: finish() after finish() or an Error");
  state_->has_ended = true;
  if (state_->file) state_->close();
}

std::size_t ShardWriter::shards() const { return state_->complete; }

std::filesystem::path ShardWriter::shard_path(const std::filesystem::path& prefix,
                                              std::size_t number) {
  std::array<char, 32> end{};
  std::snprintf(end.data(), end.size(), "-%06zu.tar", number);
  std::filesystem::path path = prefix;
  return path += end.data();
}

}  // namespace lockstep
