// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/vector_math.h"

#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

namespace lockstep {

void settle_vector_math() {
  static const bool settled = at::sin(at::zeros({1})).defined();  // All functions share the choice.
  static_cast<void>(settled);
}

}  // namespace lockstep
