/* SPDX-License-Identifier: Apache-2.0
 *
 * Staging buffers: each rank's is a ring of chunks. Every call puts, has a rendezvous, and takes.
 *
 * All ranks run CALLS calls of any kinds and lengths, at most MOST_CHUNKS chunks in all. A
 * rendezvous is a flag of each rank; barrier.pml has its details.
 *
 * Checked:
 * - A rank reads only data of the chunk that it takes, of the put or of the result, and whole.
 * - A rank fails only if a rank died.
 * - No rank waits forever.
 */
#include "ranks.pml"

#ifndef CALLS
#define CALLS 2
#endif
#ifndef LATE
#define LATE 1 /* The call that ranks may begin without having put. */
#endif
#ifndef MOST_CHUNKS
#define MOST_CHUNKS 4
#endif

#define one_chunk 1
#define no_step 2
#define relaxed_flag 3
#define cursor_stays 4
#define takes_too_early 5

/* The code has at least four chunks. */
#define CHUNKS 3
#define RING (fault == one_chunk -> 1 : CHUNKS)

/* Kinds of calls. In `take`, all ranks put a chunk and then take all others': an all_gather. Other
 * operations put or take a part of that. */
#define TAKE 0
#define ALL_REDUCE 1
#define AT_ONCE 2 /* A small all_reduce. */
byte kind[CALLS];
byte chunks[CALLS];
byte late[CALLS]; /* Ranks that put their first chunk after enter(): ShmBackend::run_staged(). */

/* Slice s of a chunk in rank r's buffer: 2 * (the chunk's number) + 1 if it is a result. */
#define place(r, chunk, s) (((r) * CHUNKS + (cursor + (chunk)) % RING) * N + (s))
#define put_value(chunk) (2 * (cursor + (chunk)) + 2)
#define result(chunk) (2 * (cursor + (chunk)) + 3)
byte slice[N * CHUNKS * N];
byte slice_own[N * CHUNKS * N];

byte flag[N]; /* Rendezvous that the rank has reached. */

/* Barrier::enter(), or Barrier::step() */
inline rendezvous() {
  d_step {
    met++;
    if
    :: fault != relaxed_flag -> publish()
    :: else
    fi;
    flag[me] = met
  };
  if
#if N == 2
  :: flag[0] >= met && flag[1] >= met
#else
  :: flag[0] >= met && flag[1] >= met && flag[2] >= met
#endif
  :: sees_loss -> goto failed
  fi
}

inline publish() {
  i = 0;
  do
  :: i < CHUNKS * N ->
     slice[me * CHUNKS * N + i] = slice_own[me * CHUNKS * N + i];
     i++
  :: else -> break
  od;
  i = 0
}

/* All slices, or in an all_reduce of chunks all but this rank's. */
inline put(chunk) {
  d_step {
    i = 0;
    do
    :: i < N ->
       if
       :: kind[call] == ALL_REDUCE && i == me
       :: else -> slice_own[place(me, chunk, i)] = put_value(chunk)
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

/* Each value that may be read is of this chunk. */
#define is_readable(r, chunk, s, expected) \
  (slice[place(r, chunk, s)] == (expected) && slice_own[place(r, chunk, s)] == (expected))

/* One step: a rank that is interrupted reads no less later. */
inline take_from_all(chunk) {
  d_step {
    peer = 0;
    do
    :: peer < N ->
       i = 0;
       do
       :: i < N ->
          if
          :: peer == me || (kind[call] == ALL_REDUCE && i != peer)
          :: peer != me && kind[call] == ALL_REDUCE && i == peer -> /* take_slices() */
             assert(is_readable(peer, chunk, i, result(chunk)))
          :: peer != me && kind[call] != ALL_REDUCE ->
             assert(is_readable(peer, chunk, i, put_value(chunk)))
          fi;
          i++
       :: else -> break
       od;
       peer++
    :: else -> break
    od;
    i = 0;
    peer = 0
  }
}

/* Reads this rank's slice of all peers' chunks, then writes the result to its own buffer. */
inline combine_slice(chunk) {
  d_step {
    peer = 0;
    do
    :: peer < N ->
       assert(peer == me || is_readable(peer, chunk, me, put_value(chunk)));
       peer++
    :: else -> break
    od;
    peer = 0;
    /* staging.cpp: reduction_.add_target(buffer(rank_, chunk) + slice.begin * element_); */
    slice_own[place(me, chunk, me)] = result(chunk)
  }
}

/* Between two rendezvous, a rank works in one step: if two ranks' accesses conflict, the one that
 * comes later finds a value of the other. */

/* Staging::all_reduce() */
inline all_reduce() {
  chunk = 0;
  do
  /* staging.cpp: for (std::size_t chunk = 0; chunk <= chunks_; ++chunk) { */
  :: atomic {
       chunk <= chunks[call] ->
         if
         /* staging.cpp: if (chunk < chunks_) combine_slice(collective, chunk); */
         :: chunk < chunks[call] -> combine_slice(chunk)
         :: else
         fi;
         if
         :: fault == takes_too_early && chunk < chunks[call] -> take_from_all(chunk)
         /* staging.cpp: if (chunk > 0) take_slices(collective, chunk - 1); */
         :: fault != takes_too_early && chunk > 0 -> take_from_all(chunk - 1)
         :: else
         fi;
         if
         /* staging.cpp: if (chunk + 1 < chunks_) put(collective, chunk + 1); */
         :: chunk + 1 < chunks[call] -> put(chunk + 1)
         :: else
         fi;
         chunk++
     };
     /* staging.cpp: if (chunk < chunks_) barrier_.step(collective); */
     if
     :: chunk <= chunks[call] -> rendezvous()
     :: chunk > chunks[call] -> break
     fi
  od
}

/* Staging::run() of other operations */
inline take_chunks() {
  chunk = 0;
  do
  :: atomic {
       /* staging.cpp: take(collective, chunk); */
       take_from_all(chunk);
       chunk++;
       if
       /* staging.cpp: put(collective, chunk); */
       :: chunk < chunks[call] -> put(chunk)
       :: else
       fi
     };
     /* staging.cpp: barrier_.step(collective); */
     if
     :: chunk < chunks[call] && fault != no_step -> rendezvous()
     :: chunk < chunks[call] && fault == no_step
     :: chunk >= chunks[call] -> break
     fi
  od
}

proctype rank(byte me) {
  byte call, cursor, chunk, met, peer, i;
  {
    do
    :: atomic {
         call < CALLS ->
           /* shm_backend.cpp: if (mine.input == 0 && mine.output == 0)
              staging_.put_first(collective); */
           if
           :: (late[call] & bit(me)) == 0 -> put(0)
           :: else
           fi
       };
       /* shm_backend.cpp: barrier_.enter(collective); */
       rendezvous();
       if
       :: atomic {
            late[call] != 0 ->
              /* shm_backend.cpp: if (!has_put(rank_)) staging_.put_first(collective); */
              if
              :: (late[call] & bit(me)) != 0 -> put(0)
              :: else
              fi
          };
          /* shm_backend.cpp: barrier_.step(collective); */
          rendezvous()
       :: late[call] == 0
       fi;
       if
       :: kind[call] == TAKE -> take_chunks()
       :: kind[call] == ALL_REDUCE -> all_reduce()
       :: kind[call] == AT_ONCE -> take_from_all(0) /* reduce_at_once() */
       fi;
       atomic {
         /* staging.cpp: cursor_ += chunks_ * stride_; */
         if
         :: fault != cursor_stays -> cursor = cursor + chunks[call]
         :: else
         fi;
         chunk = 0;
         call++
       }
    :: call >= CALLS -> break
    od;
failed: skip
  } unless {
    d_step {
      (dead & bit(me)) != 0 ->
        call = 0; cursor = 0; chunk = 0; met = 0; peer = 0; i = 0
    }
  }
}

init {
  byte c = 0;
  byte all = 0;
  choose_fault();
  do
  :: c < CALLS ->
     if
     :: kind[c] = TAKE
     :: kind[c] = ALL_REDUCE
     :: kind[c] = AT_ONCE
     fi;
     chunks[c] = 1;
     all++;
     do
     :: kind[c] != AT_ONCE && all + (CALLS - 1 - c) < MOST_CHUNKS ->
        chunks[c]++;
        all++
     :: break
     od;
     if
     :: true
     :: c == LATE -> late[c] = bit(0)
     :: c == LATE -> late[c] = bit(N) - 1
     fi;
     c++
  :: else -> break
  od;
  atomic {
    c = 0;
    all = 0;
    do
    :: c < N ->
       run rank(c);
       c++
    :: else -> break
    od;
    run killer()
  }
}
