/* Copies: small ones keep their bytes, large ones become zeros that take no memory. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "stub.h"

#define PAGE 4096ull
#define LARGE (4ull << 20) /* from here on the host's pages are exchanged for fresh ones */
#define FEW (1ull << 20)   /* reads of up to so many bytes are told of when they are zeros */
#ifndef MADV_FREE
#define MADV_FREE 8
#endif

/* ---- numbers announced by Python for the next readers of as many bytes, first come first served */

static __thread struct {
  size_t bytes;
  long long number;
} announced[16];
static __thread int announcements;

EXPORT void memcalc_stub_answer(size_t bytes, long long number) {
  if (!bytes) announcements = 0;
  else if (announcements < 16) {
    announced[announcements].bytes = bytes;
    announced[announcements++].number = number;
  }
}

static int answered(void *to, size_t bytes) {
  int found = 0;
  while (found < announcements && announced[found].bytes != bytes) found++;
  if (found == announcements || bytes > sizeof announced->number) return 0;
  memcpy(to, &announced[found].number, bytes);
  memmove(announced + found, announced + found + 1, (--announcements - found) * sizeof *announced);
  return 1;
}

/* ---- from a GPU to the host ---- */

/* MADV_FREE is refused for all but private anonymous pages: MADV_DONTNEED makes exactly those
   zeros, where others would keep what they have. Kernels that do not refuse are found out once. */
static int can_tell_private(void) {
  static int known;
  if (!known) {
    void *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int refused = shared != MAP_FAILED && madvise(shared, PAGE, MADV_FREE) != 0;
    if (shared != MAP_FAILED) munmap(shared, PAGE);
    known = refused ? 1 : -1;
  }
  return known > 0;
}

static void zeros_to_host(char *to, size_t bytes) {
  char *low = (char *)(((uint64_t)to + PAGE - 1) / PAGE * PAGE);
  char *high = (char *)((uint64_t)(to + bytes) / PAGE * PAGE);
  if (bytes >= LARGE && can_tell_private() && !madvise(low, high - low, MADV_FREE) &&
      !madvise(low, high - low, MADV_DONTNEED)) {
    memset(to, 0, low - to);
    memset(high, 0, to + bytes - high);
  } else {
    memset(to, 0, bytes);
  }
}

struct way {
  char *to;
  const char *from;
};
static void copy_part(const void *part, size_t bytes, void *more) {
  struct way *way = more;
  memcpy(way->to + ((const char *)part - way->from), part, bytes);
}

/* Called where a program reads a few numbers that are not there, or that are made up. */
static void (*unknown)(const void *at);
EXPORT void memcalc_stub_when_unknown(void (*tell)(const void *at)) { unknown = tell; }

static void to_host(void *to, const void *from, size_t bytes) {
  if (answered(to, bytes)) return;
  memcalc_keep_promises(from, bytes, 0);
  if (unknown && bytes <= FEW && memcalc_holds(from, bytes) != KNOWN) unknown(from);
  zeros_to_host(to, bytes);
  struct way way = {to, from};
  memcalc_each_held(from, bytes, copy_part, &way);
}

int memcalc_copy(void *to, const void *from, size_t bytes) {
  if (!bytes || to == from) return 0;
  if (on_device(to) && !on_device(from)) memcalc_arrive(to);
  if (!on_device(to)) {
    if (on_device(from)) to_host(to, from, bytes);
    else memmove(to, from, bytes);
  } else if (memcalc_map()) {
    int something = bytes > SET->carried ? 0 : on_device(from) ? memcalc_holds(from, bytes) : KNOWN;
    if (something) {
      memcalc_mark(to, bytes, something == MADE_UP);
      memmove(to, from, bytes);
    } else {
      memcalc_zero(to, bytes);
    }
    if (on_device(from)) memcalc_copy_promises(to, from, bytes);
  }
  return 0;
}

/* ---- the functions of CUDA ---- */

static int is_pageable(const void *at) { return !on_device(at) && !memcalc_is_pinned(at); }

/* Kernels begin with copies of their arguments, too: numbers stay known where a program copies. */
static int only_transfers;
static __thread int transfers;
EXPORT void memcalc_stub_transfer(int begins) {
  only_transfers = 1;
  transfers = begins;
}

static int copy_known(void *to, const void *from, size_t bytes) {
  if (!only_transfers || transfers || to == from || !on_device(to) || !on_device(from) || !memcalc_map())
    return memcalc_copy(to, from, bytes);
  memcalc_zero(to, bytes);
  return 0;
}

/* A stream that is captured takes no copies of memory that the host may move. */
static int copy_on(void *stream, void *to, const void *from, size_t bytes) {
  if (memcalc_capturing(stream) && (is_pageable(to) || is_pageable(from))) {
    memcalc_spoil_capture(stream);
    return CAPTURE_UNSUPPORTED;
  }
  if (is_pageable(to)) memcalc_wait_for_all();
  return copy_known(to, from, bytes);
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  memcalc_wait_for_all();
  return memcalc_copy(to, from, bytes);
}
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return copy_on(stream, to, from, bytes);
}
EXPORT int cudaMemcpyPeer(void *to, int device, const void *from, int source, size_t bytes) {
  return memcalc_copy(to, from, bytes);
}
EXPORT int cudaMemcpyPeerAsync(void *to, int device, const void *from, int source, size_t bytes, void *stream) {
  return copy_on(stream, to, from, bytes);
}
EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind, void *stream) {
  int error = 0;
  for (size_t row = 0; row < height && !error; row++)
    error = copy_on(stream, (char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return error;
}
EXPORT int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                        size_t height, int kind) {
  for (size_t row = 0; row < height; row++)
    memcalc_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return 0;
}
#define DRIVER_COPY(name) \
  EXPORT int name(void *to, const void *from, size_t bytes) { return memcalc_copy(to, from, bytes); } \
  EXPORT int name##_v2(void *to, const void *from, size_t bytes) { return memcalc_copy(to, from, bytes); }
#define DRIVER_COPY_ASYNC(name) \
  EXPORT int name(void *to, const void *from, size_t bytes, void *stream) { return copy_on(stream, to, from, bytes); } \
  EXPORT int name##_v2(void *to, const void *from, size_t bytes, void *stream) { return copy_on(stream, to, from, bytes); }
DRIVER_COPY(cuMemcpyHtoD)
DRIVER_COPY(cuMemcpyDtoH)
DRIVER_COPY(cuMemcpyDtoD)
DRIVER_COPY_ASYNC(cuMemcpyHtoDAsync)
DRIVER_COPY_ASYNC(cuMemcpyDtoHAsync)
DRIVER_COPY_ASYNC(cuMemcpyDtoDAsync)
EXPORT int cuMemcpy(void *to, const void *from, size_t bytes) { return memcalc_copy(to, from, bytes); }
EXPORT int cuMemcpyAsync(void *to, const void *from, size_t bytes, void *stream) {
  return copy_on(stream, to, from, bytes);
}

EXPORT int cudaMemset(void *at, int value, size_t bytes) {
  if (!on_device(at)) {
    memset(at, value, bytes);
  } else if (memcalc_map()) {
    if (!(value & 255) || bytes > SET->carried) {
      memcalc_zero(at, bytes);
    } else {
      memcalc_mark(at, bytes, 0);
      memset(at, value, bytes);
    }
  }
  return 0;
}
EXPORT int cudaMemsetAsync(void *at, int value, size_t bytes, void *stream) { return cudaMemset(at, value, bytes); }
EXPORT int cuMemsetD8_v2(void *at, unsigned char value, size_t bytes) { return cudaMemset(at, value, bytes); }
EXPORT int cuMemsetD8Async(void *at, unsigned char value, size_t bytes, void *stream) {
  return cudaMemset(at, value, bytes);
}

static int fill_words(uint32_t *at, uint32_t value, size_t count) {
  if (!value || count * sizeof value > SET->carried) return cudaMemset(at, 0, count * sizeof value);
  if (on_device(at) && !memcalc_map()) return 0;
  memcalc_mark(at, count * sizeof value, 0);
  while (count--) *at++ = value;
  return 0;
}
EXPORT int cuMemsetD32_v2(uint32_t *at, uint32_t value, size_t count) { return fill_words(at, value, count); }
EXPORT int cuMemsetD32Async(uint32_t *at, uint32_t value, size_t count, void *stream) {
  return fill_words(at, value, count);
}
