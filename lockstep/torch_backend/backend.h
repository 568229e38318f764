// The backend "lockstep" of torch.distributed: one object per group.
//
// Thread safety: full. All ranks must call a group's collectives in one order.
// Blocking: construction, split(), merge() and synchronous collectives, for other ranks;
// destruction and shutdown(), for a running collective.
// Errors: as Python's lockstep.Error (errors.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/torch_backend/collectives.h"
#include "lockstep/torch_backend/membership.h"

namespace lockstep::torch_backend {

constexpr const char* backend_name = "lockstep";

// The `pg_options` of init_process_group() and new_group().
struct BackendOptions final : c10d::Backend::Options {
  BackendOptions() : Options(backend_name) {}

  std::string interface;  // InitOptions::interface.
  std::string transport;  // InitOptions::backend.
};

class Backend final : public Collectives {
 public:
  // Collective. Ignores other backends' options.
  Backend(Place place, const c10::intrusive_ptr<Options>& options);
  ~Backend() override;

  const std::string getBackendName() const override { return backend_name; }
  const c10::intrusive_ptr<BackendOptions>& options() const { return options_; }

  // A copy: torch.distributed writes a new group's name into it.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;

  // Messages with one tag between two ranks keep their order.
  Started send(Tensors& tensors, int peer, int tag) override;
  Started recv(Tensors& tensors, int peer, int tag) override;
  Started recvAnysource(Tensors& tensors, int tag) override;

  // Collective among `ranks`; null elsewhere. torch.distributed calls split() and merge() once per
  // device type, with one store: later calls with that store return the same group while it exists.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;

  // Collective among the `size` ranks that share `store`.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& opts, const int& rank,
                                          const int& size) override;

  // In registered memory. Not collective.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long elements, at::TensorOptions type) override;

  void enableCollectivesTiming() override {}  // The flight recorder always has times.
  c10d::ErrorType getError() override { return membership()->error(); }
  void abort() override;
  void shutdown() override;

 private:
  Started receive(Tensors& tensors, int peer, int tag, Operands operands);

  Backend(const Place& place, c10::intrusive_ptr<BackendOptions> options);
  c10::intrusive_ptr<c10d::Backend> make(Place place, const c10::intrusive_ptr<Options>& options);

  c10::intrusive_ptr<c10d::Backend> last_made_with(const c10::intrusive_ptr<c10d::Store>& store);

  const c10::intrusive_ptr<BackendOptions> options_;
  std::mutex mutex_;  // Guards the next two.
  std::optional<c10::weak_intrusive_ptr<c10d::Backend>> last_made_;
  std::optional<c10::weak_intrusive_ptr<c10d::Store>> last_store_;
};

}  // namespace lockstep::torch_backend
