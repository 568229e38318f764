// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/shard_names.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <unordered_set>

#include "lockstep/base/error.h"

namespace lockstep::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_shards = 10'000'000;

// npos if there is none.
std::size_t closing_brace(std::string_view pattern, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < pattern.size(); ++i) {
    if (pattern[i] == '{') ++depth;
    if (pattern[i] == '}' && --depth == 0) return i;
  }
  return std::string_view::npos;
}

// "a,{b,c},d" at the outer commas.
std::vector<std::string_view> alternatives(std::string_view inside) {
  std::vector<std::string_view> found;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= inside.size(); ++i) {
    if (i < inside.size() && inside[i] == '{') ++depth;
    if (i < inside.size() && inside[i] == '}') --depth;
    if (i < inside.size() && (inside[i] != ',' || depth > 0)) continue;
    found.push_back(inside.substr(begin, i - begin));
    begin = i + 1;
  }
  return found;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "000..120": numbers with leading zeros. Empty if not a range.
std::vector<std::string> range_of(std::string_view inside, std::string_view pattern) {
  const std::size_t dots = inside.find("..");
  if (dots == inside.npos) return {};
  const std::string_view first = inside.substr(0, dots), last = inside.substr(dots + 2);
  const auto from = number_of(first), to = number_of(last);
  if (!from || !to) return {};
  require(*from <= *to && *to - *from < most_shards, [&] {
    return std::string(pattern) + ": {" + std::string(inside) + "} is no rising range of numbers";
  });
  const bool is_padded =
      (first.size() > 1 && first[0] == '0') || (last.size() > 1 && last[0] == '0');
  const std::size_t width = is_padded ? std::max(first.size(), last.size()) : 0;
  std::vector<std::string> numbers;
  for (std::uint64_t number = *from; number <= *to; ++number) {
    std::string text = std::to_string(number);
    text.insert(0, width - std::min(width, text.size()), '0');
    numbers.push_back(std::move(text));
  }
  return numbers;
}

bool is_shard(const std::string& name) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".tar", ".tar.gz", ".tgz", ".tar.zst"},
      [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string> tar_files_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (is_shard(entry->path().filename())) found.push_back(entry->path());
  if (error) throw_errno(folder.string(), error.value());
  std::ranges::sort(found);
  require(!found.empty(), [&] {
    return folder.string() + ": the folder has no files *.tar, *.tar.gz, *.tgz or *.tar.zst";
  });
  const auto stem = [](std::string_view path) { return path.substr(0, path.rfind(".t")); };
  const auto twice = std::ranges::adjacent_find(found, {}, stem);
  require(twice == found.end(), [&] {
    return *twice + ": the folder also has " + *std::next(twice) +
           ": name the files to be read, as {a,b}.tar";
  });
  return found;
}

std::vector<std::string> require_distinct(std::vector<std::string> shards) {
  require(!shards.empty(), "TarShards: at least one shard is needed");
  std::unordered_set<std::string_view> seen;
  for (const std::string& shard : shards)
    require(seen.insert(shard).second, [&] { return shard + ": the shard is listed twice"; });
  return shards;
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern) {
  const std::size_t open = pattern.find('{');
  if (open == pattern.npos) {
    require(pattern.find('}') == pattern.npos,
            [&] { return std::string(pattern) + ": a brace is closed that was not opened"; });
    return {std::string(pattern)};
  }
  const std::size_t close = closing_brace(pattern, open);
  require(close != pattern.npos,
          [&] { return std::string(pattern) + ": a brace is opened and not closed"; });
  const std::string_view inside = pattern.substr(open + 1, close - open - 1);
  std::vector<std::string> middles = range_of(inside, pattern);
  if (middles.empty())
    for (const std::string_view each : alternatives(inside))
      for (std::string& middle : expand_braces(each)) middles.push_back(std::move(middle));
  const std::vector<std::string> ends = expand_braces(pattern.substr(close + 1));
  require(middles.size() <= most_shards / ends.size(),
          [&] { return std::string(pattern) + ": the pattern stands for too many names"; });
  std::vector<std::string> all;
  for (const std::string& middle : middles)
    for (const std::string& end : ends)
      all.push_back(std::string(pattern.substr(0, open)) + middle + end);
  return all;
}

std::vector<std::string> list_local_shards(const std::vector<std::string>& sources) {
  std::vector<std::string> shards;
  for (const std::string& source : sources) {
    std::error_code absent;
    // An existing file's braces are part of its name.
    const bool exists = fs::exists(source, absent);
    for (const std::string& path : exists ? std::vector{source} : expand_braces(source)) {
      if (!fs::is_directory(path, absent)) {
        shards.push_back(path);
        continue;
      }
      for (std::string& file : tar_files_in(path)) shards.push_back(std::move(file));
    }
  }
  return require_distinct(std::move(shards));
}

std::vector<std::string> list_remote_shards(const std::vector<std::string>& sources) {
  std::vector<std::string> shards;
  for (const std::string& source : sources)
    for (std::string& url : expand_braces(source)) shards.push_back(std::move(url));
  return require_distinct(std::move(shards));
}

std::optional<PartName> divide_name(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return std::nullopt;
  // WebDataset's expression is ^((?:.*/|)[^.]+)[.]([^/]*)$, in which a dot matches no newline. If
  // the base name begins with a dot, the key ends with the folder, which must not contain one.
  const std::size_t last = name.rfind('/');
  const std::size_t dot = name.find('.', last == name.npos ? 0 : last + 1);
  if (dot == name.npos) return std::nullopt;
  const std::string_view first_line = name.substr(0, name.find('\n'));
  const std::size_t folder = first_line.substr(0, dot).rfind('/');
  std::size_t begin = folder == name.npos ? 0 : folder + 1;  // Start of the section without dots.
  if (begin == dot && dot > 0) {
    const std::size_t before = folder == 0 ? name.npos : first_line.rfind('/', folder - 1);
    begin = before == name.npos ? 0 : before + 1;
  }
  if (name.find('.', begin) != dot || begin == dot) return std::nullopt;
  PartName parts{.key = name.substr(0, dot), .suffix = std::string(name.substr(dot + 1))};
  for (char& letter : parts.suffix)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return parts;
}

}  // namespace lockstep::datasets
