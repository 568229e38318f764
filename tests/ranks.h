// Runs one test body in several real processes.
//
// Each rank is this binary started again with fork()+exec(), never plain fork(): LibTorch's thread
// pools and CUDA contexts do not survive a fork.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

struct Rank {
  int rank;
  int world_size;
  std::filesystem::path scratch;  // Shared by all ranks of one run; removed afterwards.
};

struct Exit {
  int rank;
  int code;            // -1 if a signal ended the rank.
  int signal;          // 0 if the rank exited by itself.
  std::string output;  // Its stdout and stderr.
};

// A directory of this process, removed with its contents.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

using Body = std::function<void(const Rank&)>;

// Names a body that a child process can find again after exec. Declare one as
//   const Ranks all_arrive("all arrive", [](const test::Rank& rank) { ... });
// at namespace scope, then call all_arrive.run(4).
class Ranks {
 public:
  Ranks(std::string name, Body body);

  // Starts `world_size` ranks, with the environment variables of init_process_group(), and waits
  // for all of them. At the limit the remaining ones are killed with SIGKILL, so a hang is a
  // failure. Fails the current GoogleTest if a name of ours remains in /dev/shm.
  std::vector<Exit> run(int world_size,
                        std::chrono::milliseconds limit = std::chrono::seconds(60)) const;

  // Returns the command that a launcher must execute for each rank. The rank gets its number from
  // the launcher's variables. Rank::scratch is empty there.
  std::vector<std::string> command() const;

 private:
  std::string name_;
};

// Returns 10 + Fault for lockstep::Error, 1 for any other exception, 0 for success, 2 for a failed
// GoogleTest assertion. It is Exit::code of a body that did not exit by itself.
int exit_code_of(const Body& body, const Rank& rank);

// Returns whether every rank exited with code 0; otherwise prints the other ranks' output.
bool all_succeeded(const std::vector<Exit>& exits);

// Call it first in main(). In a child it runs the body and exits; in the parent it returns.
void become_rank_if_asked(int argc, char** argv);

}  // namespace lockstep::test
