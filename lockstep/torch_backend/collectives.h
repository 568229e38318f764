// A group's collectives with the signatures of torch.distributed.
//
// Tensors are dense and in CPU memory; all_reduce() also takes sparse ones. Contiguous tensors are
// used in place, lists of them if adjacent in memory; others are copied. Collectives run in call
// order (ordered_calls.h), synchronous ones on the calling thread.
// Errors: as Python's lockstep.Error. Misuse and unsupported, from the call or its Work; otherwise
// as ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/torch_backend/coalescing.h"
#include "lockstep/torch_backend/membership.h"
#include "lockstep/torch_backend/work.h"

namespace lockstep::torch_backend {

class Collectives : public c10d::Backend {
 public:
  Started allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;

  // A blocking sum of a contiguous tensor.
  void all_reduce_(const at::Tensor& tensor);

  // Tensors may overlap: each is reduced from its values before the call.
  Started allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;

  Started broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Started reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;

  // Tensors in `outputs` may differ in size; all ranks pass the same sizes.
  Started allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  Started _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  Started allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  Started allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;

  // `outputs`, like scatter()'s inputs, has one list on the root; ignored elsewhere.
  Started gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  Started scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;

  // Tensors in `inputs` may differ in size likewise.
  Started reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  Started _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  Started reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;

  // Rows per rank to receive and to send; empty: equal parts.
  Started alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_rows,
                        std::vector<std::int64_t>& input_rows,
                        const c10d::AllToAllOptions& opts) override;
  Started alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;

  Started barrier(const c10d::BarrierOptions& opts) override;

  // Error::ranks() has all missing ranks; `wait_all_ranks` changes only the message.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Between these two calls, only monitoredBarrier() and all_reduce_() block. supportsCoalescing()
  // stays false: batch_isend_irecv() would get one Work, without the messages' sources.
  void startCoalescing() override;
  Started endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

 protected:
  Collectives(int rank, int size, std::shared_ptr<Membership> membership);

  const std::shared_ptr<Membership>& membership() const { return membership_; }

  // Adds `work` if this thread coalesces.
  Started coalesced(Started work);

 private:
  // Queues asynchronous and coalesced calls.
  template <class Opts, class Body>
  Started start(Operands operands, const Opts& opts, Body body);
  Started start_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& opts);

  const std::shared_ptr<Membership> membership_;
  std::atomic<std::uint64_t> sequence_{0};
  Coalescing coalescing_;
};

}  // namespace lockstep::torch_backend
