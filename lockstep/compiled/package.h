// A package of python/lockstep_export: an archive of compiled code and its description.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/compiled/signature.h"

namespace torch::inductor {
class AOTIModelContainerRunnerCpu;
}

namespace lockstep::compiled {

// Compiled code of one graph. Thread safety: one call at a time.
class Code {
 public:
  // `file`, a shared library, may be removed afterwards.
  Code(const std::filesystem::path& file, GraphForm form);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  const GraphForm& form() const { return form_; }

  // Takes parameters, buffers and inputs, and returns the results of GraphForm. Nothing is checked:
  // another shape or layout than exported causes accesses out of bounds. Errors: corrupt if the
  // number of results differs from GraphForm.
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

// Loads a package's code, using a temporary folder in TMPDIR. Load only packages from trusted
// sources. Errors: system if the file cannot be read, or the folder cannot be written. corrupt,
// naming the file, if it is damaged or not such a package. unsupported as require_runnable().
LoadedPackage load_package(const std::filesystem::path& file);

}  // namespace lockstep::compiled
