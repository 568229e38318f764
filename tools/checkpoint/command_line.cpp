// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint/command_line.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tools/checkpoint/commands.h"
#include "tools/checkpoint/output.h"
#include "tools/checkpoint/source.h"
#include "tools/command_line.h"

namespace {

using namespace lockstep::checkpoint;

constexpr int diff_trouble = 2;  // As in diff(1).

constexpr const char* about =
    "Shows, verifies, compares and merges checkpoints.\n"
    "A checkpoint is a folder such as runs/a/step-0000000100. A folder of checkpoints, such as\n"
    "runs/a, stands for its latest checkpoint. Weights are a .safetensors file, a folder of such\n"
    "files, or its index (model.safetensors.index.json), as from Hugging Face.\n";

constexpr const char* examples = R"(
Examples:
  lockstep checkpoint show runs/a                         # list all; show the latest
  lockstep checkpoint verify runs/a                       # every byte of all checkpoints
  lockstep checkpoint diff runs/a runs/b --part model
  lockstep checkpoint merge runs/a model.safetensors      # for safetensors.torch in Python

Exit code: 0 success; diff: 1 differences, 2 trouble; 64 usage, 65 damaged, 66 no checkpoint found,
73 a file exists already, 74 a file cannot be read or written, 78 LibTorch is not found.
)";

constexpr const char* show_examples = R"(
Examples:
  lockstep checkpoint show runs/a
  lockstep checkpoint show runs/a/step-0000000100 --part optimizer
  lockstep checkpoint show runs/a/latest --json | jq '.parts.model.tensors | keys'
  lockstep checkpoint show model.safetensors
  lockstep checkpoint show SmolLM-135M                    # Hugging Face's folder of a model
)";

constexpr const char* verify_examples = R"(
Examples:
  lockstep checkpoint verify runs/a                       # all checkpoints in that folder
  lockstep checkpoint verify runs/a/step-0000000100 runs/b/latest

Prints a line for each checkpoint, with the file and tensor of any damage. Exit code: 0 when all are
whole, 65 when any is damaged. Weights have no checksums: their index, headers and sizes are
compared, and every byte is read.
)";

constexpr const char* diff_examples = R"(
Examples:
  lockstep checkpoint diff runs/a/step-0000000100 runs/a/step-0000000200
  lockstep checkpoint diff runs/a runs/b --part model && echo the same weights
  lockstep checkpoint diff runs/a model.safetensors       # its part `model`, or the one of --part
  lockstep checkpoint diff SmolLM-135M fine-tuned         # two folders of weights

Compares bit for bit and prints a line for each difference. Exit code: 0 no difference, 1
differences, 2 trouble.
)";

constexpr const char* merge_examples = R"(
Examples:
  lockstep checkpoint merge runs/a model.safetensors
  lockstep checkpoint merge runs/a/step-0000000100 adam.safetensors --part optimizer --force

In Python: safetensors.torch.load_file("model.safetensors"). The file gets its name when it is
whole; one tensor is in memory at a time.
)";

using Command = std::function<int()>;

struct CommandLine {
  ShowOptions show;
  std::vector<std::filesystem::path> verified;
  DiffOptions diff;
  MergeOptions merge;
};

CLI::App* subcommand(CLI::App& app, const char* name, const char* text, const char* footer) {
  CLI::App* sub = app.add_subcommand(name, text);
  sub->footer(footer);
  return sub;
}

void declare(CLI::App& app, CommandLine& line) {
  app.footer(examples);
  app.require_subcommand(1);

  CLI::App* show = subcommand(app, "show", "Print the contents of a checkpoint", show_examples);
  show->add_option("path", line.show.path, "A checkpoint, a folder of them, or weights")
      ->type_name("PATH")
      ->required();
  show->add_option("--part", line.show.part, "Only this part")->type_name("PART");
  show->add_flag("--json", line.show.json, "Print JSON");

  CLI::App* verify =
      subcommand(app, "verify", "Read every byte and compare checksums", verify_examples);
  verify->add_option("path", line.verified, "Checkpoints, folders of them, or weights")
      ->type_name("PATH")
      ->required();

  CLI::App* diff =
      subcommand(app, "diff", "Print the differences of two checkpoints", diff_examples);
  for (const auto& [name, path] : {std::pair{"a", &line.diff.a}, std::pair{"b", &line.diff.b}})
    diff->add_option(name, *path, "A checkpoint, or weights")->type_name("PATH")->required();
  diff->add_option("--part", line.diff.part, "Only this part")->type_name("PART");

  CLI::App* merge = subcommand(app, "merge", "Write a part into one file", merge_examples);
  merge
      ->add_option("checkpoint", line.merge.checkpoint, "A checkpoint, or weights in several files")
      ->type_name("PATH")
      ->required();
  merge->add_option("out", line.merge.out, "The .safetensors file to write")
      ->type_name("PATH")
      ->required();
  merge->add_option("--part", line.merge.part, "Part to write")
      ->type_name("PART")
      ->capture_default_str();
  merge->add_flag("--force", line.merge.force, "Replace the file if it exists");
}

std::string parse(int argc, char** argv, CommandLine& line) {
  CLI::App app(about, "lockstep checkpoint");
  declare(app, line);
  lockstep::tools::parse(app, argc, argv);
  return app.get_subcommands().front()->get_name();
}

int run(const std::string& name, const CommandLine& line) {
  const std::map<std::string, Command> commands{{"show", [&] { return show(line.show); }},
                                                {"verify", [&] { return verify(line.verified); }},
                                                {"diff", [&] { return diff(line.diff); }},
                                                {"merge", [&] { return merge(line.merge); }}};
  return commands.at(name)();
}

int code_of(lockstep::Fault fault) {
  switch (fault) {
    case lockstep::Fault::misuse:
      return usage_error;
    case lockstep::Fault::corrupt:
    case lockstep::Fault::unsupported:
      return data_error;
    case lockstep::Fault::system:
      return io_error;
    default:
      return internal_error;
  }
}

int complain(const std::string& name, int code, const std::string& text) {
  std::fprintf(stderr, "lockstep checkpoint %s: %s\n", name.c_str(),
               text.substr(0, text.find('\n')).c_str());
  return name == "diff" ? diff_trouble : code;
}

int run_guarded(const std::string& name, const CommandLine& line) {
  try {
    return run(name, line);
  } catch (const NoInput& error) {
    return complain(name, no_input, error.what());
  } catch (const CannotCreate& error) {
    return complain(name, cannot_create, error.what());
  } catch (const lockstep::Error& error) {
    return complain(name, code_of(error.fault()), bare_text(error));
  } catch (const std::exception& error) {
    return complain(name, internal_error, error.what());
  }
}

// The first opened file must not get a closed stream's descriptor and receive output.
void keep_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::dup(fd))
    if (fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
}

}  // namespace

int lockstep_checkpoint_command(int argc, char** argv) {
  keep_standard_streams();
  ::signal(SIGPIPE, SIG_IGN);  // `... | head` is not a failure.
  CommandLine line;
  const std::string name = parse(argc, argv, line);
  const int code = run_guarded(name, line);
  if (name != "diff") return lockstep::tools::end_output("lockstep checkpoint", code);
  return lockstep::tools::output_is_complete("lockstep checkpoint") ? code : diff_trouble;
}
