/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages: pipes (rings), their delivery, the doorbell, and Mailbox's posts and progress.
 *
 * Ranks 0 to N - 2 each send MESSAGES messages to the last rank and leave. That rank receives all,
 * from any source if N is 3, then one more, which nobody sends, and leaves. With STOPS, it leaves
 * after STOPS messages. With WAITS_IN_ONE_STEP, sleeping is one step.
 *
 * The first message of a rank has one element. The second one does not fit the ring. A header, and
 * an element, is one cell.
 *
 * Checked:
 * - Each byte of a pipe is read once, in order, and whole.
 * - Without deaths, the receiver gets all messages that were sent. The last receive fails because
 *   all peers have left.
 * - A rank fails only if a rank died or left.
 * - No rank waits forever; no wake-up is lost while all ranks live.
 * - Ranks that have left keep no delivered pipe.
 */
#include "ranks.pml"

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef SLICES
#define SLICES 0 /* Slices of a rank that may end without news. */
#endif

#define written_before_copy 1
#define read_before_copy 2
#define relaxed_written 3
#define no_acquire 4
#define bell_after_look 5
#define sleepers_before_bell 6
#define left_after_pipes 7
#define no_drop 8
#define no_look_for_space 9

#define CAPACITY 4
#define MOST_HIDDEN 2
#define PIPES (N - 1) /* Pipe p is from rank p to the last rank. */
#define RECEIVER (N - 1)

/* Cells of message m with its header. */
#define cells_of(m) ((m) % 2 == 0 -> 2 : 6)

byte written[PIPES];
byte taken[PIPES]; /* Ring::read. */
byte cell[PIPES * CAPACITY]; /* The position in the stream of bytes, plus 1. */
byte cell_own[PIPES * CAPACITY];
byte cell_early[PIPES * CAPACITY]; /* What the receiver may have loaded early. */

byte bell[N];
byte sleepers[N];
bool asleep[N];
byte left; /* Bits of ranks. */

bool claimed[PIPES];
#define NOT_SENT 0
#define IN_SOCKET 1
#define ARRIVED 2
#define UNWANTED 3 /* drop() came before the descriptor. */
#define GONE 4
byte descriptor[PIPES];

byte completed[PIPES]; /* Not in the code: messages that the sender has completed. */

/* The receiver's fd broker. A descriptor in a socket arrives, also after the sender's death. */
proctype broker() {
end:
  do
  :: d_step { descriptor[0] == IN_SOCKET -> descriptor[0] = ARRIVED }
#if PIPES > 1
  :: d_step { descriptor[1] == IN_SOCKET -> descriptor[1] = ARRIVED }
#endif
  :: d_step { descriptor[0] == UNWANTED + 10 -> descriptor[0] = GONE }
#if PIPES > 1
  :: d_step { descriptor[1] == UNWANTED + 10 -> descriptor[1] = GONE }
#endif
  od
}

#define has_left(rank) ((left & bit(rank)) != 0)

/* --- The doorbell --- */

inline ring(rank) {
#ifdef WAITS_IN_ONE_STEP
  bell[rank]++
#else
  if
  :: fault != sleepers_before_bell ->
     /* barrier.cpp: bell.value.fetch_add(1); */
     bell[rank]++;
     /* barrier.cpp: if (bell.sleepers.load() != 0) futex_wake_all(bell.value); */
     if
     :: sleepers[rank] != 0 -> asleep[rank] = false
     :: sleepers[rank] == 0
     fi
  :: else ->
     wakes = (sleepers[rank] != 0);
     bell[rank]++;
     if
     :: wakes -> asleep[rank] = false
     :: else
     fi
  fi
#endif
}

/* Whether a wait that ends finds something without a ring of the bell: a loss; a pipe that was
 * being opened, for which ranks look every 0.2 ms. */
#if PIPES == 1
#define opens_pipe (opening != 0 && descriptor[0] == ARRIVED)
#else
#define opens_pipe                                           \
  (((opening & 1) != 0 && descriptor[0] == ARRIVED) ||       \
   ((opening & 2) != 0 && descriptor[1] == ARRIVED))
#endif
#define has_news (sees_loss || (me == RECEIVER && opens_pipe))

/* ShmPipes::await() */
inline await() {
#ifdef WAITS_IN_ONE_STEP
  bell[me] != seen || has_news;
#else
  /* barrier.cpp: mine.sleepers.fetch_add(1); */
  sleepers[me]++;
  /* barrier.cpp: if (mine.value.load() == seen) futex_wait(mine.value, seen, time); */
  if
  :: bell[me] != seen
  :: d_step { bell[me] == seen -> asleep[me] = true };
     d_step {
       if
       :: !asleep[me]
       :: asleep[me] && has_news
       :: asleep[me] && !has_news && slices < SLICES -> slices++
       fi;
       asleep[me] = false
     }
  fi;
  /* barrier.cpp: mine.sleepers.fetch_sub(1); */
  sleepers[me]--;
#endif
  /* shm_pipes.cpp: if (now - looked_ < std::chrono::nanoseconds(wait_slice).count() &&
     barrier_.doorbell() != seen) */
  if
  :: bell[me] != seen
  :: sees_loss -> goto failed
  :: !sees_loss
  fi
}

/* --- The ring --- */

/* ShmWriter::write(), of the rest of message m. Sets `moved`. */
inline write(p) {
  moved = false;
  do
  :: d_step {
       /* shm_pipes.cpp: const std::uint64_t used = begin -
          ring.read.load(std::memory_order_acquire); */
       space = (fault == no_look_for_space -> CAPACITY : CAPACITY - (written[p] - taken[p]));
       /* shm_pipes.cpp: std::min({bytes - all, most_hidden, capacity -
          static_cast<std::size_t>(used)}); */
       count = (size - done < MOST_HIDDEN -> size - done : MOST_HIDDEN);
       count = (space < count -> space : count);
       space = 0
     };
     if
     :: count == 0 -> break
     :: count != 0 ->
        if
        :: fault == written_before_copy ->
           written[p] = written[p] + count;
           copy_in(p, written[p] - count)
        :: else ->
           /* shm_pipes.cpp: std::memcpy(ring.data + at, data + all, first); */
           copy_in(p, written[p]);
           d_step {
             /* shm_pipes.cpp: ring.written.store(begin + size, std::memory_order_release); */
             if
             :: fault != relaxed_written -> publish(p)
             :: else
             fi;
             written[p] = written[p] + count
           }
        fi;
        atomic {
          done = done + count;
          moved = true;
          count = 0
        }
     fi
  od
}

inline copy_in(p, begin) {
  d_step {
    i = 0;
    do
    :: i < count ->
       cell_own[p * CAPACITY + ((begin) + i) % CAPACITY] = (begin) + i + 1;
       i++
    :: else -> break
    od;
    i = 0
  }
}

inline publish(p) {
  i = 0;
  do
  :: i < CAPACITY ->
     cell[p * CAPACITY + i] = cell_own[p * CAPACITY + i];
     i++
  :: else -> break
  od;
  i = 0
}

/* ShmReader::read(), of the rest of a message from pipe p. A reader may get a byte that it has
 * loaded since its last acquire load, or any newer one. */
inline read(p) {
  do
  :: got[p] < cells_of(received[p]) ->
     d_step {
       /* shm_pipes.cpp: return
          static_cast<std::size_t>(ring.written.load(std::memory_order_acquire) - */
       count = written[p] - taken[p];
       if
       :: fault != no_acquire -> acquire(p)
       :: else
       fi;
       /* shm_pipes.cpp: const std::size_t size = std::min({bytes - all, most_hidden, readable()});
          */
       count = (cells_of(received[p]) - got[p] < count -> cells_of(received[p]) - got[p] : count);
       count = (MOST_HIDDEN < count -> MOST_HIDDEN : count)
     };
     if
     :: count == 0 -> break
     :: count != 0 ->
        if
        :: fault == read_before_copy ->
           taken[p] = taken[p] + count;
           copy_out(p, taken[p] - count)
        :: else ->
           /* shm_pipes.cpp: std::memcpy(data + all, ring.data + at, first); */
           copy_out(p, taken[p]);
           /* shm_pipes.cpp: ring.read.store(begin + size, std::memory_order_release); */
           taken[p] = taken[p] + count
        fi;
        d_step {
          got[p] = got[p] + count;
          moved = true;
          count = 0
        }
     fi
  :: got[p] >= cells_of(received[p]) -> break
  od
}

inline acquire(p) {
  i = 0;
  do
  :: i < CAPACITY ->
     cell_early[p * CAPACITY + i] = cell[p * CAPACITY + i];
     i++
  :: else -> break
  od;
  i = 0
}

inline copy_out(p, begin) {
  d_step { /* One step, if all values that may be read are those of this position. */
    i = 0;
    differs = false;
    do
    :: i < count ->
       at = p * CAPACITY + ((begin) + i) % CAPACITY;
       differs = differs || cell_early[at] != (begin) + i + 1 || cell[at] != (begin) + i + 1 ||
                 cell_own[at] != (begin) + i + 1;
       i++
    :: else -> break
    od;
    i = 0;
    at = 0
  };
  if
  :: differs -> copy_out_slowly(p, begin)
  :: !differs
  fi
}

inline copy_out_slowly(p, begin) {
  do
  :: i < count ->
     at = p * CAPACITY + ((begin) + i) % CAPACITY;
     if
     :: byte_read = cell_early[at]
     :: cell[at] != cell_early[at] -> byte_read = cell[at]
     :: cell_own[at] != cell[at] -> byte_read = cell_own[at]
     fi;
     d_step {
       assert(byte_read == (begin) + i + 1);
       byte_read = 0;
       at = 0;
       i++
     }
  :: i >= count -> break
  od;
  i = 0;
  differs = false
}

/* --- A sender --- */

/* Mailbox::post(), ShmPipes::to() */
inline open_pipe() {
  /* mailbox.cpp: if (!outgoing.pipe && !pipes_.has_left(to)) outgoing.pipe = &pipes_.to(to); */
  if
  :: open
  :: !open && has_left(RECEIVER) -> goto over /* mailbox.cpp: failed |= fail_messages_with(peer); */
  :: !open && !has_left(RECEIVER) ->
     /* shm_pipes.cpp: return (segment_.block(from).pipes[to / 64].fetch_or(bit_of(to)) &
        bit_of(to)) == 0; */
     d_step {
       for_nobody = claimed[me];
       claimed[me] = true
     };
     /* shm_pipes.cpp: return peers_->deliver(peer, key(rank_, peer), sizeof(Ring)); */
     if
     :: d_step { !for_nobody && descriptor[me] == NOT_SENT -> descriptor[me] = IN_SOCKET }
     :: d_step { !for_nobody && descriptor[me] == UNWANTED -> descriptor[me] = UNWANTED + 10 }
     :: for_nobody
     fi
  fi;
  atomic {
    open = true;
    size = cells_of(message);
    done = 0
  }
}

/* PointToPoint::run() of a send */
inline send() {
  open_pipe();
  do
  /* point_to_point.cpp: const std::uint32_t seen = shared->pipes.bell(); */
  :: seen = bell[me];
     if
     :: for_nobody -> done = size /* Nobody reads this ring. */
     :: !for_nobody ->
        write(me);
        /* mailbox.cpp: if (moved) pipes_.ring(to); */
        if
        :: moved -> ring(RECEIVER)
        :: !moved
        fi
     fi;
     if
     :: done == size -> break
     /* mailbox.cpp: failed |= fail_messages_with(peer); */
     :: done < size && has_left(RECEIVER) -> goto over
     :: done < size && !has_left(RECEIVER) -> await()
     fi
  od;
  atomic {
    message++;
    done = 0;
    seen = 0;
    moved = false;
    completed[me] = message
  }
}

proctype sender(byte me) {
  byte message, size, done, seen, space, count, i, slices;
  byte opening; /* Receiver only. */
  bool open, for_nobody, moved, wakes;
  {
    do
    :: message < MESSAGES -> send()
    :: else -> break
    od;
over:
    /* barrier.cpp: segment_.block(rank_).left.store(1); */
    left = left | bit(me);
    /* barrier.cpp: if (peer != rank_) ring(peer);  // Ranks that wait for its messages. */
    ring(RECEIVER);
failed: skip /* The rank exits. Its peers detect the same loss. */
  } unless {
    d_step {
      (dead & bit(me)) != 0 ->
        message = 0; size = 0; done = 0; seen = 0; space = 0; count = 0; i = 0; slices = 0;
        open = false; for_nobody = false; moved = false; wakes = false
    }
  }
}

/* --- The receiver --- */

/* ShmPipes::from() */
inline take_pipe(p) {
  atomic {
    if
    :: (open & bit(p)) != 0
    /* shm_pipes.cpp: return (segment_.block(peer).pipes[rank_ / 64].load() & bit_of(rank_)) != 0;
       */
    :: (open & bit(p)) == 0 && !claimed[p]
    /* shm_pipes.cpp: if (SharedMemory memory = peers_->take(key(peer, rank_), sizeof(Ring))) { */
    :: (open & bit(p)) == 0 && claimed[p] && descriptor[p] != ARRIVED -> opening = opening | bit(p)
    :: (open & bit(p)) == 0 && claimed[p] && descriptor[p] == ARRIVED ->
       descriptor[p] = GONE;
       open = open | bit(p);
       opening = opening & ~bit(p)
    fi
  }
}

/* Mailbox::pull(). Reads at most the message that the receive waits for. */
inline pull(p) {
  take_pipe(p);
  if
  :: (open & bit(p)) == 0 || complete
  /* mailbox.cpp: if (!is_awaited(from) || incoming.pipe->readable() < sizeof(MessageHeader)) return
     false; */
  :: (open & bit(p)) != 0 && !complete && written[p] == taken[p]
  :: (open & bit(p)) != 0 && !complete && written[p] != taken[p] ->
     read(p);
     if
     :: moved -> ring(p) /* mailbox.cpp: if (moved) pipes_.ring(from); */
     :: !moved
     fi;
     d_step {
       if
       :: got[p] == cells_of(received[p]) ->
          got[p] = 0;
          received[p]++;
          complete = true
       :: else
       fi;
       moved = false
     }
  fi
}

/* Mailbox::fail_what_the_left_miss(). The receive fails once all peers have left. */
inline fail_what_the_left_miss() {
  if
  :: fault != left_after_pipes -> gone = left
  :: else
  fi;
  p = 0;
  do
  :: p < PIPES && (gone & bit(p)) != 0 && fault != left_after_pipes ->
     /* mailbox.cpp: bool ended = pull(peer, incoming); */
     pull(p);
     p++
  :: p < PIPES && ((gone & bit(p)) == 0 || fault == left_after_pipes) -> p++
  :: p >= PIPES -> break
  od;
  /* mailbox.cpp: if (pipes_.is_opening(peer)) return false; */
  if
  :: fault == left_after_pipes -> gone = left
  :: else
  fi;
  if
  :: !complete && gone == (1 << PIPES) - 1 ->
     d_step {
       is_opening = false;
       p = 0;
       do
       :: p < PIPES ->
          is_opening = is_opening || (claimed[p] && (open & bit(p)) == 0);
          p++
       :: else -> break
       od;
       p = 0
     };
     if
     :: is_opening
     :: !is_opening ->
        /* mailbox.cpp: pipes_.throw_if_over(describe_message(*messages[0], group_, rank_)); */
        if
        :: sees_loss -> goto failed
        :: !sees_loss -> goto all_left
        fi
     fi
  :: else
  fi
}

inline receive() {
  complete = false;
  do
  :: true ->
     /* point_to_point.cpp: const std::uint32_t seen = shared->pipes.bell(); */
     atomic {
       seen = bell[me];
       p = 0
     };
     do
     :: p < PIPES ->
        pull(p);
        p++
     :: p >= PIPES -> break
     od;
     fail_what_the_left_miss();
     if
     :: fault == bell_after_look -> seen = bell[me]
     :: else
     fi;
     if
     :: complete -> break
     :: !complete -> await()
     fi
  od;
  total++
}

#ifndef STOPS
#define STOPS (MESSAGES * PIPES + 1)
#endif

proctype receiver(byte me) {
  byte received[PIPES];
  byte got[PIPES];
  byte total, seen, count, i, at, byte_read, p, gone, slices;
  byte open, opening; /* Bits of pipes. */
  bool complete, moved, wakes, is_opening, differs;
  {
    do
    :: total < STOPS -> receive()
    :: else -> break
    od;
    goto over;
all_left: skip;
    d_step { /* All that was sent has come. */
      p = 0;
      do
      :: p < PIPES ->
         assert(lost != 0 || received[p] == completed[p]);
         p++
      :: else -> break
      od
    };
over:
    left = left | bit(me);
    p = 0;
    do
    :: p < PIPES ->
       ring(p);
       p++
    :: else -> break
    od;
failed:
    /* shm_pipes.cpp: if (!incoming_[static_cast<std::size_t>(peer)].pipe && !claim(peer, rank_)) */
    p = 0;
    do
    :: p < PIPES ->
       if
       :: (open & bit(p)) != 0
       :: (open & bit(p)) == 0 ->
          d_step {
            is_opening = claimed[p];
            claimed[p] = true
          };
          if
          :: is_opening && fault != no_drop ->
             /* shm_pipes.cpp: peers_->drop(key(peer, rank_)); */
             if
             :: d_step { descriptor[p] == ARRIVED -> descriptor[p] = GONE }
             :: d_step { descriptor[p] == NOT_SENT -> descriptor[p] = UNWANTED }
             :: d_step { descriptor[p] == IN_SOCKET -> descriptor[p] = UNWANTED + 10 }
             fi
          :: else
          fi
       fi;
       p++
    :: else -> break
    od
  } unless {
    d_step {
      (dead & bit(me)) != 0 ->
        total = 0; seen = 0; count = 0; i = 0; at = 0; byte_read = 0; p = 0; gone = 0; slices = 0;
        open = 0; opening = 0; complete = false; moved = false; wakes = false; is_opening = false;
        differs = false
    }
  }
}

/* Once nothing else can happen, no descriptor is left over. */
proctype auditor() {
end:
  timeout ->
    assert(lost != 0 || descriptor[0] == NOT_SENT || descriptor[0] == GONE);
#if PIPES > 1
    assert(lost != 0 || descriptor[1] == NOT_SENT || descriptor[1] == GONE)
#endif
}

init {
  byte k = 0;
  choose_fault();
  atomic {
    do
    :: k < PIPES ->
       run sender(k);
       k++
    :: else -> break
    od;
    run receiver(RECEIVER);
    run broker();
    run auditor();
    run killer()
  }
}
