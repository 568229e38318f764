// Subcommands of `lockstep checkpoint`. Each prints to stdout and returns its exit code. Errors:
// Error, NoInput and CannotCreate, which main() reports in one line.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct ShowOptions {
  std::filesystem::path path;
  std::string part;  // All parts if empty.
  bool json = false;
};
int show(const ShowOptions& options);

int verify(const std::vector<std::filesystem::path>& paths);

struct DiffOptions {
  std::filesystem::path a;
  std::filesystem::path b;
  std::string part;  // All parts if empty; "model" if one side is weights in safetensors.
};
int diff(const DiffOptions& options);

struct MergeOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path out;
  std::string part = "model";
  bool force = false;
};
int merge(const MergeOptions& options);

// merge()'s output already exists.
class CannotCreate : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lockstep::checkpoint
