// Tensors in files that every reader of safetensors understands, and weights from files of other
// programs, whose names a NameTable maps to those of a module.
//
// Saving writes a temporary file and renames it, so the name always has a complete file, the old or
// the new one. The bytes equal those of the reference writer. Tensors may have any device and
// layout; they are copied to the CPU one at a time.
//
// Blocking: saving returns when the file would survive a power failure.
// Errors: system, naming the file; further ones with each function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"

namespace torch::jit {
struct Module;
}

namespace lockstep {

struct Safetensors {
  NamedTensors tensors;  // On the CPU, in file order: larger elements first, then by name.
  std::map<std::string, std::string> metadata;
};

// Errors: misuse for a name that occurs twice or is not UTF-8, and for an undefined tensor;
// unsupported for a tensor that is not dense or whose type is none of F64 F32 F16 BF16 C64 I64 I32
// I16 I8 U8 BOOL; C64 is complex64.
LOCKSTEP_API void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

// Errors: corrupt, naming file and tensor, before memory of a claimed size is allocated;
// unsupported for types other than those of save_safetensors().
LOCKSTEP_API Safetensors load_safetensors(const std::filesystem::path& file);

// One rule of a NameTable.
struct NameRule {
  // A regular expression (of std::regex, ECMAScript) for the whole name. Names of more than 1000
  // bytes never match.
  std::string pattern;

  // "$1" and so on stand for the matches of the pattern's groups, "$&" for the whole name.
  std::string replacement = "$&";

  bool transpose = false;  // The file has the matrix transposed.
  bool ignore = false;     // The module does not have this tensor.
};

// Rules that map the tensor names of another program's file to those of a module.
//
//   const lockstep::NameTable names{
//       {.pattern = R"(h\.(\d+)\.(.+))", .replacement = "blocks.$1.$2"},
//       {.pattern = R"(.+\.masked_bias)", .ignore = true}};
//   lockstep::load_weights(*model, "model.safetensors", names);
//
// The first rule that matches a name applies; a name that no rule matches is unchanged.
//
// Thread safety: a value type; const members may be called from any thread at once.
// Errors: misuse for a pattern that is not a regular expression.
class LOCKSTEP_API NameTable {
 public:
  NameTable() = default;  // Keeps all names.
  NameTable(std::initializer_list<NameRule> rules);
  explicit NameTable(const std::vector<NameRule>& rules);

  struct Target {
    std::string name;
    bool transposed = false;
  };

  // Empty for an ignored name.
  std::optional<Target> find(const std::string& name) const;

 private:
  struct Rule;
  std::shared_ptr<const std::vector<Rule>> rules_;
};

// A pattern that matches only this name.
LOCKSTEP_API std::string exact_pattern(std::string_view name);

// For a file with `prefix` before the module's names, for example "module." from Python's
// DistributedDataParallel, or "_orig_mod." from torch.compile. Other names are unchanged.
LOCKSTEP_API NameTable without_prefix(const std::string& prefix);

// Saves named_tensors(module), with metadata that marks the names as PyTorch's. Errors: misuse for
// a module that holds parts of its parameters (sharded_module.h): save its whole_tensors().
LOCKSTEP_API void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);

// Copies the file's tensors into those of `module`, on any device. `names` maps the file's names to
// the module's, for files of programs with other names. A module that is cut takes no whole
// tensors: load them before parallelize_module().
// Errors: as load_safetensors(); misuse, naming the tensors, if names, types or shapes are not
// exactly the module's, or if two tensors of the file have one name in the module; mismatch, naming
// both, if two names of one tensor have unequal elements in the file. The module is then unchanged.
LOCKSTEP_API void load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                               const NameTable& names = {});

// The same for a TorchScript module.
LOCKSTEP_API void save_weights(const torch::jit::Module& script, const std::filesystem::path& file);
LOCKSTEP_API void load_weights(const torch::jit::Module& script, const std::filesystem::path& file,
                               const NameTable& names = {});

}  // namespace lockstep
