// The backend "lockstep" of torch.distributed: one object for each group of this process.
//
// Thread safety: any thread may call any member; a group's collectives must be called in one order,
// which is the same on all ranks.
// Blocking: the constructor until all ranks of the group have come. Destruction and shutdown()
// until a collective that has begun ends; they wait for no other rank otherwise.
// Errors: as Python's lockstep.Error (errors.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
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
  // Collective. Of the options of another backend, which torch.distributed gives to all backends of
  // one group, none is used.
  Backend(Place place, const c10::intrusive_ptr<Options>& options);
  ~Backend() override;

  const std::string getBackendName() const override { return backend_name; }
  const c10::intrusive_ptr<BackendOptions>& options() const { return options_; }

  // A copy: torch.distributed writes a new group's name into it.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;

  // A message to another rank, or from one. Messages run beside collectives, and in both directions
  // at once. Those of one tag between two ranks keep their order.
  Started send(Tensors& tensors, int peer, int tag) override;
  Started recv(Tensors& tensors, int peer, int tag) override;
  Started recvAnysource(Tensors& tensors, int tag) override;

  // Collective among `ranks` of this group; null on the other ranks. torch.distributed calls
  // split() and merge() once for each type of device that this group serves, with one store object:
  // the last group that either has made with it is returned again, as long as it lives.
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

  Backend(const Place& place, c10::intrusive_ptr<BackendOptions> options);
  c10::intrusive_ptr<::c10d::Backend> make(Place place, const c10::intrusive_ptr<Options>& options);

  c10::intrusive_ptr<::c10d::Backend> last_made_with(
      const c10::intrusive_ptr<::c10d::Store>& store);

  const c10::intrusive_ptr<BackendOptions> options_;
  std::mutex mutex_;  // Guards what make() has made last, and its store.
  std::optional<c10::weak_intrusive_ptr<::c10d::Backend>> last_made_;
  std::optional<c10::weak_intrusive_ptr<::c10d::Store>> last_store_;
};

}  // namespace lockstep::c10d
