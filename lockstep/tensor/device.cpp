// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"

namespace lockstep {

c10::Device local_device(const ProcessGroup& group) {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA))
    throw Error(Fault::unsupported, "local_device: this LibTorch is built without CUDA");
  const int devices = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  if (devices == 0) throw Error(Fault::unsupported, "local_device: there is no CUDA device here");
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(group.local_rank() % devices)};
}

void set_device(Buffer& buffer, const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Stream stream = cuda.getStream(tensor.device());
  cuda.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  buffer.device = DeviceKind::cuda;
  buffer.device_index = tensor.device().index();
  buffer.stream = stream.native_handle();
}

}  // namespace lockstep
