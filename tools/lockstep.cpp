// The `lockstep` command: runs its folder's `lockstep-SUB ...` for `lockstep SUB ...`.

// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tools/standard_output.h"
#include "tools/suggestion.h"

namespace {

using lockstep::tools::end_output;
using lockstep::tools::print;
using lockstep::tools::unknown_subcommand;
namespace fs = std::filesystem;

constexpr int usage_error = 64;  // EX_USAGE of sysexits.h
constexpr std::string_view prefix = "lockstep-";

struct Description {
  std::string_view name;
  const char* text;
  const char* example;
};
constexpr Description known[] = {
    {"run", "start a program as several ranks on this host, and watch them",
     "lockstep run -n 4 ./my_program --epochs 5"},
    {"status", "show this user's jobs on this host, and each rank's activity",
     "lockstep status --watch 2"},
    {"timeline", "merge the spans that ranks have recorded into one timeline",
     "lockstep timeline spans --out t.json"},
    {"top", "show live where the ranks of jobs on this host spend their time", "lockstep top"},
    {"report", "show from files of RunLog how runs scale, what they wait for, and what would help",
     "lockstep report run1.json run4.json --html report.html"},
    {"plan", "find the fastest layout of a program on many ranks; draw a pipeline's schedules",
     "lockstep plan -n 4 --microbatches 8"},
    {"tune", "find the number of ranks with which a program trains fastest on this host",
     "lockstep tune --global-batch 256 ./train --batch-size {batch}"},
    {"doctor", "show what this host has, and whether training can run on it",
     "lockstep doctor -n 8 --nnodes 2"},
    {"checkpoint", "show, verify, diff and merge checkpoints", "lockstep checkpoint verify runs/a"},
    {"shard", "write the files of a folder as samples into tar shards",
     "lockstep shard imagenet/train --out shards --labels"},
    {"version", "show the version", "lockstep version"},
};

// Programs in this program's folder, and built-in subcommands.
std::vector<std::string> subcommands_in(const fs::path& folder) {
  std::vector<std::string> names{"version"};
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && entry.is_regular_file(unreadable) &&
        ::access(entry.path().c_str(), X_OK) == 0)
      names.push_back(name.substr(prefix.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string padded(std::string name) {
  constexpr std::size_t width = 10;
  if (name.size() < width) name.append(width - name.size(), ' ');
  return name;
}

std::string usage(const fs::path& folder) {
  std::string text =
      "usage: lockstep SUBCOMMAND [ARGUMENTS...]\n\n"
      "Distributed training for programs that use LibTorch or PyTorch.\n\nsubcommands:\n";
  for (const std::string& name : subcommands_in(folder)) {
    const auto* about = std::find_if(std::begin(known), std::end(known),
                                     [&](const Description& each) { return each.name == name; });
    const bool found = about != std::end(known);
    text += "  " + padded(name) + " " + (found ? about->text : "") + "\n";
    if (found) text += "  " + padded("") + "   " + about->example + "\n";
  }
  return text +
         "\n`lockstep SUBCOMMAND --help` has details. `lockstep --version` is " LOCKSTEP_VERSION
         ".\n";
}

// On one line: a usage text would hide the suggestion.
std::string no_subcommand(std::string_view name, const fs::path& folder) {
  const std::string text = unknown_subcommand("lockstep", name, subcommands_in(folder));
  return text.ends_with('?') ? text : text + "; see lockstep --help";
}

}  // namespace

int main(int argc, char** argv) {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) {
    std::fprintf(stderr, "lockstep: /proc/self/exe: %s\n", error.message().c_str());
    return 71;
  }
  const std::string_view name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") {
    print(usage(folder));
    return end_output("lockstep", 0);
  }
  if (name == "--version" || name == "version") {
    print("lockstep " LOCKSTEP_VERSION "\n");
    return end_output("lockstep", 0);
  }
  std::string full_name = std::string(prefix) + std::string(name);
  const fs::path program = folder / full_name;
  if (!name.starts_with('-') && name.find('/') == name.npos) {
    argv[1] = full_name.data();  // For ps.
    ::execv(program.c_str(), argv + 1);
  }
  if (errno == ENOENT || errno == 0)
    std::fprintf(stderr, "lockstep: %s\n", no_subcommand(name, folder).c_str());
  else
    std::fprintf(stderr, "lockstep: %s: %s\n", program.c_str(), std::strerror(errno));
  return usage_error;
}
