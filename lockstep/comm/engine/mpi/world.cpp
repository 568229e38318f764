// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/mpi/world.h"

#include <memory>

#include "lockstep/comm/engine/plugin.h"

namespace lockstep::mpi {
namespace {

MPI_Comm handed_over(const void* original) {
  return original == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(original);
}

// A duplicate is an attribute of its original. A map by handle would fail, because MPI reuses the
// handle of a freed communicator.
int key_of_duplicate() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made, nullptr),
          "MPI_Comm_create_keyval");
    return made;
  }();
  return key;
}

const MPI_Comm* find_duplicate(MPI_Comm original) {
  void* value = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(original, key_of_duplicate(), &value, &found), "MPI_Comm_get_attr");
  return found != 0 ? static_cast<const MPI_Comm*>(value) : nullptr;
}

}  // namespace

const MPI_Comm* duplicate_world(const void* original_world) {
  const MPI_Comm original = handed_over(original_world);
  if (original == MPI_COMM_NULL)
    throw plugin::Failed{Fault::misuse, "the communicator handed over is MPI_COMM_NULL"};
  if (const MPI_Comm* duplicate = find_duplicate(original)) return duplicate;
  auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  check(MPI_Comm_dup(original, made.get()), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_set_attr(original, key_of_duplicate(), made.get()), "MPI_Comm_set_attr");
  return made.release();  // The attribute owns it, for the life of the process.
}

MPI_Comm duplicated_world(const void* world) {
  if (world != nullptr) return *static_cast<const MPI_Comm*>(world);
  throw plugin::Failed{Fault::bug, "create() or tell_all() before identify()"};
}

int rank_in(MPI_Comm communicator) {
  int rank = 0;
  check(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of(MPI_Comm communicator) {
  int size = 0;
  check(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  return size;
}

}  // namespace lockstep::mpi
