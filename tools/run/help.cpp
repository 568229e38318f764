// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tools/run/option_variables.h"
#include "tools/run/options.h"

namespace lockstep::tools {
namespace {

constexpr const char* about =
    "Starts PROGRAM as several ranks on this host, watches them, and ends them together.\n"
    "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its\n"
    "environment, as under torchrun.\n";

constexpr const char* examples = R"(
Every option has a variable, named after it, which is used if the option is not given; below it,
options of torchrun have torchrun's PET_ variable. Options may be spelled with - or with _.

One host:
  lockstep run -n 4 ./my_program --epochs 5
  lockstep run -n auto -v ./my_program          # one rank per core; show where each runs
  lockstep run -n auto --dry-run ./my_program   # show what would be started, start nothing
  lockstep run -n 2 python3 train_ddp.py        # any program that torchrun can start
  lockstep run -- ./-odd-name                   # -- ends the launcher's own options

Two hosts, the same line on both; the launcher on node0 coordinates. Beyond loopback, launchers must
share a secret: LOCKSTEP_JOB_TOKEN_FILE names a file with the same content on every host (made once
by openssl rand -base64 32, mode 0600), or LOCKSTEP_JOB_TOKEN holds the secret.
LOCKSTEP_TRUST_NETWORK=1 needs no secret:
  lockstep run --nnodes 2 --rdzv-endpoint node0:29400 --rdzv-id job7 -n 4 ./my_program

Two to four hosts, restarted up to three times when a rank or a host is lost:
  lockstep run --nnodes 2:4 --max-restarts 3 --rdzv-endpoint node0 -n 4 ./my_program

Only a lost rank starts again, and the others continue without it; the program forms a new group:
  lockstep run -n 4 --on-failure continue ./my_program

A file for each rank's output; only rank 0's output is shown:
  lockstep run -n 4 --log-dir logs --local-ranks-filter 0 ./my_program

One timeline of all ranks, with LibTorch's operators of five steps:
  lockstep run -n 4 --timeline t.json --profile steps=100:105 ./my_program

Everything after PROGRAM is passed on to it. Rank 0 keeps stdin unless stdin is a terminal; the
others have /dev/null. Output comes in whole lines, each after its "[rank]".

Exit code: 0 when no rank failed (with --on-failure continue: when one ended with 0), else that of
the rank that failed first (128 + signal when it was killed); 128 + signal when a signal stopped the
launcher; 64 usage, 69 too few hosts came or the endpoint was lost, 71 the system refused, 74 output
was lost as on a full disk, 75 the job ended for a preemption and is to be started again, 126
PROGRAM is not executable, 127 PROGRAM is not found.
)";

constexpr const char* ranks_group = "Ranks";
constexpr const char* hosts_group = "Hosts";
constexpr const char* life_group = "Restarts and signals";
constexpr const char* output_group = "Output";
constexpr const char* torchrun_group = "For command lines of torchrun";

struct Setting {
  const char* group;
  const char* letter;  // Empty without a short name.
  const char* name;
  const char* type;  // Empty for a flag.
  const char* text;
  const char* preset = "";
};

constexpr Setting settings[] = {
    {ranks_group, "n", "nproc-per-node", "N|auto|cpu|gpu|tuned",
     "Number of ranks on this host; 'auto' and 'cpu' are one per usable core, 'gpu' is one per "
     "NVIDIA GPU, 'tuned' is what lockstep tune --save has found. -np N is the same",
     "1"},
    {ranks_group, "", "bind", "auto|cache|core|numa|none",
     "Bind ranks to the cores of an L3 cache (auto: if there is a core for each), of their own, or "
     "of a NUMA node",
     "auto"},
    {ranks_group, "", "dry-run", "", "Show what would be started, and start nothing"},
    {hosts_group, "", "standalone", "", "Only this host"},
    {hosts_group, "", "nnodes", "N|MIN:MAX", "Number of hosts; with MIN:MAX they may come and go",
     "1"},
    {hosts_group, "", "node-rank", "N", "Number of this host; by default in the order of arrival"},
    {hosts_group, "", "rdzv-endpoint", "HOST[:PORT]",
     "Where the hosts meet: on one of them, which all others can reach; default port 29400"},
    {hosts_group, "", "rdzv-id", "ID",
     "Name of the job; hosts with another name are turned away. Without a name, hosts with "
     "another program or other arguments are turned away",
     "none"},
    {hosts_group, "", "join-timeout", "SECONDS", "Longest wait for MIN hosts", "600"},
    {hosts_group, "", "last-call", "SECONDS", "Wait for each further host after that, up to MAX",
     "3"},
    {life_group, "", "max-restarts", "N",
     "Allowed restarts of all ranks after a rank failed or a host was lost", "0"},
    {life_group, "", "max-restart-delay", "SECONDS",
     "Longest pause before a restart: none before the first, 0.1 s before the next, then twice as "
     "long each time; after an attempt that lived this long, none again",
     "30"},
    {life_group, "", "on-failure", "end|continue",
     "When a rank fails: end the other ranks, or let them continue and start the lost rank again, "
     "for programs that form new groups (lockstep::Survival). With continue, --max-restarts is "
     "also the number of such starts on this host, by default ten times its ranks",
     "end"},
    {life_group, "", "leave-out-stragglers", "SECONDS",
     "With --on-failure continue: how long a call waits for a rank, such as a stopped one. Then "
     "the others continue without it, as after its loss. By default, the program decides"},
    {life_group, "", "signals-to-handle", "NAMES",
     "Signals that end the job: ranks get SIGINT for SIGINT, SIGTERM for others",
     "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {life_group, "", "shutdown-timeout", "SECONDS",
     "Time for ranks to end after SIGTERM, before they are killed", "10"},
    {output_group, "", "metrics-port", "[ADDRESS:]PORT",
     "Serve figures of this host's ranks for Prometheus; on 127.0.0.1 without an address, on any "
     "free port for 0"},
    {output_group, "v", "verbose", "", "Show each rank's process and cores"},
    {output_group, "", "log-dir", "DIR",
     "Folder for the ranks' output; without -r and -t, all output goes there and is shown, too"},
    {output_group, "r", "redirects", "STREAMS",
     "Streams that go to files only: 1 stdout, 2 stderr, 3 both; by local rank: 0:1,1:2"},
    {output_group, "t", "tee", "STREAMS", "Streams that go to files and are shown, too"},
    {output_group, "", "local-ranks-filter", "N,N...", "Show only the output of these local ranks"},
    {output_group, "", "log-format", "text|json", "Format of shown lines", "text"},
    {output_group, "", "timeline", "FILE",
     "Write where the time of all ranks goes, for https://ui.perfetto.dev"},
    {output_group, "", "profile", "steps=FIRST:END",
     "With --timeline: also LibTorch's operators in these steps, END not included"},
    {torchrun_group, "", "master-addr", "HOST", "With --master-port, the same as --rdzv-endpoint"},
    {torchrun_group, "", "master-port", "PORT",
     "Port for --master-addr, default 29500. For one host: MASTER_PORT of its ranks"},
    {torchrun_group, "", "rdzv-backend", "c10d|static", "Accepted; both mean the same here",
     "c10d"},
    {torchrun_group, "", "no-python", "", "Accepted; PROGRAM may be any program here"},
};

struct Other {
  const char* names;
  const char* instead;
};

constexpr Other others[] = {
    {"-m,--module", "name the interpreter, as in: lockstep run python3 -m MODULE"},
    {"--monitor-interval", "the end of a rank is noticed at once; leave it out"},
    {"--numa-binding", "use --bind numa"},
    {"--rdzv-conf", "use --join-timeout and --last-call"},
    {"--role", "all ranks have the same role; leave it out"},
    {"--start-method", "ranks are programs of their own; leave it out"},
    {"--local-addr", "this host's address is found by itself; leave it out"},
    {"--run-path", "name the interpreter, as in: lockstep run python3 FILE"},
    {"--virtual-local-rank", "every rank has its own LOCAL_RANK; leave it out"},
};

std::string long_name_of(const Other& other) {
  const std::string names = other.names;
  return names.substr(names.find("--") + 2);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string both_spellings(const std::string& name) {
  const std::string other = with_underscores(name);
  return "--" + name + (other == name ? "" : ",--" + other);
}

std::string wrapped(std::string text, std::size_t width) {
  std::size_t begin = 0;
  while (text.size() - begin > width) {
    const auto space = text.rfind(' ', begin + width);
    if (space == text.npos || space <= begin) break;
    text[space] = '\n';
    begin = space + 1;
  }
  return text;
}

class Formatter : public CLI::Formatter {
 public:
  Formatter() { column_width(column); }

 private:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: lockstep run [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }

  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::string names =
        option->get_snames().empty() ? "    " : "-" + option->get_snames()[0] + ", ";
    return names + "--" + option->get_lnames()[0];
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (option->get_type_size() != 0) text += " " + option->get_type_name();
    return text;
  }

  // The default and the variable come last, where they do not push the text to the right.
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    text = wrapped(text, 100 - column);
    const std::string& name = option->get_lnames()[0];
    if (name == "help") return text;
    text += "\n" + variable_of(name);
    if (const std::string below = torchrun_variable_of(name); !below.empty()) text += ", " + below;
    return text;
  }

  static constexpr std::size_t column = 36;
};

}  // namespace

void declare_options(CLI::App& app) {
  app.description(about);
  app.name("lockstep run");
  app.formatter(std::make_shared<Formatter>());
  app.footer(examples);
  app.prefix_command();
  for (const Setting& setting : settings) {
    const std::string letter =
        *setting.letter == '\0' ? "" : std::string("-") + setting.letter + ",";
    const std::string names = letter + both_spellings(setting.name);
    const std::string text = setting.text;
    CLI::Option* option = *setting.type == '\0'
                              ? app.add_flag(names, text)
                              : app.add_option(names, text)->type_name(setting.type);
    option->group(setting.group)->take_last();
    option->default_str(setting.preset);
  }
  for (const Other& other : others) {
    const std::string names = other.names;
    const std::string spelled = long_name_of(other);
    const std::string text;
    app.add_option(names.substr(0, names.find("--")) + both_spellings(spelled), text)
        ->expected(0, 1)
        ->take_last()
        ->group("");
  }
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const Setting& setting : settings) names.emplace_back(setting.name);
  return names;
}

std::vector<std::pair<std::string, std::string>> options_without_effect() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const Other& other : others) found.emplace_back(long_name_of(other), other.instead);
  return found;
}

void refuse_others(const CLI::App& app) {
  for (const auto& [option, instead] : options_without_effect()) {
    const std::string name = "--" + option;
    if (app[name]->count() > 0) throw Error(Fault::misuse, name + ": " + instead);
  }
}

}  // namespace lockstep::tools
