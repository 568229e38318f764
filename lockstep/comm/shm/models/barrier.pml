/* SPDX-License-Identifier: Apache-2.0
 *
 * Barrier: enter(), step(), abort(), leave(), and the making of a group's segment.
 *
 * Each rank makes the group, runs CALLS calls, of which every second one has a step(), and leaves.
 * With ABORTS, rank ABORTS - 1 may abort the group or leave it instead of its last call. With
 * GROUPS 2, ranks that have seen no loss then make another group of another name. With CROWDED,
 * ranks outnumber cores. With WAITS_IN_ONE_STEP, sleeping is one step.
 *
 * Checked:
 * - No rank passes a rendezvous before all ranks have begun it.
 * - After enter(), a rank reads each peer's entry of this call.
 * - A rank fails only if a rank died, aborted the group, or left before the awaited rendezvous.
 * - A rank that reads a reason reads the whole reason.
 * - No rank waits forever; no wake-up is lost while all ranks live.
 * - All ranks of a group have the same segment.
 */
#include "ranks.pml"

#ifndef CALLS
#define CALLS 2
#endif
#ifndef GROUPS
#define GROUPS 1
#endif
#ifndef SLICES
#define SLICES 1 /* Slices of a rank that may end without news. */
#endif
#ifdef CROWDED
#define outnumber_cores true
#else
#define outnumber_cores false
#endif

#define no_switch_of_entries 1
#define sleepers_before_value 2
#define skips_last_peer 3
#define relaxed_flag 4
#define reason_after_state 5
#define absent_before_left 6
#define one_name 7
#define misses_one_arrival 8

/* Flags of a segment: an entry's `arrived` (two alternate), `step`, and all_here. */
#define STEP 2
#define FLAGS (3 * N + 1)
#define flag(kind, rank) (segment * FLAGS + (kind) * N + (rank))
#define all_here (segment * FLAGS + 3 * N)

byte value[GROUPS * FLAGS];
byte sleepers[GROUPS * FLAGS];
byte asleep[GROUPS * FLAGS]; /* Ranks that the kernel keeps asleep on this flag. */

#define entry(kind, rank) ((segment * 2 + (kind)) * N + (rank))
byte signature[GROUPS * 2 * N];
byte signature_own[GROUPS * 2 * N];

byte arrivals[GROUPS];
byte left[GROUPS]; /* Bits of ranks. */
byte abort_state[GROUPS];
byte reason[GROUPS]; /* The giver plus 1; plus 100 for the loss of another rank. */
byte reason_own[GROUPS];

/* What rank 0's fd broker hands out, by the group's name: a segment plus 1. */
#define name (fault == one_name -> 0 : group)
byte offered[GROUPS];

/* Not in the code: what ranks have really begun, and whether one ended the group early. */
byte begun[GROUPS * 3 * N];
bool ended_early;

inline publish() { /* What a release store does to this rank's earlier plain stores. */
  signature[entry(0, me)] = signature_own[entry(0, me)];
  signature[entry(1, me)] = signature_own[entry(1, me)];
  reason[segment] = reason_own[segment]
}

inline publish_if_release() {
  if
  :: fault != relaxed_flag -> publish()
  :: else
  fi
}

/* --- Waiting --- */

#define reached(f, target) (value[f] >= target)

inline raise(f, target) {
#ifdef WAITS_IN_ONE_STEP
  d_step {
    publish_if_release();
    value[f] = target
  }
#else
  if
  :: fault != sleepers_before_value ->
     d_step {
       /* barrier.cpp: flag.value.store(value); */
       publish_if_release();
       value[f] = target
     };
     /* barrier.cpp: if (flag.sleepers.load() != 0) futex_wake_all(flag.value); */
     wakes = (sleepers[f] != 0)
  :: else ->
     wakes = (sleepers[f] != 0);
     d_step {
       publish();
       value[f] = target
     }
  fi;
  if
  :: d_step { wakes -> asleep[f] = 0 }
  :: !wakes
  fi
#endif
}

#define is_absent(rank, kind, target) (value[flag(kind, rank)] < target)
#define has_left_absent(rank, kind, target) \
  ((left[segment] & bit(rank)) != 0 && is_absent(rank, kind, target))
#if N == 2
#define absent_left(kind, target) \
  (has_left_absent(0, kind, target) || has_left_absent(1, kind, target))
#else
#define absent_left(kind, target)                                           \
  (has_left_absent(0, kind, target) || has_left_absent(1, kind, target) ||  \
   has_left_absent(2, kind, target))
#endif

/* Whether a slice of 20 ms that ends finds something. Without a death, a raised flag is no news:
 * its wake-up must come. */
#define has_news(f, goal, kind, target)                                   \
  (sees_loss || abort_state[segment] == 2 || absent_left(kind, target) || \
   (lost != 0 && reached(f, goal)))

/* Sleeps on flag `f` until it is `goal`. Absent ranks are those whose own flag is not `target`. */
#ifdef WAITS_IN_ONE_STEP
inline await_asleep(f, goal, kind, target) {
  do
  :: reached(f, goal) -> break
  :: !reached(f, goal) && has_news(f, goal, kind, target) ->
     throw_if_they_left(kind, target);
     throw_if_over()
  od
}
#else
inline await_asleep(f, goal, kind, target) {
  do
  :: /* barrier.cpp: flag.sleepers.fetch_add(1); */
     sleepers[f]++;
     /* barrier.cpp: const std::uint32_t seen = flag.value.load(); */
     seen = value[f];
     /* barrier.cpp: if (!flag.reached(target)) futex_wait(flag.value, seen, wait_slice); */
     if
     :: value[f] != seen || reached(f, goal)
     :: d_step { value[f] == seen && !reached(f, goal) -> asleep[f] = asleep[f] | bit(me) };
        d_step {
          if
          :: (asleep[f] & bit(me)) == 0
          :: (asleep[f] & bit(me)) != 0 && has_news(f, goal, kind, target)
          :: (asleep[f] & bit(me)) != 0 && !has_news(f, goal, kind, target) && slices < SLICES ->
             slices++
          fi;
          asleep[f] = asleep[f] & ~bit(me)
        }
     fi;
     /* barrier.cpp: flag.sleepers.fetch_sub(1); */
     sleepers[f]--;
     /* barrier.cpp: if (flag.reached(target)) return; */
     if
     :: d_step { reached(f, goal) -> seen = 0 };
        break
     :: d_step {
          !reached(f, goal) ->
            seen = 0;
            if
            :: fault == absent_before_left -> find_absent(kind, target)
            :: else
            fi
        }
     fi;
     throw_if_they_left(kind, target);
     throw_if_over()
  od
}

#endif

/* absent(). The flags of ranks that have left no longer change, so one step may load all. */
inline find_absent(kind, target) {
  missing = 0;
  peer = 0;
  do
  :: peer < N ->
     if
     :: is_absent(peer, kind, target) -> missing = missing | bit(peer)
     :: else
     fi;
     peer++
  :: else -> break
  od;
  peer = 0
}

/* barrier.cpp: throw_if_they_left(absent, context); */
inline throw_if_they_left(kind, target) {
  /* barrier.cpp: if (has_left(peer)) left.push_back(peer); */
  gone = left[segment];
  if
  :: gone == 0 || abort_state[segment] == 2 /* throw_if_over() reports the abort. */
  :: gone != 0 && abort_state[segment] != 2 ->
     d_step {
       if
       :: fault != absent_before_left ->
          /* barrier.cpp: const std::vector<int> missing = absent(); */
          find_absent(kind, target)
       :: else
       fi;
       gone = gone & missing;
       missing = 0
     };
     if
     :: gone != 0 ->
        /* barrier.cpp: peers_->throw_if_lost(context);  // A loss may have made them leave. */
        assert(sees_loss || ended_early);
        goto failed
     :: else
     fi
  fi
}

/* barrier.cpp: throw_if_over(context); */
inline throw_if_over() {
  /* barrier.cpp: if (common.abort_state.load() != 2) return std::nullopt; */
  if
  :: abort_state[segment] == 2 ->
     plain_load(known, reason[segment], reason_own[segment]);
     assert(known != 0);
     goto failed
  /* barrier.cpp: peers_->throw_if_lost(context); */
  :: abort_state[segment] != 2 && sees_loss -> goto failed
  :: abort_state[segment] != 2 && !sees_loss
  fi
}

/* --- A rendezvous --- */

inline await_all(kind, target) {
  begun[(segment * 3 + (kind)) * N + me] = target;
  if
  :: crowded -> await_crowded(kind, target)
  :: else -> await_each(kind, target)
  fi;
  check_all_began(kind, target)
}

#define next_peer(rank) ((rank) + 1 == me -> (rank) + 2 : (rank) + 1)

inline await_each(kind, target) {
  /* barrier.cpp: raise(flag_of(rank_), target); */
  raise(flag(kind, me), target);
  other = (me == 0 -> 1 : 0);
  do
  /* barrier.cpp: if (peer != rank_ && !flag_of(peer).reached(target)) { */
  :: d_step {
       other < N && (reached(flag(kind, other), target) ||
                     (fault == skips_last_peer && other == N - 1)) ->
         other = next_peer(other)
     }
  :: other < N && !reached(flag(kind, other), target) ->
     /* barrier.cpp: await_asleep(flag_of(peer), target, collective, absent); */
     await_asleep(flag(kind, other), target, kind, target);
     other = next_peer(other)
  :: other >= N -> break
  od
}

#define all_arrivals (rounds * N - (fault == misses_one_arrival -> 1 : 0))

inline await_crowded(kind, target) {
  d_step {
    rounds++;
    /* barrier.cpp: flag_of(rank_).value.store(target, std::memory_order_release); */
    publish_if_release();
    value[flag(kind, me)] = target
  };
  /* barrier.cpp: if (common.arrivals.fetch_add(1) + 1 == rounds_ *
     static_cast<std::uint32_t>(size_)) { */
  d_step {
    publish_if_release();
    arrivals[segment]++;
    count = arrivals[segment]
  };
  if
  :: count == all_arrivals ->
     /* barrier.cpp: raise(common.all_here, rounds_); */
     raise(all_here, rounds)
  :: count != all_arrivals ->
     /* barrier.cpp: if (!common.all_here.reached(rounds_) && !yield(common.all_here, rounds_)) */
     if
     :: reached(all_here, rounds)
     :: !reached(all_here, rounds) -> await_asleep(all_here, rounds, kind, target)
     fi
  fi
}

inline check_all_began(kind, target) {
  d_step {
    peer = 0;
    do
    :: peer < N ->
       assert(begun[(segment * 3 + (kind)) * N + peer] >= target);
       peer++
    :: else -> break
    od;
    peer = 0;
    other = 0;
    count = 0
  }
}

inline enter() {
  d_step {
    /* barrier.cpp: ++entries_; */
    entries++;
    parity = (fault == no_switch_of_entries -> 0 : entries & 1);
    /* shm_backend.cpp: mine.signature = collective.signature; */
    signature_own[entry(parity, me)] = entries
  };
  await_all(parity, entries);
  /* barrier.cpp: if (is_aborted() && !abort_reason()->is_own_loss())
     throw_if_over(context(collective)); */
  if
  :: abort_state[segment] == 2 ->
     plain_load(known, reason[segment], reason_own[segment]);
     assert(known != 0);
     if
     :: known < 100 -> goto failed
     :: else
     fi
  :: else
  fi;
  other = (me == 0 -> 1 : 0);
  do
  :: other < N ->
     plain_load(known, signature[entry(parity, other)], signature_own[entry(parity, other)]);
     d_step {
       assert(known == entries);
       known = 0;
       other = next_peer(other)
     }
  :: else -> break
  od
}

inline step() {
  /* barrier.cpp: ++steps_; */
  steps++;
  await_all(STEP, steps)
}

/* --- The group's begin and end --- */

inline make_group() {
  if
  :: me == 0 ->
     /* shm_backend.cpp: GroupSegment made(peers_->offer(key, bytes,
        GroupSegment::head_bytes(size_)), size_); */
     d_step {
       segment = group;
       offered[name] = segment + 1
     }
  :: else ->
     /* shm_backend.cpp: if (rank_ != 0) return {peers_->fetch(0, key, bytes, no_deadline, abort),
        size_}; */
     if
     :: d_step {
          offered[name] != 0 && (dead & bit(0)) == 0 ->
            segment = offered[name] - 1;
            assert(segment == group)
        }
     :: sees_loss -> goto stopped
     fi
  fi;
  d_step {
    entries = 0;
    steps = 0;
    rounds = 0;
    crowded = true; /* Until it is known. */
    making = true
  };
  step();
  d_step {
    making = false;
    crowded = outnumber_cores
  };
  /* shm_backend.cpp: if (peers_.rank() == 0) peers_.withdraw(key_); */
  if
  :: me == 0 -> offered[name] = 0
  :: else
  fi
}

inline abort(why) {
  /* barrier.cpp: if (!common.abort_state.compare_exchange_strong(none, 1)) return; */
  if
  :: d_step { abort_state[segment] == 0 -> abort_state[segment] = 1 };
     if
     :: fault != reason_after_state ->
        /* barrier.cpp: common.fault = why.fault; */
        reason_own[segment] = why;
        d_step {
          /* barrier.cpp: common.abort_state.store(2); */
          publish();
          abort_state[segment] = 2
        }
     :: else ->
        d_step {
          publish();
          abort_state[segment] = 2
        };
        reason_own[segment] = why
     fi
  :: abort_state[segment] != 0
  fi
}

inline leave() {
  d_step {
    /* barrier.cpp: segment_.block(rank_).left.store(1); */
    publish();
    left[segment] = left[segment] | bit(me)
  }
}

proctype rank(byte me) {
  byte segment, group, entries, steps, rounds, count, parity;
  byte seen, known, gone, missing, peer, other, slices;
  bool wakes, crowded, making;
  {
    do
    :: group < GROUPS ->
       make_group();
       do
       :: entries < CALLS ->
#ifdef ABORTS
          if
          :: true
          :: d_step {
               me == ABORTS - 1 && entries == CALLS - 1 && group == 0 -> ended_early = true
             };
             if
             :: abort(me + 1)
             :: true /* It only leaves. */
             fi;
             break
          fi;
#endif
          enter();
          if
          :: entries % 2 == 0 -> step()
          :: else
          fi
       :: else -> break
       od;
       goto over;
failed: /* GroupContext reports the error to the group. */
       abort((sees_loss -> 100 + me : me + 1));
       if
       :: making -> goto stopped /* Another attempt needs another name. */
       :: else
       fi;
over:
       leave();
       if
       :: sees_loss -> goto stopped
       :: else
       fi;
       group++
    :: else -> break
    od;
stopped: skip
  } unless {
    d_step { /* Equal states for all deaths at equal shared memory. */
      (dead & bit(me)) != 0 ->
        segment = 0; group = 0; entries = 0; steps = 0; rounds = 0; count = 0; parity = 0;
        seen = 0; known = 0; gone = 0; missing = 0; peer = 0; other = 0; slices = 0;
        wakes = false; crowded = false; making = false
    }
  }
}

init {
  byte i = 0;
  choose_fault();
  atomic {
    do
    :: i < N ->
       run rank(i);
       i++
    :: else -> break
    od;
    run killer()
  }
}
