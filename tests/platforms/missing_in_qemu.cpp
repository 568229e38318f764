// SPDX-License-Identifier: Apache-2.0
// Two features of Linux that qemu-user lacks. Programs link this library before libc.
// - Robust mutexes whose owners have ended are marked: qemu-user refuses set_robust_list().
// - The time at which a process started: qemu-user makes up its own /proc/PID/stat.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace {

constexpr int robust = 16;  // In __kind, as in glibc's PTHREAD_MUTEX_ROBUST_NORMAL_NP.

// A thread that is not the first one vanishes. The first one remains as a zombie.
bool has_ended(int thread) {
  char path[32];
  char stat[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", thread);
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  const ssize_t bytes = ::read(file, stat, sizeof stat - 1);
  ::close(file);
  if (bytes <= 0) return true;
  stat[bytes] = 0;
  const char* name_end = std::strrchr(stat, ')');
  return name_end != nullptr && (name_end[2] == 'Z' || name_end[2] == 'X');
}

// As handle_futex_death() in Linux' kernel/futex/core.c.
void mark_if_owner_has_ended(pthread_mutex_t& mutex) {
  if ((mutex.__data.__kind & robust) == 0) return;
  int word = __atomic_load_n(&mutex.__data.__lock, __ATOMIC_ACQUIRE);
  const int owner = word & FUTEX_TID_MASK;
  if (owner == 0 || (word & FUTEX_OWNER_DIED) != 0 || !has_ended(owner)) return;
  const int marked = static_cast<int>((word & FUTEX_WAITERS) | FUTEX_OWNER_DIED);
  __atomic_compare_exchange_n(&mutex.__data.__lock, &word, marked, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  static auto* const next_open = next<int(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  char own[32];
  char task[64];
  std::snprintf(own, sizeof own, "/proc/%d/stat", ::getpid());
  std::snprintf(task, sizeof task, "/proc/self/task/%d/stat", ::getpid());
  const bool is_own = std::strcmp(path, own) == 0 || std::strcmp(path, "/proc/self/stat") == 0;
  return next_open(is_own ? task : path, flags, mode);
}

extern "C" int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static auto* const trylock = next<int(pthread_mutex_t*)>("pthread_mutex_trylock");
  mark_if_owner_has_ended(*mutex);
  return trylock(mutex);
}

extern "C" int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                       const timespec* limit) noexcept {
  static auto* const clocklock =
      next<int(pthread_mutex_t*, clockid_t, const timespec*)>("pthread_mutex_clocklock");
  mark_if_owner_has_ended(*mutex);
  return clocklock(mutex, clock, limit);
}
