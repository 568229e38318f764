// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/replicate/module_replica.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/state.h"
#include "lockstep/tensor/weight_state.h"

namespace lockstep::parallel {
namespace {

class DataParallelState final : public WeightState {
 public:
  explicit DataParallelState(ModuleReplica& replica) : replica_(replica) {}

  StateDict state_dict() override {
    require(has_values(), [this] {
      return replica_.without_value() +
             " has no value yet: call initialize() or load_weights() before a state is saved";
    });
    return state_dict_of(replica_.module());
  }

  StateRequest wanted(const StateDict& saved) override {
    require_fits(replica_.module(), saved);
    return request_for(saved);
  }

  StateRequest wanted_of_part(const StateDict& saved) override {
    require_part_fits(replica_.module(), saved);
    return request_for(saved);
  }

  StateTargets targets() override { return targets_of(replica_.module(), has_values()); }

  void load_state_dict(StateDict state) override {
    if (replica_.shared() == nullptr) return copy_into(replica_.module(), state);
    replica_.initialize([&] { copy_into(replica_.module(), state); });
  }

 private:
  StateRequest request_for(const StateDict& saved) const {
    StateRequest request = wanted_in_place(replica_.module(), saved);
    return replica_.shared() != nullptr ? share_of(std::move(request)) : request;
  }

  // Consecutive parameters. Rank 0 also has buffers, and what must be copied or compared.
  StateRequest share_of(StateRequest request) const {
    std::map<std::string, int> names;  // By first name.
    const auto firsts = first_names(named_tensors(replica_.module()));
    for (const auto& [name, first] : firsts) ++names[first];
    StateRequest in_place;
    std::uint64_t bytes = 0;
    for (const auto& [name, parameter] : named_parameters(replica_.module())) {
      const auto found = request.find(name);
      if (found == request.end() || !found->second.into.defined() || names[firsts.at(name)] > 1)
        continue;
      bytes += parameter.nbytes();
      in_place.insert(request.extract(found));
    }
    if (replica_.group().rank() != 0) request.clear();
    const std::uint64_t share = bytes / static_cast<std::uint64_t>(replica_.group().size()) + 1;
    std::uint64_t before = 0;
    for (auto& [name, range] : in_place) {
      const std::uint64_t begin = std::exchange(before, before + range.into.nbytes());
      if (begin / share == static_cast<std::uint64_t>(replica_.group().rank()))
        request.emplace(name, std::move(range));
    }
    return request;
  }

  bool has_values() const { return replica_.without_value().empty(); }

  ModuleReplica& replica_;
};

}  // namespace
}  // namespace lockstep::parallel

namespace lockstep {

std::unique_ptr<Stateful> DataParallelBase::state() {
  return std::make_unique<parallel::DataParallelState>(*replica_);
}

std::unique_ptr<Stateful> state_of(DataParallelBase& ddp) { return ddp.state(); }

}  // namespace lockstep
