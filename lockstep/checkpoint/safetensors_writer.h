// Writes a file of safetensors one tensor at a time, so that not all need be in memory at once.
//
//   lockstep::SafetensorsWriter out(file, tensors);  // Types and shapes of these alone.
//   for (const std::string& name : out.order()) out.write(read(name));
//   out.commit();
//
// Until the end, whatever had the file's name stays as it is.
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
  // `tensors` may be on any device, also on meta: none of their elements are looked at.
  SafetensorsWriter(const std::filesystem::path& file, const NamedTensors& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The names, as their tensors come in the file.
  const std::vector<std::string>& order() const;

  // The next one in that order, of the type and shape that were announced.
  void write(const at::Tensor& tensor);

  // When all are written; the last call on the object.
  void commit();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
