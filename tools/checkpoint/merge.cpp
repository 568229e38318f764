// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "tools/checkpoint/commands.h"
#include "tools/checkpoint/output.h"
#include "tools/checkpoint/source.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

volatile sig_atomic_t stopped_by = 0;

// The first signal removes the unfinished output.
void note_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { stopped_by = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // A second signal kills the process.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
}

// False if a signal interrupted the write.
bool write_all(const Source& source, const std::string& part, SafetensorsWriter& out,
               ByteBar& bar) {
  for (const std::string& name : out.order()) {
    const at::Tensor tensor = source.read(part, name);
    out.write(tensor);
    bar.add(tensor.nbytes());
    if (stopped_by != 0) return false;
  }
  return true;
}

void require_writable(const WeightsSource& weights, const MergeOptions& options) {
  if (weights.files().files().size() == 1)
    throw NoInput(options.checkpoint.string() + " is a single file already");
  for (const WeightFiles::Tensor& each : weights.files().tensors())
    scalar_type_of(*each.entry, each.file->name());  // Throws for types that LibTorch lacks.
}

}  // namespace

int merge(const MergeOptions& options) {
  std::error_code absent;
  if (!options.force && fs::exists(fs::symlink_status(options.out, absent)))
    throw CannotCreate(options.out.string() + " is there already; --force replaces it");

  const auto source = open_source(options.checkpoint, options.part);
  if (const auto* const weights = dynamic_cast<const WeightsSource*>(source.get()))
    require_writable(*weights, options);
  require_part(options.checkpoint, source->parts(), options.part);
  const StateDict& contents = source->contents(options.part);
  NamedTensors tensors;
  for (const auto& [name, tensor] : contents.tensors) tensors.emplace_back(name, tensor.data);

  note_signals();
  SafetensorsWriter out(options.out, tensors, {{"format", "pt"}});
  {
    ByteBar bar(options.out.filename().string(), bytes_of(contents));
    if (!write_all(*source, options.part, out, bar)) return 128 + stopped_by;
  }
  out.commit();
  print(options.out.string() + ": " + count_text(tensors.size(), "tensor") + " of " +
        bytes_text(bytes_of(contents)) + "\n");
  return 0;
}

}  // namespace lockstep::checkpoint
