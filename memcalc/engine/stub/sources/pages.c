/* Addresses of device memory, and the bytes behind them: private pages that are zero, and take no
   memory of the host, until something is copied there. Where the host refuses such a mapping,
   addresses are mere numbers and everything reads as zeros. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include "stub.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define PAGE 4096ull
#define UNIT 512ull /* what PyTorch's allocator rounds to: no two blocks share one */
#define UNITS_OF_GROUP 4096
#define CHUNK (16ull << 30) /* each belongs to one device */
#define CHUNKS (DEVICE_SPAN / CHUNK)
#define MANY_PAGES 16 /* from here on pages are given back to the host instead of overwritten */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t owner[CHUNKS];
static uint32_t reservations[CHUNKS];
static uint64_t next_chunk;
static struct { uint64_t at, left; } open_chunk[MOST_DEVICES];

static uint8_t *held;        /* by unit: 1, it may hold something else than zeros */
static uint8_t *held_groups; /* the same by group of units, looked at first */
static uint8_t *made_up;     /* by held unit: 1, what it holds follows from numbers that nobody computed */
static int some_made_up;
static int tried, mapped;

/* ---- addresses ---- */

int memcalc_device_of(const void *address) {
  return owner[((uint64_t)address - DEVICE_BASE) / CHUNK];
}

/* Chunks in a row that nobody uses. They go round, so that an address is used again only after all
   others have been. */
static uint64_t free_chunks(uint64_t wanted) {
  for (uint64_t tries = 0, found = 0; tries < 2 * CHUNKS; tries++) {
    uint64_t chunk = (next_chunk + tries) % CHUNKS;
    found = reservations[chunk] ? 0 : chunk ? found + 1 : 1;
    if (found == wanted) {
      next_chunk = chunk + 1;
      return chunk + 1 - wanted;
    }
  }
  return CHUNKS;
}

uint64_t memcalc_reserve(uint64_t bytes, int device) {
  uint64_t at = 0;
  bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
  pthread_mutex_lock(&lock);
  if (open_chunk[device].left < bytes) {
    uint64_t wanted = (bytes + CHUNK - 1) / CHUNK, first = wanted > CHUNKS ? CHUNKS : free_chunks(wanted);
    if (first == CHUNKS) goto done;
    memset(owner + first, device, wanted);
    for (int other = 0; other < MOST_DEVICES; other++)
      if ((open_chunk[other].at - DEVICE_BASE) / CHUNK - first < wanted) open_chunk[other].left = 0;
    open_chunk[device].at = DEVICE_BASE + first * CHUNK;
    open_chunk[device].left = wanted * CHUNK;
  }
  at = open_chunk[device].at;
  open_chunk[device].at += bytes;
  open_chunk[device].left -= bytes;
  for (uint64_t chunk = (at - DEVICE_BASE) / CHUNK; chunk <= (at + bytes - 1 - DEVICE_BASE) / CHUNK; chunk++)
    reservations[chunk]++;
done:
  pthread_mutex_unlock(&lock);
  return at;
}

void memcalc_unreserve(uint64_t at, uint64_t bytes) {
  bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
  memcalc_zero((void *)at, bytes);
  pthread_mutex_lock(&lock);
  for (uint64_t chunk = (at - DEVICE_BASE) / CHUNK; chunk <= (at + bytes - 1 - DEVICE_BASE) / CHUNK; chunk++)
    if (reservations[chunk]) reservations[chunk]--;
  pthread_mutex_unlock(&lock);
}

/* ---- bytes ---- */

static void *lazy(void *at, uint64_t bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED_NOREPLACE : 0);
  void *made = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (made == MAP_FAILED) return NULL;
  if (at && made != at) {
    munmap(made, bytes); /* kernels before 4.17 take the address as a hint */
    return NULL;
  }
  madvise(made, bytes, MADV_NOHUGEPAGE);
  madvise(made, bytes, MADV_DONTDUMP);
  return made;
}

int memcalc_map(void) {
  if (__atomic_load_n(&tried, __ATOMIC_ACQUIRE)) return mapped;
  pthread_mutex_lock(&lock);
  if (!tried) {
    void *bytes = lazy((void *)DEVICE_BASE, DEVICE_SPAN);
    held = bytes ? lazy(NULL, DEVICE_SPAN / UNIT) : NULL;
    held_groups = held ? lazy(NULL, DEVICE_SPAN / UNIT / UNITS_OF_GROUP) : NULL;
    made_up = held_groups ? lazy(NULL, DEVICE_SPAN / UNIT) : NULL;
    mapped = made_up != NULL;
    if (held && !mapped) munmap(held, DEVICE_SPAN / UNIT);
    if (held_groups && !mapped) munmap(held_groups, DEVICE_SPAN / UNIT / UNITS_OF_GROUP);
    if (bytes && !mapped) munmap(bytes, DEVICE_SPAN);
    __atomic_store_n(&tried, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return mapped;
}

/* 1: what is copied to a GPU can be read back; 0: this host refuses the mapping, and reads are zeros. */
EXPORT int memcalc_stub_maps(void) { return memcalc_map(); }

static uint64_t unit_of(const void *at) { return ((uint64_t)at - DEVICE_BASE) / UNIT; }

static void mark(const void *at, size_t bytes, int is_made_up) {
  uint64_t first = unit_of(at), last = unit_of((const char *)at + bytes - 1);
  memset(held + first, 1, last - first + 1);
  some_made_up |= is_made_up;
  if (some_made_up) memset(made_up + first, is_made_up, last - first + 1);
  memset(held_groups + first / UNITS_OF_GROUP, 1, last / UNITS_OF_GROUP - first / UNITS_OF_GROUP + 1);
}

/* The first unit of a range that may hold something; `last` + 1: none does. */
static uint64_t held_from(uint64_t unit, uint64_t last) {
  while (unit <= last) {
    uint64_t group = unit / UNITS_OF_GROUP;
    uint8_t *some = memchr(held_groups + group, 1, last / UNITS_OF_GROUP - group + 1);
    if (!some) break;
    uint64_t first = (uint64_t)(some - held_groups) * UNITS_OF_GROUP, end = first + UNITS_OF_GROUP - 1;
    uint64_t from = first < unit ? unit : first, to = end > last ? last : end;
    uint8_t *found = memchr(held + from, 1, to - from + 1);
    if (found) return (uint64_t)(found - held);
    if (from == first && to == end) *some = 0;
    unit = to + 1;
  }
  return last + 1;
}

/* Units in a row that may hold something, from one on. */
static uint64_t run_of_held(uint64_t unit, uint64_t last) {
  uint8_t *end = memchr(held + unit, 0, last - unit + 1);
  return end ? (uint64_t)(end - held) - unit : last - unit + 1;
}

static void zero(char *at, size_t bytes) {
  uint64_t last = unit_of(at + bytes - 1);
  for (uint64_t unit = unit_of(at), run; (unit = held_from(unit, last)) <= last; unit += run) {
    run = run_of_held(unit, last);
    char *from = (char *)(DEVICE_BASE + unit * UNIT), *to = from + run * UNIT;
    char *first = from < at ? from + UNIT : from, *end = to > at + bytes ? to - UNIT : to;
    if (from < at) from = at;
    if (to > at + bytes) to = at + bytes;
    /* Whole units are zeros from now on; the first and last keep what others have there. */
    if (end > first) memset(held + unit_of(first), 0, (uint64_t)(end - first) / UNIT);
    char *low = (char *)(((uint64_t)from + PAGE - 1) / PAGE * PAGE), *high = (char *)((uint64_t)to / PAGE * PAGE);
    if (high >= low + MANY_PAGES * PAGE && !madvise(low, high - low, MADV_DONTNEED)) {
      memset(from, 0, low - from);
      memset(high, 0, to - high);
    } else {
      memset(from, 0, to - from);
    }
  }
}

void memcalc_zero(void *at, size_t bytes) {
  if (!bytes || !mapped || !on_device(at)) return;
  memcalc_drop_promises(at, bytes);
  pthread_mutex_lock(&lock);
  zero(at, bytes);
  pthread_mutex_unlock(&lock);
}

void memcalc_mark(void *at, size_t bytes, int is_made_up) {
  if (!bytes || !mapped || !on_device(at)) return;
  memcalc_drop_promises(at, bytes);
  pthread_mutex_lock(&lock);
  mark(at, bytes, is_made_up);
  pthread_mutex_unlock(&lock);
}

/* 0: nothing; 1: bytes that were put there; 2: some of them are made up. */
int memcalc_holds(const void *at, size_t bytes) {
  if (!bytes || !mapped || !on_device(at)) return 0;
  pthread_mutex_lock(&lock);
  uint64_t last = unit_of((const char *)at + bytes - 1), unit = held_from(unit_of(at), last);
  int found = unit <= last;
  for (uint64_t run; some_made_up && unit <= last; unit = held_from(unit + run, last)) {
    run = run_of_held(unit, last);
    if (memchr(made_up + unit, 1, run)) {
      found = 2;
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

void memcalc_each_held(const void *at, size_t bytes,
                       void (*each)(const void *part, size_t bytes, void *more), void *more) {
  if (!bytes || !mapped || !on_device(at)) return;
  const char *begin = at, *end = begin + bytes;
  uint64_t last = unit_of(end - 1);
  for (uint64_t unit = unit_of(at), run; unit <= last; unit += run) {
    pthread_mutex_lock(&lock);
    unit = held_from(unit, last);
    run = unit <= last ? run_of_held(unit, last) : 0;
    pthread_mutex_unlock(&lock);
    if (!run) return;
    const char *from = (const char *)(DEVICE_BASE + unit * UNIT), *to = from + run * UNIT;
    if (from < begin) from = begin;
    if (to > end) to = end;
    each(from, to - from, more);
  }
}

/* Programs that write to device memory themselves, at addresses they were given, say so. */
EXPORT void memcalc_stub_mark(void *at, size_t bytes, int is_made_up) { memcalc_mark(at, bytes, is_made_up); }
EXPORT void memcalc_stub_zero(void *at, size_t bytes) { memcalc_zero(at, bytes); }
EXPORT int memcalc_stub_holds(const void *at, size_t bytes) {
  memcalc_keep_promises(at, bytes, 1);
  return memcalc_holds(at, bytes);
}

/* ---- PyTorch's allocator ---- */

#define REPORT _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define TYPE_CUDA 1 /* c10::DeviceType::CUDA */
struct c10_device {
  int8_t type, index;
};

/* Births and deaths of blocks so far, by PyTorch's number of the device: a moment of a program. */
static uint64_t moments[MOST_DEVICES];
EXPORT uint64_t *memcalc_stub_moments(void) { return moments; }

/* Where something arrived from the host, and when; the first ones are kept. */
static struct arrival {
  uint64_t at, moment;
} arrivals[MOST_ARRIVALS];
static uint64_t arrived;
EXPORT uint64_t memcalc_stub_arrived(void) { return arrived < MOST_ARRIVALS ? arrived : MOST_ARRIVALS; }
EXPORT struct arrival *memcalc_stub_arrivals(void) { return arrivals; }

void memcalc_arrive(const void *at) {
  uint64_t number = __atomic_fetch_add(&arrived, 1, __ATOMIC_RELAXED);
  if (number >= MOST_ARRIVALS) return;
  arrivals[number].at = (uint64_t)at;
  arrivals[number].moment = __atomic_load_n(moments + memcalc_device_of(at), __ATOMIC_RELAXED);
}

/* c10::reportMemoryUsageToProfiler: PyTorch's allocator calls it for each block it hands out or
   takes back. This library comes before libc10, so it sees the call first, zeroes the block that
   is handed out (no kernel writes there, and the last owner's bytes would show), and passes it on. */
EXPORT void REPORT(void *at, long bytes, size_t allocated, size_t reserved, struct c10_device device) {
  static void (*report)(void *, long, size_t, size_t, struct c10_device);
  if (!report) {
    void *c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    if (c10) *(void **)&report = dlsym(c10, TEXT(REPORT));
    if (*(void **)&report == (void *)REPORT) report = NULL;
  }
  if (device.type == TYPE_CUDA && bytes > 0) memcalc_zero(at, (size_t)bytes);
  if (device.type == TYPE_CUDA && (uint8_t)device.index < MOST_DEVICES)
    __atomic_fetch_add(moments + device.index, 1, __ATOMIC_RELAXED);
  if (report) report(at, bytes, allocated, reserved, device);
}

static void prepare(void) { pthread_mutex_lock(&lock); }
static void resume(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, resume, resume); }
