/* The C ABI of an engine plugin, which moves data between hosts for the core.

   An engine is a shared object, liblockstep-engine-<name>.so, that exports one function,
   lockstep_engine_v1(). The core links no engine: it opens the plugin when a job needs it.

   Thread safety: the core calls create(), run() and destroy() of one communicator from one thread
   at a time. It calls those of different communicators from different threads at once, and cancel()
   from any thread. If the library underneath does not allow that, create() must refuse with the
   reason.
   Errors: every function that can fail returns 0 on success. Otherwise it fills in `error` and
   returns another number. No exception leaves the plugin.
   Lifetime: memory passed in belongs to the caller and is not used after the call, except where a
   function says otherwise. Strings are UTF-8 and end with a zero.

   Versions: `struct_bytes` and `abi` come first in every version, and lockstep_engine_v1() returns
   every version. The core refuses a plugin with another `abi`, or with fewer members than its own.
   Within a version, members are only added, at the end of their struct. A new collective needs no
   new member: the core composes a collective that supports() does not report.

   SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ENGINE_ABI 2 /* 1 had one function for each collective. */

/* Same layout as lockstep::Buffer. In this file dtype, device, reduce_op and operation have the
   values of lockstep::DType, DeviceKind, ReduceOp and Operation. */
typedef struct lockstep_buffer {
  void* data;
  size_t count; /* Elements. */
  uint8_t dtype;
  uint8_t device; /* 0 CPU, 1 CUDA. */
  int32_t device_index;
  void* stream; /* CUDA stream on which `data` is ready, and on which the result will be. */
} lockstep_buffer;

/* One collective of a communicator. Unused members are zero. Parts are contiguous, one for each
   member. Data by operation:
     all_reduce, broadcast   `output`, in place.
     reduce                  `output`, in place; changes on the root only.
     all_gather              `output` has the parts. `input` may be its own part of it.
     reduce_scatter          `input` has the parts. `output` may be its own part of it.
     all_to_all              Both have parts. */
typedef struct lockstep_collective {
  size_t struct_bytes;
  uint8_t operation;
  uint8_t reduce_op; /* Never average on CPU buffers. */
  int32_t root;
  lockstep_buffer input;
  lockstep_buffer output;
  const size_t* send_counts;    /* Elements of each part of `input`; null without parts. */
  const size_t* receive_counts; /* The same for `output`. */
} lockstep_collective;

/* `fault` is a lockstep::Fault. */
typedef struct lockstep_engine_error {
  int32_t fault;
  char text[1024];
} lockstep_engine_error;

/* The job's store, through which the members of a communicator exchange addresses. Valid during
   create() only. Keys belong to this communicator alone. */
typedef struct lockstep_engine_store {
  void* self;
  int (*set)(void* self, const char* key, const void* value, size_t bytes,
             lockstep_engine_error* error);
  /* Blocks until a member has set `key`. Writes at most `capacity` bytes of the value; *bytes
     becomes the value's size. */
  int (*wait)(void* self, const char* key, void* value, size_t capacity, size_t* bytes,
              lockstep_engine_error* error);
} lockstep_engine_store;

typedef struct lockstep_engine_config {
  size_t struct_bytes;
  int32_t rank; /* Rank in the new communicator. */
  int32_t size;
  const int32_t* world_ranks; /* Rank in the job of each member, by its rank here. */
  int32_t world_size;
  const char* name; /* Unique among the job's communicators. */
  /* Rank and size among the members on this host; 0 and 1 when no two share a host. */
  int32_t local_rank;
  int32_t local_size;
  const char* interface_name; /* Such as "eth0": listen only there. */
  const char* address;        /* Numeric IPv4 or IPv6 address of the interface. */
  int32_t device_index;       /* Device of CUDA buffers; -1 without CUDA buffers. */
  int64_t timeout_ms;         /* Timeout of create(). */
  int64_t call_timeout_ms;    /* Timeout of every later call. With a cancel() it may be a
                                 year: the core decides when a call must end. */
  lockstep_engine_store store;
  const void* world; /* From identify(): all ranks of the job, in order. Null if identify is. */
} lockstep_engine_config;

/* Communicators that share two processes must be made in the same order on both. The core then
   makes a group's communicators together with the group, not on first use. */
#define LOCKSTEP_ENGINE_ORDERED 1u

/* cancel() takes effect only between the steps of a call, and a step may wait for a lost
   peer. The core then does not wait for the call, and gives it memory of its own, as without a
   cancel(). */
#define LOCKSTEP_ENGINE_MAY_STAY 2u

/* The core does an all_reduce of two members on up to 256 KiB of CPU memory by all_to_all. Each
   member then gets all data of the other, which takes fewer messages. Either all members have the
   flag or no member has it. */
#define LOCKSTEP_ENGINE_SWAPS 4u

typedef struct lockstep_engine {
  size_t struct_bytes;
  uint32_t abi; /* LOCKSTEP_ENGINE_ABI of the plugin. */
  const char* name;
  uint32_t devices; /* One bit per device: 1 << lockstep::DeviceKind. */
  uint32_t flags;   /* LOCKSTEP_ENGINE_... bits. */

  /* Succeeds if the engine can run here; for CUDA, if there is a device. `text` becomes the version
     of the library underneath. Starts nothing. */
  int (*probe)(char* text, size_t capacity, lockstep_engine_error* error);

  /* Null, unless the library underneath itself knows this process's rank, as MPI does. Starts the
     library if necessary. Returns rank and size in `handed_over`, a handle from the program (for
     MPI an MPI_Comm*), or in the whole job when it is null. The first call for each handle is
     collective over it. *world is for tell_all() and create(), and lives as long as the process. */
  int (*identify)(const void* handed_over, const void** world, int32_t* rank, int32_t* size,
                  lockstep_engine_error* error);
  /* Null if identify is. Broadcasts rank 0's `data` to all ranks of `world`. One thread only. */
  int (*tell_all)(const void* world, void* data, size_t bytes, lockstep_engine_error* error);

  /* Whether this collective is native. all_gather and all_to_all must be, for every dtype: the core
     composes the others of these two, and the case of LOCKSTEP_ENGINE_SWAPS. */
  int (*supports)(uint8_t operation, uint8_t dtype, uint8_t reduce_op);

  int (*create)(const lockstep_engine_config* config, void** communicator,
                lockstep_engine_error* error);
  /* Releases the communicator. Does not communicate, and never blocks for long. */
  void (*destroy)(void* communicator);
  /* Makes a running call of another thread return soon with an error. The library does not
     access the caller's memory after that, even in a call that cannot leave it. Null when the
     library cannot do that: the core then gives such a call memory of its own, which it never
     frees. */
  void (*cancel)(void* communicator);

  /* Runs a native collective. Blocking: until the result is there; for CUDA, until it is enqueued
     on the buffers' stream. Errors: unsupported for another collective. */
  int (*run)(void* communicator, const lockstep_collective* collective,
             lockstep_engine_error* error);
} lockstep_engine;

/* The one symbol of a plugin. The result lives as long as the process. */
typedef const lockstep_engine* (*lockstep_engine_v1_function)(void);
__attribute__((visibility("default"))) const lockstep_engine* lockstep_engine_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
