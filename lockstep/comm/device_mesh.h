// Named axes of a group: rank r has the coordinates of element r of an n-dimensional array.
//
//   lockstep::DeviceMesh mesh(world, {{"dp", -1}, {"tp", 2}});  // With 8 ranks: dp=4, tp=2.
//   mesh["tp"]            // On rank 3: 2 and 3, which differ in tp alone.
//   mesh[{"dp", "tp"}]    // Ranks that differ in these two alone.
//   mesh.rank("tp")       // This rank's coordinate: mesh["tp"].rank().
//
// As in PyTorch's init_device_mesh(), the last axis varies fastest: its ranks usually share a host.
// Thread safety: any thread.
// Blocking: shrink(), the constructor, and operator[] with a new set of axes; the latter two are
// collective over the whole group.
// Errors: misuse, on all ranks, before any group is made, when the product of the sizes is not the
// number of ranks. The same for two sizes of -1, and for an empty or repeated name. Mismatch, on
// all ranks, when their axes differ; the given group stays usable. Misuse for an unknown axis.
// Lifetime: copies share the groups, which end with the mesh's group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct MeshAxis {
  std::string name;
  int size = -1;  // -1, for at most one axis: inferred.
};
using MeshDim [[deprecated("renamed to MeshAxis")]] = MeshAxis;

class LOCKSTEP_API DeviceMesh {
 public:
  // Splits `group` once per axis, in their order.
  DeviceMesh(const ProcessGroup& group, const std::vector<MeshAxis>& axes);

  // The ranks that differ from this one only in axis `name`, ordered by coordinate. The group of
  // the parent's second split, with color 3, is called "world.2.tp:3", for example.
  ProcessGroup operator[](std::string_view name) const;

  // The same for several axes, in the mesh's row-major order, whatever the order of `names`. All
  // ranks must first use each set of axes in the same order. Later calls return the set's group.
  ProcessGroup operator[](std::initializer_list<std::string_view> names) const;
  ProcessGroup operator[](const std::vector<std::string>& names) const;

  const ProcessGroup& group() const;

  // After the loss of ranks of an ElasticGroup: this mesh on ranks of `world`, the group of a later
  // generation. Axis `replicas` loses each coordinate of which a rank is not in `world`. Living
  // ranks of such a replica are spare: they get nothing, also for later worlds. The others keep
  // their order.
  // Collective over the ranks that get a mesh.
  // Errors: as lockstep::shrink(). Unsupported, on all ranks, if no replica is complete; misuse for
  // an unknown axis.
  std::optional<DeviceMesh> shrink(const ProcessGroup& world, std::string_view replicas) const;

  const std::vector<std::string>& names() const;
  int size(std::string_view name) const;
  int rank(std::string_view name) const;

 private:
  class State;

  std::shared_ptr<State> state_;
};

}  // namespace lockstep
