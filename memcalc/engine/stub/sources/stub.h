/* Declarations shared by the stub driver's files: the settings, and memory of the simulated GPUs. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_DEVICES 64
#define GRANULE (2ull << 20) /* the driver hands out memory in multiples of 2 MiB */

/* Error codes of the CUDA runtime and driver; both use the same numbers. */
enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  NOT_READY = 600,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURED_EVENT = 907,
};

/* ---- settings.c: what the environment says of the simulated GPUs ---- */

struct settings {
  int capability;                 /* such as 80 */
  int processors, threads;        /* multiprocessors, and threads of each */
  int shared, shared_of_block;    /* bytes of shared memory: of a multiprocessor, of a block (opt-in) */
  int cuda, nccl, cudnn;          /* versions, such as 13000, 22809, 90100 */
  int occupancy;                  /* blocks of a kernel that fit on a multiprocessor */
  int l2;                         /* bytes of L2 cache */
  uint64_t memory, kept;          /* what CUDA offers, and what the driver keeps beside it */
  uint64_t outside, room;         /* CUDA context and the like; what allocations may take */
  uint64_t carried;               /* largest copy to the device whose bytes are kept */
  char name[96];
  int machine;                    /* GPUs in the machine */
  int linked;                     /* 1: NVLink joins them */
  int devices;                    /* of these, the ones that CUDA_VISIBLE_DEVICES lets CUDA see */
  int visible[MOST_DEVICES];      /* number in the machine, by CUDA's number */
};
const struct settings *memcalc_settings(void);
#define SET (memcalc_settings())
void memcalc_uuid(unsigned char uuid[16], int machine_index);
void memcalc_uuid_text(char text[48], int machine_index);

/* A new handle, unlike all others; nothing lies behind it. */
static inline void *new_handle(void) {
  static uint64_t last = 0x100000;
  return (void *)__atomic_add_fetch(&last, 64, __ATOMIC_RELAXED);
}
#define MAKES_HANDLE(name, ...) \
  EXPORT int name(void **made, ##__VA_ARGS__) { \
    *made = new_handle(); \
    return 0; \
  }

/* ---- pages.c: addresses of device memory, and the bytes behind them ---- */

#define DEVICE_BASE 0x200000000000ull /* 32 TiB: below this lie programs, above SPAN their libraries */
#define DEVICE_SPAN (48ull << 40)

static inline int on_device(const void *address) {
  return (uint64_t)address - DEVICE_BASE < DEVICE_SPAN;
}
int memcalc_device_of(const void *address);
uint64_t memcalc_reserve(uint64_t bytes, int device);  /* 0: no addresses are left */
void memcalc_unreserve(uint64_t at, uint64_t bytes);
int memcalc_map(void); /* 1: device memory is mapped; 0: reads of it are zeros */
void memcalc_zero(void *at, size_t bytes);
void memcalc_mark(void *at, size_t bytes, int is_made_up);
enum { NOTHING, KNOWN, MADE_UP }; /* what memory of a GPU holds */
int memcalc_holds(const void *at, size_t bytes);
#define MOST_ARRIVALS (1 << 20)
void memcalc_arrive(const void *at); /* something was copied there from the host */
/* Calls `each` for the parts of a range that may hold something else than zeros. */
void memcalc_each_held(const void *at, size_t bytes,
                       void (*each)(const void *part, size_t bytes, void *more), void *more);

/* ---- streams.c: what the GPU has finished ---- */

void memcalc_wait_for_all(void); /* the host waits for everything that it has given to the GPU */

/* ---- memory.c: how much is allocated ---- */

int memcalc_device(void); /* this thread's device */
void memcalc_use(int device);
void memcalc_begin_context(int device);
int memcalc_has_context(int device);
int memcalc_take(uint64_t bytes, int device); /* 0, or OUT_OF_MEMORY */
void memcalc_give_back(uint64_t bytes, int device);
uint64_t memcalc_used(int device);
uint64_t memcalc_free(int device);
int memcalc_is_pinned(const void *at);
int cudaMalloc(void **at, size_t bytes);
int cudaFree(void *at);

/* ---- copies.c ---- */
int memcalc_copy(void *to, const void *from, size_t bytes);

/* ---- promises.c: what other ranks send ---- */
void memcalc_drop_promises(const void *at, size_t bytes);
void memcalc_keep_promises(const void *at, size_t bytes, int asked);
void memcalc_copy_promises(void *to, const void *from, size_t bytes);

/* ---- streams.c ---- */
int memcalc_capturing(const void *stream);
void memcalc_spoil_capture(const void *stream);

/* ---- device.c ---- */
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetName(char *name, int length, int device);

/* ---- python.c ---- */
void memcalc_wait_at_exit(void);

/* ---- processes.c: what other processes over this driver take, where they share a file ---- */
struct taken {
  int pid;
  uint64_t bytes;
};
void memcalc_publish(int device);
int memcalc_processes(int machine_index, struct taken *found, int most);
