// Expands patterns and folders to shards, and divides names of files in shards. Independent of
// LibTorch.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::datasets {

// Expands braces as shells do, also nested: "{a,b}-{00..01}.tar". Errors: misuse for an unmatched
// brace, a falling range, and more than ten million names.
std::vector<std::string> expand_braces(std::string_view pattern);

// The shards of `sources` in order: expanded patterns, and NAME.tar, .tar.gz, .tgz and .tar.zst in
// folders, sorted by name.
// Errors: misuse for none, one twice, and a folder with one both compressed and uncompressed;
// system.
std::vector<std::string> list_local_shards(const std::vector<std::string>& sources);

// The same for patterns of URLs.
std::vector<std::string> list_remote_shards(const std::vector<std::string>& sources);

// A name in a shard, divided as WebDataset does.
struct PartName {
  std::string_view key;  // Path up to the first dot of the base name.
  std::string suffix;    // The rest, in lower case: "jpg", "seg.png".
};

// Returns nothing for a file that belongs to no sample. Its name has no dot or begins with a dot,
// or its first folder or name is like __this__. A hidden file in a folder, d/.y.jpg, has the key
// "d/".
std::optional<PartName> divide_name(std::string_view name);

}  // namespace lockstep::datasets
