// The collectives of a group with the signatures of torch.distributed.
//
// Tensors are dense, in CPU memory, and of any type; all_reduce() also takes sparse ones.
// Contiguous tensors, and lists whose tensors are adjacent in memory, are used in place. Others are
// copied. Order: collectives run in the order of their calls (ordered_calls.h). Synchronous ones
// run on the calling thread.
// Errors: misuse and unsupported for wrong arguments, thrown by the call or its Work; otherwise as
// ProcessGroup's. All are thrown as Python's lockstep.Error.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/c10d/coalescing.h"
#include "lockstep/c10d/membership.h"
#include "lockstep/c10d/work.h"

namespace lockstep::c10d {

class Collectives : public ::c10d::Backend {
 public:
  Started allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;

  // Tensors may overlap. Each is reduced from its values before the call.
  Started allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;

  Started broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  Started reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;

  // The tensors of `outputs` may differ in size. The sizes must be equal on all ranks.
  Started allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override;
  Started _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override;
  Started allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  Started allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;

  // `outputs` has one list on the root and none on other ranks, like the inputs of scatter().
  Started gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& opts) override;
  Started scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const ::c10d::ScatterOptions& opts) override;

  // The tensors of `inputs` may differ in size. The sizes must be equal on all ranks.
  Started reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override;
  Started _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override;
  Started reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;

  // The lists have the number of rows per rank to send and to receive. Empty: equal parts.
  Started alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_rows,
                        std::vector<std::int64_t>& input_rows,
                        const ::c10d::AllToAllOptions& opts) override;
  Started alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override;

  Started barrier(const ::c10d::BarrierOptions& opts) override;

  // Each rank that arrived gets an error with all missing ranks, regardless of `wait_all_ranks`.
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Between these calls, no call of this thread blocks. The Work of endCoalescing() completes when
  // all operations have. supportsCoalescing() stays false: only batch_isend_irecv() checks it. It
  // would get one Work for all messages, without their sources, and would not be faster, because
  // messages start at once anyway.
  void startCoalescing() override;
  Started endCoalescing() override;

  // Number of collectives called. It starts at 0 on all ranks.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

 protected:
  Collectives(int rank, int size, std::shared_ptr<Membership> membership);

  const std::shared_ptr<Membership>& membership() const { return membership_; }

  // Returns `work`, and adds it to the result of endCoalescing() on this thread.
  Started coalesced(Started work);

 private:
  // Runs body(group, options) on this thread if synchronous, otherwise as a queued call.
  template <class Opts, class Body>
  Started start(Operands operands, const Opts& opts, Body body);
  Started start_sparse(const at::Tensor& tensor, const ::c10d::AllreduceOptions& opts);

  const std::shared_ptr<Membership> membership_;
  std::atomic<std::uint64_t> sequence_{0};
  Coalescing coalescing_;
};

}  // namespace lockstep::c10d
