// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/summed.h"

#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/registered_pool.h"

namespace lockstep {

at::Tensor summed(at::IntArrayRef sizes, const at::TensorOptions& type, const ProcessGroup& group,
                  const CallOptions& options, c10::function_ref<void(const at::Tensor&)> write) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(type.dtype());
  require_reducible(dtype, ReduceOp::sum, "a reduction");
  const Labelled labelled(options, shape_text(dtype, sizes));
  const at::Tensor sum = tensor::RegisteredPool::of(group)->empty(sizes, type, group, labelled);
  write(sum);
  group.all_reduce(reducible(sum, ReduceOp::sum), ReduceOp::sum, labelled);
  return sum;
}

}  // namespace lockstep
