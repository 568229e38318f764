// The backend "lockstep" of torch.distributed: one object for each group of this process.
//
// Thread safety: any thread may call any member; a group's collectives must be called in one order,
// which is the same on all ranks.
// Blocking: the constructor until all ranks of the group have come. Destruction and shutdown() wait
// for no other rank.
// Errors: as Python's lockstep.Error (errors.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/membership.h"

namespace lockstep::c10d {

constexpr const char* backend_name = "lockstep";

// What `pg_options` of init_process_group() and new_group() may say.
struct BackendOptions final : ::c10d::Backend::Options {
  BackendOptions() : Options(backend_name) {}

  std::string interface;  // Network between hosts: InitOptions::interface.
  std::string transport;  // Transport of data: InitOptions::backend.
};

class Backend final : public Collectives {
 public:
  // Collective.
  Backend(Place place, c10::intrusive_ptr<BackendOptions> options);
  ~Backend() override;

  const std::string getBackendName() const override { return backend_name; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  // A message to another rank, or from one. Messages run beside collectives, and in both directions
  // at once. Those of one tag between two ranks keep their order.
  Started send(Tensors& tensors, int peer, int tag) override;
  Started recv(Tensors& tensors, int peer, int tag) override;
  Started recvAnysource(Tensors& tensors, int tag) override;

  // Collective among `ranks` of this group; null on the other ranks.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<::c10d::Backend> split(const c10::intrusive_ptr<::c10d::Store>& store,
                                            const std::vector<int>& ranks,
                                            const c10::intrusive_ptr<Options>& opts) override;

  // Collective among the `size` ranks that meet in `store`.
  c10::intrusive_ptr<::c10d::Backend> merge(const c10::intrusive_ptr<::c10d::Store>& store,
                                            const c10::intrusive_ptr<Options>& opts,
                                            const int& rank, const int& size) override;

  // A tensor in registered memory, without the other ranks. fully_shard() asks for its buffers here
  // after set_allocate_memory_from_process_group_for_comm().
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long elements, at::TensorOptions type) override;

  void enableCollectivesTiming() override {}  // The flight recorder always has times.
  ::c10d::ErrorType getError() override { return membership()->error(); }
  void abort() override;
  void shutdown() override;

 private:
  Started receive(Tensors& tensors, int peer, int tag, Operands operands);

  const c10::intrusive_ptr<BackendOptions> options_;
};

}  // namespace lockstep::c10d
