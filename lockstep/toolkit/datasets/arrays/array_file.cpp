// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/arrays/array_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/toolkit/datasets/arrays/npy_header.h"
#include "lockstep/toolkit/datasets/arrays/npz_file.h"
#include "lockstep/toolkit/datasets/input_file.h"
#include "lockstep/toolkit/datasets/mapped_file.h"

namespace lockstep {
namespace {

using FilePtr = std::shared_ptr<datasets::MappedFile>;

at::ScalarType scalar_type_of_array(const datasets::NpyHeader& header) {
  struct Type {
    char kind;
    std::uint64_t width;
    at::ScalarType type;
  };
  constexpr Type types[]{
      {'b', 1, at::kBool},         {'i', 1, at::kChar},          {'i', 2, at::kShort},
      {'i', 4, at::kInt},          {'i', 8, at::kLong},          {'u', 1, at::kByte},
      {'u', 2, at::kUInt16},       {'u', 4, at::kUInt32},        {'u', 8, at::kUInt64},
      {'f', 2, at::kHalf},         {'f', 4, at::kFloat},         {'f', 8, at::kDouble},
      {'c', 8, at::kComplexFloat}, {'c', 16, at::kComplexDouble}};
  for (const Type& each : types)
    if (each.kind == header.kind && each.width == header.width) return each.type;
  throw Error(Fault::bug, "an array's type without a tensor's");
}

std::vector<std::int64_t> strides_of(const datasets::NpyHeader& header) {
  std::vector<std::int64_t> strides(header.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const std::size_t dim = header.fortran_order ? i : strides.size() - 1 - i;
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(header.shape[dim], 1);
  }
  return strides;
}

// `owner` keeps the memory of the .npy valid.
template <class Owner>
at::Tensor tensor_of_npy(const std::string& name, std::span<const std::byte> bytes, Owner owner) {
  const datasets::NpyHeader header = datasets::parse_npy_header(name, bytes);
  const auto strides = strides_of(header);
  const at::TensorOptions options(scalar_type_of_array(header));
  const std::byte* const values = bytes.data() + header.begin;
  const std::uint64_t alignment = std::min<std::uint64_t>(header.width, 8);
  if (reinterpret_cast<std::uintptr_t>(values) % alignment != 0) {
    datasets::require_memory_for(name, header.values * header.width);
    at::Tensor tensor = at::empty_strided(header.shape, strides, options);
    std::memcpy(tensor.mutable_data_ptr(), values, header.values * header.width);
    return tensor;
  }
  // Mapped pages and buffers are writable.
  return at::from_blob(
      const_cast<std::byte*>(values), header.shape, strides, [owner](void*) {}, options);
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 20;
  std::string list;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i)
    (list += i == 0 ? "" : ", ") += "'" + clean_text(names[i]) + "'";
  if (names.size() > most) list += " and " + std::to_string(names.size() - most) + " more";
  return list.empty() ? "none" : list;
}

std::string name_in(const FilePtr& file, std::string_view array) {
  const auto names = datasets::names_in_npz(file->name(), file->bytes());
  if (array.empty() && names.size() == 1) return names.front();
  require(std::ranges::find(names, array) != names.end(), [&] {
    return file->name() + ": name one of its arrays, ArrayFile(file, name): " + listed(names);
  });
  return std::string(array);
}

at::Tensor tensor_in_npz(const FilePtr& file, const std::string& name, std::string_view array) {
  at::Tensor memory;
  const auto allocate = [&](std::uint64_t size) {
    datasets::require_memory_for(name, size);
    memory = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
    return std::span(static_cast<std::byte*>(memory.mutable_data_ptr()), size);
  };
  const auto bytes = datasets::array_in_npz(file->name(), file->bytes(), array, allocate);
  return memory.defined() ? tensor_of_npy(name, bytes, memory) : tensor_of_npy(name, bytes, file);
}

}  // namespace

ArrayFile::ArrayFile(const std::filesystem::path& path, std::string_view array) {
  const auto file =
      std::make_shared<datasets::MappedFile>(path, datasets::MappedFile::Pages::copy_on_write);
  name_ = file->name();
  if (datasets::is_zip(file->bytes())) {
    const std::string chosen = name_in(file, array);
    name_ += ": " + clean_text(chosen);
    tensor_ = tensor_in_npz(file, name_, chosen);
    return;
  }
  require(array.empty(), [&] {
    return name_ + ": only an .npz has arrays with names, such as '" + clean_text(array) + "'";
  });
  tensor_ = tensor_of_npy(name_, file->bytes(), file);
}

std::vector<std::string> ArrayFile::names(const std::filesystem::path& path) {
  const datasets::MappedFile file(path);
  if (!datasets::is_zip(file.bytes())) return {};
  return datasets::names_in_npz(file.name(), file.bytes());
}

}  // namespace lockstep
