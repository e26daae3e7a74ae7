/* The driver: one device whose memory is a number, and addresses behind which there is nothing. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used, next = DEVICE_BASE;

EXPORT uint64_t memcalc_total(void) {
  return (uint64_t)setting("MEMCALC_DRIVER_MEMORY", 80ll << 30);
}

/* What allocations take. */
EXPORT uint64_t memcalc_used(void) { return used; }

/* What the process holds beside allocations is not free either. */
EXPORT uint64_t memcalc_free(void) {
  uint64_t taken = used + (uint64_t)setting("MEMCALC_DRIVER_OUTSIDE", 0);
  return taken < memcalc_total() ? memcalc_total() - taken : 0;
}

/* 0, or CUDA_ERROR_OUT_OF_MEMORY. */
EXPORT int memcalc_take(uint64_t bytes) {
  pthread_mutex_lock(&lock);
  int full = used + bytes > (uint64_t)setting("MEMCALC_DRIVER_ROOM", 80ll << 30);
  if (!full) used += bytes;
  pthread_mutex_unlock(&lock);
  return full ? 2 : 0;
}

EXPORT void memcalc_give_back(uint64_t bytes) {
  pthread_mutex_lock(&lock);
  used -= bytes;
  pthread_mutex_unlock(&lock);
}

/* Addresses are never used twice: 16 TiB of them last longer than any run. */
EXPORT uint64_t memcalc_address(uint64_t bytes) {
  return __atomic_fetch_add(&next, (bytes + PAGE - 1) / PAGE * PAGE, __ATOMIC_RELAXED);
}

/* Physical memory of the virtual memory functions (expandable segments). */
struct physical {
  uint64_t bytes;
};

EXPORT int cuMemCreate(uint64_t *made, size_t bytes, const void *properties, uint64_t flags) {
  int error = memcalc_take(bytes);
  if (error) return error;
  struct physical *piece = malloc(sizeof *piece);
  piece->bytes = bytes;
  *made = (uint64_t)piece;
  return 0;
}

EXPORT int cuMemRelease(uint64_t piece) {
  memcalc_give_back(((struct physical *)piece)->bytes);
  free((void *)piece);
  return 0;
}

EXPORT int cuMemAddressReserve(uint64_t *at, size_t bytes, size_t alignment, uint64_t near,
                               uint64_t flags) {
  *at = memcalc_address(bytes);
  return 0;
}

EXPORT int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) {
  *bytes = PAGE;
  return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *left, size_t *all) {
  *left = memcalc_free();
  *all = memcalc_total();
  return 0;
}

EXPORT int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
  bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  int error = memcalc_take(bytes);
  if (!error) *at = memcalc_address(bytes);
  return error;
}

EXPORT int cuInit(unsigned flags) { return 0; }
EXPORT int cuDriverGetVersion(int *version) {
  *version = (int)setting("MEMCALC_DRIVER_CUDA", 13000);
  return 0;
}
EXPORT int cuDeviceGetCount(int *count) {
  *count = (int)setting("MEMCALC_DRIVER_DEVICES", 1);
  return 0;
}
EXPORT int cuDeviceGet(int *device, int index) {
  *device = index;
  return 0;
}
EXPORT int cuDeviceGetName(char *name, int length, int device) {
  const char *given = getenv("MEMCALC_DRIVER_NAME");
  strncpy(name, given ? given : "simulated GPU", length - 1);
  name[length - 1] = 0;
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = memcalc_total();
  return 0;
}
EXPORT int cuCtxGetCurrent(void **context) {
  *context = (void *)0x10;
  return 0;
}
EXPORT int cuCtxGetDevice(int *device) {
  *device = 0;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { return cuCtxGetCurrent(context); }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return 0;
}
EXPORT int cuGetErrorString(int error, const char **text) {
  *text = error == 2 ? "out of memory" : "an error of the stand-in driver";
  return 0;
}
EXPORT int cuGetErrorName(int error, const char **text) {
  *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
EXPORT int cuModuleLoadData(void **module, const void *image) {
  *module = handle();
  return 0;
}
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = handle();
  return 0;
}
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : 0; /* threads a block; no registers spilled, no shared memory */
  return 0;
}
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads,
                                                       size_t shared) {
  *blocks = (int)setting("MEMCALC_DRIVER_OCCUPANCY", 2);
  return 0;
}

/* Numbers as in CUdevice_attribute (cuda.h, 12 and 13), which cudaDeviceAttr repeats. */
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int block = (int)setting("MEMCALC_DRIVER_SHARED_OF_BLOCK", 166912);
  switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;              /* threads a block, and along x, y */
    case 4: *value = 64; break;                                /* along z */
    case 5: *value = 0x7fffffff; break;                        /* grid along x */
    case 6: case 7: *value = 65535; break;                     /* along y, z */
    case 8: *value = 49152; break;                             /* shared memory a block */
    case 10: *value = 32; break;                               /* warp */
    case 12: case 82: *value = 65536; break;                   /* registers a block, a processor */
    case 16: *value = (int)setting("MEMCALC_DRIVER_PROCESSORS", 108); break;
    case 38: *value = (int)setting("MEMCALC_DRIVER_L2", 40ll << 20); break;
    case 39: *value = (int)setting("MEMCALC_DRIVER_THREADS", 2048); break;
    case 41: case 78: case 95: case 102: *value = 1; break;    /* one address space, priorities,
                                                                  cooperation, virtual memory */
    case 75: *value = capability() / 10; break;
    case 76: *value = capability() % 10; break;
    case 81: *value = (int)setting("MEMCALC_DRIVER_SHARED", 167936); break;
    case 97: *value = block; break;
    case 106: *value = 32; break;                              /* blocks a processor */
    case 115: *value = 1; break;                               /* memory pools */
    default: *value = 0;
  }
  return 0;
}
