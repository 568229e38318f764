// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/engine/mpi/communicator.h"

#include <memory>
#include <string_view>

#include "lockstep/comm/engine/mpi/library.h"
#include "lockstep/comm/engine/mpi/types.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::mpi {
namespace {

using plugin::are_equal;
using plugin::bytes_of_element;
using plugin::copy_part;
using plugin::Failed;
using plugin::Part;
using plugin::Parts;
using plugin::whole;

struct Group {
  MPI_Group handle = MPI_GROUP_NULL;

  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (handle != MPI_GROUP_NULL) MPI_Group_free(&handle);
  }
};

// FNV-1a of the name, within MPI's tag range: several threads may make communicators at once.
int tag_of(std::string_view name) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;

  void* value = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found), "MPI_Comm_get_attr");
  const int largest = found != 0 ? *static_cast<const int*>(value) : 32767;  // MPI guarantees this.
  return static_cast<int>(hash % (static_cast<std::uint64_t>(largest) + 1));
}

MPI_Comm make(const lockstep_engine_config& config) {
  const MPI_Comm all = duplicated_world(config.world);
  if (size_of(all) != config.world_size)
    throw Failed{Fault::misuse, "MPI's communicator has " + std::to_string(size_of(all)) +
                                    " ranks, and the job " + std::to_string(config.world_size)};
  Group world;
  Group members;
  check(MPI_Comm_group(all, &world.handle), "MPI_Comm_group");
  check(MPI_Group_incl(world.handle, config.size, config.world_ranks, &members.handle),
        "MPI_Group_incl");
  MPI_Comm made = MPI_COMM_NULL;
  check(MPI_Comm_create_group(all, members.handle, tag_of(config.name), &made),
        "MPI_Comm_create_group");
  check(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return made;
}

struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};

Reduction reduction_of(const lockstep_buffer& buffer, std::uint8_t reduce_op) {
  const auto dtype = static_cast<DType>(buffer.dtype);
  const Reduction native{type_of(dtype), op_of(dtype, static_cast<ReduceOp>(reduce_op))};
  if (native.op == MPI_OP_NULL)
    throw Failed{Fault::unsupported, "MPI does not have this reduction of this type"};
  return native;
}

void broadcast_bytes(const Part& part, int root, MPI_Comm comm) {
  in_chunks(part, 1, [&](std::byte* at, int count) {
    check(MPI_Bcast(at, count, MPI_BYTE, root, comm), "MPI_Bcast");
  });
}

// In place at `root`.
void reduce_elements(const Part& part, std::size_t element, Reduction native, int root, int rank,
                     MPI_Comm comm) {
  in_chunks(part, element, [&](std::byte* at, int count) {
    const void* from = rank == root ? MPI_IN_PLACE : at;
    void* to = rank == root ? at : nullptr;
    check(MPI_Reduce(from, to, count, native.type, native.op, root, comm), "MPI_Reduce");
  });
}

}  // namespace

Communicator::Communicator(const lockstep_engine_config& config) : comm_(make(config)) {
  rank_ = rank_in(comm_);
  size_ = size_of(comm_);
  if (rank_ != config.rank || size_ != config.size)
    throw Failed{Fault::bug, "MPI counts the members of a communicator in another order"};
}

Communicator::~Communicator() {
  int ended = 0;
  if (!is_whole_ || MPI_Finalized(&ended) != MPI_SUCCESS || ended != 0) return;
  if (MPI_Comm_free(&comm_) == MPI_SUCCESS) unfinished_.finish();
}

void Communicator::run(const lockstep_collective& call) {
  try {
    plugin::run_native(*this, call);
    if (!plugin::is_sent_at_once(call)) check(MPI_Barrier(comm_), "MPI_Barrier");
  } catch (...) {
    is_whole_ = false;
    throw;
  }
}

bool Communicator::combines(std::uint8_t dtype, std::uint8_t reduce_op) {
  return op_of(static_cast<DType>(dtype), static_cast<ReduceOp>(reduce_op)) != MPI_OP_NULL;
}

void Communicator::all_reduce(const lockstep_collective& call) {
  const Reduction native = reduction_of(call.output, call.reduce_op);
  in_chunks(whole(call.output), bytes_of_element(call.output.dtype), [&](void* at, int count) {
    check(MPI_Allreduce(MPI_IN_PLACE, at, count, native.type, native.op, comm_), "MPI_Allreduce");
  });
}

void Communicator::broadcast(const lockstep_collective& call) {
  broadcast_bytes(whole(call.output), call.root, comm_);
}

void Communicator::reduce(const lockstep_collective& call) {
  reduce_elements(whole(call.output), bytes_of_element(call.output.dtype),
                  reduction_of(call.output, call.reduce_op), call.root, rank_, comm_);
}

// In place on every rank: MPI requires all ranks to agree on that.
void Communicator::all_gather(const lockstep_collective& call) {
  const Parts parts(call.output, call.receive_counts, size_);
  if (parts.all.bytes == 0) return;
  copy_part({static_cast<std::byte*>(call.input.data), parts[rank_].bytes}, parts[rank_].data);

  if (parts.all.bytes > largest_call) {
    for (int rank = 0; rank < size_; ++rank) broadcast_bytes(parts[rank], rank, comm_);
  } else if (are_equal(call.receive_counts, size_)) {
    check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, call.output.data,
                        static_cast<int>(parts[rank_].bytes), MPI_BYTE, comm_),
          "MPI_Allgather");
  } else {
    check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, call.output.data, as_ints(parts.sizes).data(),
                         as_ints(parts.begins).data(), MPI_BYTE, comm_),
          "MPI_Allgatherv");
  }
}

void Communicator::reduce_scatter(const lockstep_collective& call) {
  const Reduction native = reduction_of(call.input, call.reduce_op);
  const std::size_t element = bytes_of_element(call.input.dtype);
  const Parts parts(call.input, call.send_counts, size_);
  if (parts.all.bytes == 0) return;
  const Part own = parts[rank_];
  auto* const result = static_cast<std::byte*>(call.output.data);

  if (parts.all.bytes > largest_call) {
    copy_part(own, result);
    for (int rank = 0; rank < size_; ++rank) {
      const Part part = rank == rank_ ? Part{result, own.bytes} : parts[rank];
      reduce_elements(part, element, native, rank, rank_, comm_);
    }
    return;
  }
  // MPI requires a result outside its input.
  const bool in_place = own.data == result;
  const auto apart = std::make_unique_for_overwrite<std::byte[]>(in_place ? own.bytes : 0);
  check(MPI_Reduce_scatter(call.input.data, in_place ? apart.get() : result,
                           as_ints(parts.sizes, element).data(), native.type, native.op, comm_),
        "MPI_Reduce_scatter");
  if (in_place) copy_part({apart.get(), own.bytes}, result);
}

// By messages, divided equally at both ends: some ranks' parts might fit one MPI_Alltoallv() while
// others' do not.
void Communicator::all_to_all(const lockstep_collective& call) {
  const Parts sent(call.input, call.send_counts, size_);
  const Parts received(call.output, call.receive_counts, size_);
  constexpr int tag = 0;
  Messages messages;
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    in_chunks(received[from], 1, [&](void* at, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Irecv(at, count, MPI_BYTE, from, tag, comm_, &request), "MPI_Irecv");
      messages.add(request);
    });
  }
  for (int distance = 1; distance < size_; ++distance) {
    const int to = (rank_ + distance) % size_;
    in_chunks(sent[to], 1, [&](const void* at, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(at, count, MPI_BYTE, to, tag, comm_, &request), "MPI_Isend");
      messages.add(request);
    });
  }
  copy_part(sent[rank_], received[rank_].data);
  messages.wait();
}

}  // namespace lockstep::comm::mpi
