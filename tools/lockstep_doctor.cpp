// `lockstep doctor`: shows this host's resources and whether training can run on it.

// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>

#include "tools/command_line.h"
#include "tools/doctor/diagnosis.h"
#include "tools/doctor/host.h"
#include "tools/doctor/software.h"

namespace {

using namespace lockstep::doctor;

constexpr int cannot_run = 1;

constexpr const char* about =
    "Shows what this host has, and whether training can run on it: cores, memory, LibTorch, the\n"
    "engines between hosts, limits, network and launcher, as seen by a rank started here.\n";

constexpr const char* examples = R"(
Examples:
  lockstep doctor                       # one rank per core, on this host only
  lockstep doctor -n 256                # do limits and memory suffice for 256 ranks?
  lockstep doctor -n 8 --nnodes 4       # on several hosts; run it on each of them
  lockstep doctor --nnodes 2 --interface 10.0.0.0/8
  mpirun -n 2 --host node0,node1 lockstep doctor    # as seen by ranks of that job
  lockstep doctor --json | jq '.problems[].cure'

Each `problem:` keeps the job from running; the remedy stands below it. A `note:` is only a hint.

Exit code: 0 training can run on this host; 1 it cannot; 64 usage, 71 the system refused, 74 stdout
cannot be written.
)";

struct CommandLine {
  int ranks = 0;
  int hosts = 0;
  std::string interface;
  bool json = false;
  bool verbose = false;
  std::string engine;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, "lockstep doctor");
  app.footer(examples);
  const auto positive = CLI::Range(1, 1 << 20).description("");
  app.add_option("-n,--nproc-per-node", line.ranks,
                 "Ranks on this host; by default as the launcher sets it, or one per core")
      ->type_name("N")
      ->check(positive);
  app.add_option("--nnodes", line.hosts,
                 "Number of hosts; by default as the launcher sets it, or one")
      ->type_name("N")
      ->check(positive);
  app.add_option("--interface", line.interface,
                 "Interface, address or network by which other hosts reach this one; by default "
                 "LOCKSTEP_INTERFACE")
      ->type_name("NAME");
  app.add_flag("--json", line.json, "Print JSON: one object");
  app.add_flag("-v,--verbose", line.verbose, "Give reasons in full");
  app.add_option("--engine", line.engine)->group("");  // For examine_engines().
  lockstep::tools::parse(app, argc, argv);
  return line;
}

Job job_of(const CommandLine& line, const Host& host) {
  const Launcher& launcher = host.launcher;
  const bool launched = !launcher.name.empty();
  Job job;
  job.ranks = line.ranks != 0 ? line.ranks
              : launched      ? launcher.local_world_size
                              : host.processors.usable_cores;
  job.hosts = line.hosts != 0 ? line.hosts
              : launched      ? (launcher.world_size - 1) / launcher.local_world_size + 1
                              : 1;
  return job;
}

int run(const CommandLine& line) {
  Host host = examine(line.interface);
  host.lockstep = LOCKSTEP_VERSION;
  host.torch = examine_libtorch(LOCKSTEP_TORCH_VERSION, LOCKSTEP_TORCH_LIBRARY);
  host.torch.place = LOCKSTEP_TORCH_PLACE;
  host.engines = examine_engines(std::filesystem::read_symlink("/proc/self/exe"));
  const Job job = job_of(line, host);
  const Diagnosis diagnosis = diagnose(host, job);
  const std::string text =
      line.json ? to_json(host, job, diagnosis) : to_text(host, job, diagnosis, line.verbose);
  lockstep::tools::print(text);
  return lockstep::tools::end_output("lockstep doctor",
                                     diagnosis.problems.empty() ? 0 : cannot_run);
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  return lockstep::tools::run_or_complain("lockstep doctor", [&] {
    if (!line.engine.empty()) report_engine(line.engine);
    return run(line);
  });
}
