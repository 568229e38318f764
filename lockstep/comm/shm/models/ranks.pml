/* SPDX-License-Identifier: Apache-2.0
 *
 * What the models of shared memory have in common: ranks that die, plain memory, and planted
 * faults. docs/internals/memory-order.md, "Models", explains it.
 *
 * Quoted code: a comment that begins with a file's name and a colon quotes that file. A test
 * compares the quotes with the code.
 */

#ifndef N
#define N 2 /* Ranks. */
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define bit(rank) (1 << (rank))

/* The planted fault of this run: an environment variable, so that one verifier runs all. */
c_decl {
  \#include <stdlib.h>
}
byte fault;

inline choose_fault() {
  c_code {
    const char* const given = getenv("FAULT");
    now.fault = given == NULL ? 0 : (unsigned char)atoi(given);
  }
}

byte dead; /* Ranks that execute no more steps. */
byte lost; /* Ranks that Peers::throw_if_lost() reports: marked at their death or earlier. */

/* Whether this rank's throw_if_lost() throws. */
#define sees_loss ((lost & ~bit(me)) != 0)

/* Kills up to DEATHS ranks, at any step. A rank's other threads may still run when the kernel has
 * marked its death: with EARLY, a rank is marked first and executes any number of steps before it
 * stops. A mark that peers see later than the death is the same as a later death. */
proctype killer() {
  byte deaths = 0;
  byte victim;
  do
  :: deaths < DEATHS ->
     victim = 0;
     do
     :: victim < N - 1 -> victim++
     :: break
     od;
     atomic {
       lost = lost | bit(victim);
#ifndef EARLY
       dead = dead | bit(victim)
#endif
     };
#ifdef EARLY
     dead = dead | bit(victim);
#endif
     deaths++
  :: break /* So that a rank that waits for nothing but a death is an invalid end state. */
  od
}

/* Plain memory: readers see `word`, its writer sees `word_own`. The processor may make a plain
 * store visible at any time, in any order. A release store makes all earlier ones visible. A reader
 * thus gets either value until then, and the new one afterwards. */
#define plain_load(to, word, word_own)         \
  if                                           \
  :: to = word                                 \
  :: word != word_own -> d_step {              \
       word = word_own;                        \
       to = word                               \
     }                                         \
  fi
