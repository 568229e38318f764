// The command line of `lockstep shard`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/data/shards/shard_folder.h"

namespace lockstep::tools {

struct ShardCommandLine {
  ShardFolderOptions options;
  bool quiet = false;
};

// Ends the process after --help or a wrong command line.
ShardCommandLine parse_shard(int argc, char** argv);

}  // namespace lockstep::tools
