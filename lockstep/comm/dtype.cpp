// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/dtype.h"

namespace lockstep {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::int64:
      return "int64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::uint8:
      return "uint8";
  }
  return "unknown";
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::uint8:
      return 1;
    case DType::bfloat16:
      return 2;
    case DType::float32:
      return 4;
    case DType::float64:
    case DType::int64:
      return 8;
  }
  return 0;
}

}  // namespace lockstep
