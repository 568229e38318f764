// A package of python/lockstep_export: an archive of compiled code and its description.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/toolkit/compiled/signature.h"

namespace torch::inductor {
class AOTIModelContainerRunnerCpu;
}

namespace lockstep::compiled {

// One graph's. Thread safety: one call at a time.
class Code {
 public:
  // `file`, a shared library, may be removed afterwards.
  Code(const std::filesystem::path& file, GraphForm form);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  const GraphForm& form() const { return form_; }

  // Takes parameters, buffers and inputs; returns GraphForm's results. Unchecked: another shape or
  // layout than exported causes accesses out of bounds. Errors: corrupt for another number of
  // results.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;

 private:
  const GraphForm form_;
  const std::unique_ptr<torch::inductor::AOTIModelContainerRunnerCpu> runner_;
};

struct LoadedPackage {
  Signature signature;
  std::unique_ptr<const Code> train;
  std::unique_ptr<const Code> eval;
};

// Uses a temporary folder in TMPDIR. Errors: system if the file cannot be read, the folder written
// or the code loaded; corrupt for a file that is damaged or no package. Unsupported as
// read_signature() and require_runnable().
LoadedPackage load_package(const std::filesystem::path& file);

}  // namespace lockstep::compiled
