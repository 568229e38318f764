// A pause within a spin loop, where the processor has an instruction for it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

// Briefly leaves the core to its other hardware thread. No memory barrier.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep
