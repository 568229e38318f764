// Writes a safetensors file one tensor at a time, so that not all tensors need be in memory at
// once.
//
//   lockstep::SafetensorsWriter out(file, tensors);  // Types and shapes of these alone.
//   for (const std::string& name : out.order()) out.write(read(name));
//   out.commit();
//
// Until commit(), an existing file of that name stays unchanged.
//
// Errors: as save_safetensors(); misuse for a tensor that is not the next one.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class LOCKSTEP_API SafetensorsWriter {
 public:
  // `tensors` may be on any device, including meta, because their elements are not read.
  SafetensorsWriter(const std::filesystem::path& file, const NamedTensors& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Names in the order in which the file has their tensors.
  const std::vector<std::string>& order() const;

  // Writes the next tensor in that order. It must have the announced type and shape.
  void write(const at::Tensor& tensor);

  // Call when all tensors are written. No other call may follow.
  void commit();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
