// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors_writer.h"

#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/atomic_file.h"
#include "lockstep/checkpoint/element_types.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep {
namespace {

SafetensorsHeader header_for(const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  for (const auto& [name, tensor] : tensors) header.entries.push_back(entry_for(name, tensor));
  lay_out(header);
  return header;
}

}  // namespace

struct SafetensorsWriter::State {
  State(const std::filesystem::path& path, SafetensorsHeader laid_out, const std::string& head)
      : header(std::move(laid_out)),
        file(path, head.size() + (header.entries.empty() ? 0 : header.entries.back().end)) {
    for (const SafetensorsEntry& entry : header.entries) order.push_back(entry.name);
    file.write(std::as_bytes(std::span(head)));
  }

  const SafetensorsHeader header;
  std::vector<std::string> order;
  std::size_t written = 0;  // Number of tensors.
  AtomicFile file;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file, const NamedTensors& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_([&] {
        SafetensorsHeader header = header_for(tensors, metadata);
        const std::string head = format_safetensors_header(header);
        return std::make_unique<State>(file, std::move(header), head);
      }()) {}

SafetensorsWriter::~SafetensorsWriter() = default;

const std::vector<std::string>& SafetensorsWriter::order() const { return state_->order; }

void SafetensorsWriter::write(const at::Tensor& tensor) {
  const auto& entries = state_->header.entries;
  require(state_->written < entries.size(), "safetensors: all tensors are written");
  const SafetensorsEntry& entry = entries[state_->written];
  require(tensor.scalar_type() == scalar_type_of(entry.type) && tensor.sizes() == entry.shape,
          [&] { return "safetensors: tensor " + shown(entry.name) + " is not as announced"; });
  const at::Tensor values = plain_values(tensor);
  state_->file.write({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  ++state_->written;
}

void SafetensorsWriter::commit() {
  require(state_->written == state_->order.size(), "safetensors: tensors are missing");
  state_->file.commit();
}

}  // namespace lockstep
