/* What an engine between hosts is to the core: the C ABI of a plugin.

   An engine is a shared object, liblockstep-engine-<name>.so, that exports one function,
   lockstep_engine_v1(). The core links no engine: it opens the plugin when a job needs it.

   Every function that can fail returns 0 or, with `error` filled in, another number. No exception
   crosses this border. Strings are UTF-8 and end with a zero. Memory that is passed in belongs to
   the caller and is not used after the call, unless it says otherwise.

   Threads: create(), destroy() and the collectives of one communicator are called by one thread at
   a time, those of different communicators by different threads at once. cancel() is called from
   any thread. The library underneath must bear that, or create() must refuse with the reason.

   Frozen: new members are added at the end and `struct_bytes` tells which are there. A change that
   an older plugin or core cannot bear is another lockstep_engine_vN().

   SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ENGINE_ABI 1

/* As lockstep::Buffer, byte for byte. The values of dtype, device and reduce_op are those of
   lockstep::DType, DeviceKind and ReduceOp, operation's those of lockstep::Operation. */
typedef struct lockstep_buffer {
  void* data;
  size_t count; /* Elements. */
  uint8_t dtype;
  uint8_t device; /* 0 CPU, 1 CUDA. */
  int32_t device_index;
  void* stream; /* The CUDA stream on which `data` is ready, and on which the result will be. */
} lockstep_buffer;

/* `fault` is a lockstep::Fault. */
typedef struct lockstep_engine_error {
  int32_t fault;
  char text[1024];
} lockstep_engine_error;

/* The job's store, for the addresses that the members of a communicator tell each other. Valid
   during create() only. Keys are this communicator's own. */
typedef struct lockstep_engine_store {
  void* self;
  int (*set)(void* self, const char* key, const void* value, size_t bytes,
             lockstep_engine_error* error);
  /* Blocks until somebody has set `key`. At most `capacity` bytes are written; *bytes is what it
     has. */
  int (*wait)(void* self, const char* key, void* value, size_t capacity, size_t* bytes,
              lockstep_engine_error* error);
} lockstep_engine_store;

typedef struct lockstep_engine_config {
  size_t struct_bytes;
  int32_t rank; /* In the communicator that is to be made. */
  int32_t size;
  const int32_t* world_ranks; /* Of each member, by its rank: its rank in the job. */
  int32_t world_size;
  const char* name; /* Of the communicator: no other of the job has it. */
  /* Of the members that share this one's host; 0 of 1 when no two do. */
  int32_t local_rank;
  int32_t local_size;
  const char* interface_name; /* Such as "eth0": listen on no other. */
  const char* address;        /* Its numeric IPv4 or IPv6 address. */
  int32_t device_index;       /* The CUDA device of CUDA buffers; -1 when there will be none. */
  int64_t timeout_ms;         /* For create(). */
  int64_t call_timeout_ms;    /* For every call afterwards. Where there is a cancel() it may be a
                                 year: the core knows better when a call has to end. */
  lockstep_engine_store store;
  const void* world; /* Of identify(): all ranks of the job, in their order. Null where that is. */
} lockstep_engine_config;

/* Communicators that have two processes in common must be made in the same order on both. The core
   then makes a group's when it makes the group, and not when they are first needed. */
#define LOCKSTEP_ENGINE_ORDERED 1u

/* cancel() is heeded between the steps of a call, and a step may wait for a peer that is gone: the
   core does not wait for the call, and lets it work on memory of its own, as where there is no
   cancel(). */
#define LOCKSTEP_ENGINE_MAY_STAY 2u

/* An all_reduce of two members takes fewer messages when each gets all of the other's: the core
   makes one of up to 256 KiB of CPU memory of all_to_all. All members must have the flag, or
   none. */
#define LOCKSTEP_ENGINE_SWAPS 4u

typedef struct lockstep_engine {
  size_t struct_bytes;
  uint32_t abi; /* LOCKSTEP_ENGINE_ABI of the plugin. */
  const char* name;
  uint32_t devices; /* A bit for each: 1 << lockstep::DeviceKind. */
  uint32_t flags;   /* LOCKSTEP_ENGINE_... bits. */

  /* Whether it can run here; for CUDA: whether there is a device. `text` becomes the version of the
     library underneath. Starts nothing. */
  int (*probe)(char* text, size_t capacity, lockstep_engine_error* error);

  /* Null, unless the library underneath knows by itself who this process is, as MPI does. Starts
     it if it was not started, and tells rank and size in `handed_over`, which the program gave
     (MPI's is an MPI_Comm*), or in the whole job when that is null. The first call for each is
     collective over it. *world is for tell_all() and create(), and lives as long as the process. */
  int (*identify)(const void* handed_over, const void** world, int32_t* rank, int32_t* size,
                  lockstep_engine_error* error);
  /* Null when identify is. `data` becomes rank 0's on all ranks of `world`; from one thread. */
  int (*tell_all)(const void* world, void* data, size_t bytes, lockstep_engine_error* error);

  /* Whether this collective is native: see below for which must be. */
  int (*supports)(uint8_t operation, uint8_t dtype, uint8_t reduce_op);

  int (*create)(const lockstep_engine_config* config, void** communicator,
                lockstep_engine_error* error);
  /* Releases it. Communicates with nobody; never blocks for long. */
  void (*destroy)(void* communicator);
  /* Makes a call that is under way in another thread return with an error, soon, after which no
     memory of the caller's is touched; nor does a call touch any that stays in the library for want
     of better. Null when the library cannot do that: the core then lets such a call work on memory
     of its own, which it never gives back. */
  void (*cancel)(void* communicator);

  /* Blocking until the result is there; for CUDA, until it is enqueued on the buffers' stream.
     all_gather and all_to_all must support every dtype (as bytes); the core makes all others of
     these two where they are not supported, and what LOCKSTEP_ENGINE_SWAPS says. Counts are
     elements by rank, never null. Parts lie one after the other. ReduceOp average is never asked
     for of CPU buffers. */
  int (*all_reduce)(void* communicator, const lockstep_buffer* data, uint8_t reduce_op,
                    lockstep_engine_error* error);
  int (*broadcast)(void* communicator, const lockstep_buffer* data, int32_t root,
                   lockstep_engine_error* error);
  /* `data` of all but the root stays as it is. */
  int (*reduce)(void* communicator, const lockstep_buffer* data, int32_t root, uint8_t reduce_op,
                lockstep_engine_error* error);
  /* `input` may be its own part of `output`. */
  int (*all_gather)(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
                    const size_t* counts, lockstep_engine_error* error);
  /* `output` may be its own part of `input`. */
  int (*reduce_scatter)(void* communicator, const lockstep_buffer* input,
                        const lockstep_buffer* output, const size_t* counts, uint8_t reduce_op,
                        lockstep_engine_error* error);
  int (*all_to_all)(void* communicator, const lockstep_buffer* input, const lockstep_buffer* output,
                    const size_t* send_counts, const size_t* receive_counts,
                    lockstep_engine_error* error);
} lockstep_engine;

/* The one symbol of a plugin. What it returns lives as long as the process. */
typedef const lockstep_engine* (*lockstep_engine_v1_function)(void);
__attribute__((visibility("default"))) const lockstep_engine* lockstep_engine_v1(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
