// Names: of shards, which patterns and folders stand for, and of the files in them.
//
// Torch-free.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// Writes out braces, as shells do: "a-{000..002}.tar" is a-000.tar, a-001.tar and a-002.tar;
// "{a,b}/x.tar" is a/x.tar and b/x.tar. Groups may be nested. Errors: misuse for a brace without
// its partner, and for more than ten million names.
std::vector<std::string> expand_braces(std::string_view pattern);

// Returns the shards of `sources` in order: patterns written out, and the files NAME.tar, .tar.gz,
// .tgz and .tar.zst of folders, sorted by name. Errors: misuse if there are none, one twice, or one
// both compressed and not; system.
std::vector<std::string> list_local_shards(const std::vector<std::string>& sources);

// As list_local_shards(), for patterns of URLs.
std::vector<std::string> list_remote_shards(const std::vector<std::string>& sources);

// A file's name in a shard, divided as by WebDataset.
struct PartName {
  std::string_view key;  // Up to the first dot of the base name.
  std::string suffix;    // After that dot, in lower case: "jpg", "seg.png".
};

// Returns nothing for a file of no sample: no dot, a dot in front, or a first folder or name like
// __this__, which is for descriptions. A hidden file in a folder, d/.y.jpg, has the key "d/".
std::optional<PartName> divide_name(std::string_view name);

}  // namespace lockstep::data
