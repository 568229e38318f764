// The command line of `lockstep shard`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/toolkit/datasets/shards/shard_folder.h"

namespace lockstep::tools {

struct ShardCommandLine {
  ShardFolderOptions options;
  bool quiet = false;
};

// Does not return after --help or a wrong command line.
ShardCommandLine parse_shard(int argc, char** argv);

}  // namespace lockstep::tools
