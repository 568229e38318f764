/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory: common regions (ShmBackend::allocate()), own regions (allocate_own_region()),
 * and collectives in place on them.
 *
 * All ranks run ROUNDS rounds. In each, they make regions, write their part, run USES collectives
 * on them, and drop their handles. With COMMON, regions are common: the offer, and the mapping by
 * each rank, may fail for lack of memory. Otherwise each rank has its own, which peers map when a
 * collective first uses it. A rendezvous is a flag of each rank; barrier.pml has its details.
 *
 * Checked:
 * - A rank reads and writes only memory that it maps, of this round's regions.
 * - A collective reads what all ranks wrote before it. Its result is whole, and no rank's later
 *   store reaches it.
 * - All ranks get a region with the same number, or all get the same refusal.
 * - A rank fails only if a rank died.
 * - No rank waits forever.
 */
#include "ranks.pml"

#ifndef ROUNDS
#define ROUNDS 2
#endif

#ifndef USES
#define USES 1
#endif

#define no_last_step 1
#define number_is_reused 2
#define relaxed_flag 3
#define peers_are_not_kept 4
#define withdrawn_too_early 5
#define one_step_in_refusals 6
#define number_after_step 7

/* Memory i: of own regions, round * N + owner; of common ones, the part of that owner. */
#define memory(round, rank) ((round) * N + (rank))
#define MEMORIES (ROUNDS * N)
byte data[MEMORIES];
byte data_own[MEMORIES];
byte mapped[MEMORIES];  /* Ranks that map it. */

#define input_of(round, rank) (20 * (round) + 5 * (rank) + 1)
#define later_value 99

byte location[N]; /* RankBlock::Entry::input: the region's number. */
byte location_own[N];
byte flag[N]; /* Rendezvous that the rank has reached. */

#define NOTHING 9
byte offered = NOTHING; /* The region, by its round, that rank 0's fd broker hands out. */

/* RankBlock::region of rank 0, RankBlock::refused of all. */
byte region;
byte region_own;
byte refused[N]; /* 0, or the number of the attempt that failed. */
byte refused_own[N];

/* Not in the code: the outcome of each round on each rank: 0, refused, or the region's number. */
#define REFUSED 8
byte outcome[ROUNDS * N];

inline publish() {
  i = 0;
  do
  :: i < ROUNDS ->
     data[memory(i, me)] = data_own[memory(i, me)];
     i++
  :: else -> break
  od;
  i = 0;
  location[me] = location_own[me];
  refused[me] = refused_own[me];
  if
  :: me == 0 -> region = region_own
  :: else
  fi
}

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

/* --- Common regions --- */

/* ShmBackend::fail_together(). Sets `refusal`. */
inline fail_together(attempt) {
  d_step {
    refused_own[me] = (fails -> attempt : 0);
    fails = false;
    refusal = 0
  };
  /* shm_backend.cpp: barrier_.step(collective); */
  rendezvous();
  peer = 0;
  do
  :: peer < N ->
     /* shm_backend.cpp: if (segment_.block(peer).refused != 0) */
     plain_load(known, refused[peer], refused_own[peer]);
     d_step {
       assert(known == 0 || known == attempt);
       if
       :: known != 0 -> refusal = known
       :: else
       fi;
       known = 0;
       peer++
     }
  :: peer >= N -> break
  od;
  peer = 0;
  /* shm_backend.cpp: barrier_.step(collective);  // Before a rank's block is written again. */
  if
  :: fault != one_step_in_refusals -> rendezvous()
  :: else
  fi
}

inline may_fail() {
  if
  :: true
  :: fails = true
  fi
}

/* ShmBackend::allocate(). Sets `number`, 0 after a refusal. */
inline allocate_common() {
  /* shm_backend.cpp: if (rank_ == 0 && !shared) segment_.block(0).region =
     peers_->regions().next_number(); */
  if
  :: me == 0 && fault != number_after_step -> region_own = round + 1
  :: else
  fi;
  if
  :: me == 0 ->
     may_fail();
     /* shm_backend.cpp: attempt([&] { return rank_ == 0 ? peers_->offer(key, whole, whole) :
        SharedMemory(); }); */
     if
     :: !fails -> d_step { offered = round; map_common() }
     :: else
     fi
  :: else
  fi;
  fail_together(2 * round + 1);
  if
  :: me == 0 && fault == withdrawn_too_early -> offered = NOTHING
  :: else
  fi;
  if
  :: refusal == 0 ->
     if
     :: me != 0 ->
        may_fail();
        if
        :: !fails ->
           /* shm_backend.cpp: return peers_->fetch(0, key, whole, in(collective.timeout), */
           if
           :: d_step { offered == round && (dead & bit(0)) == 0 -> map_common() }
           :: sees_loss -> goto failed
           fi
        :: else
        fi
     :: else
     fi;
     fail_together(2 * round + 2)
  :: else
  fi;
  if
  :: me == 0 && fault == number_after_step -> region_own = round + 1
  :: else
  fi;
  number = 0;
  if
  :: refusal == 0 ->
     /* shm_backend.cpp: return {regions_.add_common(segment_.block(0).region, std::move(memory),
        bytes), {}}; */
     plain_load(number, region, region_own)
  :: else -> d_step { unmap_common() } /* Errors drop what was mapped. */
  fi;
  /* shm_backend.cpp: if (peers_.rank() == 0) peers_.withdraw(key_); */
  if
  :: me == 0 -> offered = NOTHING
  :: else
  fi;
  d_step {
    outcome[round * N + me] = (refusal == 0 -> number : REFUSED);
    refusal = 0;
    peer = 0;
    do
    :: peer < N ->
       assert(outcome[round * N + peer] == 0 ||
              outcome[round * N + peer] == outcome[round * N + me]);
       peer++
    :: else -> break
    od;
    peer = 0
  }
}

inline map_common() {
  i = 0;
  do
  :: i < N ->
     mapped[memory(round, i)] = mapped[memory(round, i)] | bit(me);
     i++
  :: else -> break
  od;
  i = 0
}

inline unmap_common() {
  i = 0;
  do
  :: i < N ->
     mapped[memory(round, i)] = mapped[memory(round, i)] & ~bit(me);
     i++
  :: else -> break
  od;
  i = 0
}

/* --- Own regions --- */

/* Regions::part_of(), of the region whose number `peer` has published. Sets `at`, its memory. The
 * owner's fd broker hands it out while the owner maps it. */
inline map_peers(peer) {
  if
  :: known == seen[peer] -> at = part[peer] /* regions.cpp: if (known != number) { */
  :: known != seen[peer] ->
     /* regions.cpp: peers_->fetch(rank, RegionTable::key_of(number), page_size(), in(timeout_), */
     if
     :: d_step {
          (dead & bit(peer)) == 0 && (mapped[memory(round, peer)] & bit(peer)) != 0 ->
            at = memory(round, peer);
            mapped[at] = mapped[at] | bit(me);
            seen[peer] = known;
            part[peer] = at
        }
     :: sees_loss -> goto failed
     fi
  fi
}

/* --- A collective in place --- */

/* Reads the inputs of all peers. */
inline run_in_place() {
  peer = 0;
  do
  :: peer < N ->
     if
     :: peer == me
     :: peer != me ->
        plain_load(known, location[peer], location_own[peer]);
#ifdef COMMON
        assert(known == number);
        at = memory(round, peer);
#else
        map_peers(peer);
#endif
        d_step {
          known = 0;
          assert((mapped[at] & bit(me)) != 0)
        };
        plain_load(known, data[at], data_own[at]);
        d_step {
          assert(known == input_of(round, peer) + use);
          known = 0;
          at = 0
        }
     fi;
     peer++
  :: peer >= N -> break
  od;
  peer = 0;
  /* shm_backend.cpp: in_place_.run(collective); */
  if
  :: fault != no_last_step -> rendezvous()
  :: else
  fi
}

inline drop_peers() {
  i = 0;
  do
  :: i < MEMORIES ->
     mapped[i] = mapped[i] & ~bit(me);
     i++
  :: else -> break
  od;
  i = 0
}

proctype rank(byte me) {
  byte round, use, met, number, refusal, known, at, peer, i;
  byte seen[N]; /* Regions::last_, by rank: a region's number and its part. */
  byte part[N];
  bool fails;
  {
    do
    :: round < ROUNDS ->
#ifdef COMMON
       allocate_common();
#else
       d_step {
         /* regions.cpp: const std::uint64_t number = table.next_number(); */
         number = (fault == number_is_reused -> 1 : round + 1);
         /* regions.cpp: SharedMemory memory = peers.hand_out(RegionTable::key_of(number), stride);
            */
         mapped[memory(round, me)] = mapped[memory(round, me)] | bit(me)
       };
#endif
       if
       :: number == 0
       :: number != 0 ->
          use = 0;
          do
          :: use < USES ->
             d_step {
               data_own[memory(round, me)] = input_of(round, me) + use; /* The caller's store. */
               /* shm_backend.cpp: mine.input = reads ? regions_.locate(collective.input) : 0; */
               location_own[me] = number
             };
             /* shm_backend.cpp: barrier_.enter(collective); */
             rendezvous();
             run_in_place();
             /* The caller overwrites its memory. */
             data_own[memory(round, me)] = later_value;
             use++;
             /* regions.cpp: if (old.kept || !old.owner.expired()) all->push_back(old); */
             if
             :: fault == peers_are_not_kept -> d_step { drop_peers() }
             :: else
             fi
          :: use >= USES -> break
          od;
          /* The caller drops its handle. */
#ifdef COMMON
          unmap_common()
#else
          mapped[memory(round, me)] = mapped[memory(round, me)] & ~bit(me)
#endif
       fi;
       round++
    :: round >= ROUNDS -> break
    od;
failed: skip
  } unless {
    d_step {
      (dead & bit(me)) != 0 ->
        round = 0; use = 0; met = 0; number = 0; refusal = 0; known = 0; at = 0; peer = 0; i = 0;
        fails = false; seen[0] = 0; seen[1] = 0; part[0] = 0; part[1] = 0
    }
  }
}

init {
  byte k = 0;
  choose_fault();
  atomic {
    do
    :: k < N ->
       run rank(k);
       k++
    :: else -> break
    od;
    run killer()
  }
}
