/* Preloaded into a server: its wall clock is the machine's plus an offset, which another process may change at any
 * time. The offset is a 64-bit count of microseconds at the start of the file that LOCKKIT_CLOCK names.
 *
 * The system calls are made directly. To look up the real functions would allocate memory, and allocators read the time
 * while they start. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t no_offset;
static const volatile int64_t *offset = &no_offset;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("LOCKKIT_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) _exit(97);
  void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) _exit(97);
  offset = page;
  close(file);
}

static int is_wall_clock(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && is_wall_clock(clock)) {
    int64_t nanos = now->tv_nsec + *offset % 1000000 * 1000;
    now->tv_sec += *offset / 1000000 + (nanos >= 1000000000) - (nanos < 0);
    now->tv_nsec = nanos - 1000000000 * ((nanos >= 1000000000) - (nanos < 0));
  }
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  (void)zone;
  struct timespec precise;
  int failed = clock_gettime(CLOCK_REALTIME, &precise);
  if (!failed) *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
  return failed;
}

time_t time(time_t *also) {
  struct timespec precise;
  time_t now = clock_gettime(CLOCK_REALTIME, &precise) ? (time_t)-1 : precise.tv_sec;
  if (also) *also = now;
  return now;
}
