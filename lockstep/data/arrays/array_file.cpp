// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/arrays/array_file.h"

#include <ATen/ops/from_blob.h>

#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/data/arrays/npy_header.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep {
namespace {

at::ScalarType scalar_type_of_array(const data::NpyHeader& header) {
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

}  // namespace

ArrayFile::ArrayFile(const std::filesystem::path& file)
    : file_(std::make_shared<data::MappedFile>(file, data::MappedFile::Pages::copy_on_write)) {
  const data::NpyHeader header = data::parse_npy_header(file_->name(), file_->bytes());
  tensor_ = at::from_blob(
      file_->data() + header.begin, header.shape, [keep = file_](void*) {},
      at::TensorOptions(scalar_type_of_array(header)));
}

const std::string& ArrayFile::name() const { return file_->name(); }

}  // namespace lockstep
