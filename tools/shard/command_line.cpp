// SPDX-License-Identifier: Apache-2.0
#include "tools/shard/command_line.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "tools/command_line.h"

namespace lockstep::tools {
namespace {

constexpr const char* about =
    "Writes the files of a folder as samples into tar shards, in WebDataset's layout, for\n"
    "lockstep::TarShards and others.\n"
    "Files of one folder whose names agree up to the first dot are one sample: 7.jpg and 7.json.\n"
    "Their order is shuffled once, so that neighbours in a shard are not alike. The same files "
    "and\n"
    "options give the same bytes. Shards appear whole or not at all: after an interruption, the\n"
    "same command goes on.\n";

constexpr const char* examples = R"(
Examples:
  lockstep shard imagenet/train --out shards --name train --labels
  lockstep shard pairs --out shards --size 1G             # 0001.jpg 0001.txt 0002.jpg ...
  lockstep shard pairs --out shards --samples 1000 --in-order
  aws s3 sync shards s3://bucket/shards                   # the indexes, too: fetch_indexes

With --labels, each top-level folder is a class, as in torchvision's ImageFolder: a sample gets the
part `cls`, the number of its folder in alphabetical order, and NAME-classes.txt lists the folders.
Files that are no part of a sample with an image (.jpg, .jpeg, .png, .webp) are left out. Dots
within the name of an image become _: a.b.jpg is the sample a_b.

A shard that exists is kept if it has the files' names and sizes and none was changed since.

Exit code: 0 success, 64 usage, or files that fit no sample, 71 a file cannot be read or written.
)";

// The message also helps users who expect subcommands.
CLI::Validator existing_folder() {
  return CLI::Validator(
      [](const std::string& folder) -> std::string {
        std::error_code error;
        const auto status = std::filesystem::status(folder, error);
        if (std::filesystem::is_directory(status)) return {};
        const bool is_there = std::filesystem::exists(status);
        return (is_there ? "'" + folder + "' is not a folder"
                         : "there is no folder '" + folder + "'") +
               "; lockstep shard has no subcommands: its first argument is the folder with the "
               "files";
      },
      "");
}

// CLI::PositiveNumber would print the limits of a double.
CLI::Validator at_least_one() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::strtod(text.c_str(), nullptr) >= 1 ? "" : text + " is not at least 1";
      },
      "");
}

}  // namespace

ShardCommandLine parse_shard(int argc, char** argv) {
  ShardCommandLine line;
  CLI::App app(about, "lockstep shard");
  app.footer(examples);
  app.add_option("folder", line.options.folder, "The folder with the files")
      ->type_name("DIR")
      ->required()
      ->check(existing_folder());
  app.add_option("--out", line.options.out, "Folder of the shards; created if necessary")
      ->type_name("OUT")
      ->required();
  app.add_option("--name", line.options.name,
                 "Shards are OUT/NAME-000000.tar, OUT/NAME-000001.tar, ...")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](const std::string& name) {
            return name.empty() || name.find('/') != name.npos ? "a name without / is needed" : "";
          },
          ""));
  CLI::Option* const size = app.add_option("--size", line.options.shard_bytes,
                                           "Most bytes of a shard, such as 500M or 2G")
                                ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
                                ->default_str("256M")
                                ->check(at_least_one());
  app.add_option("--samples", line.options.samples, "Samples of a shard, of any size")
      ->check(at_least_one())
      ->excludes(size);
  app.add_flag("--labels", line.options.labels,
               "Top-level folders are classes; add their number as `cls`");
  CLI::Option* const in_order =
      app.add_flag("!--in-order", line.options.shuffle, "Keep the alphabetical order of the files");
  app.add_option("--seed", line.options.seed, "Another order")
      ->capture_default_str()
      ->excludes(in_order);
  app.add_flag("--force", line.options.replace,
               "Replace shards that exist, and remove those beyond the last one");
  app.add_flag("--quiet", line.quiet, "Show no progress");
  parse(app, argc, argv);
  return line;
}

}  // namespace lockstep::tools
