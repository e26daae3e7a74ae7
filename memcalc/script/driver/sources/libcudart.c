/* The runtime: memory is counted, copies to the device go nowhere, and copies from it are zeros,
   or what was announced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <driver_types.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"
#include "kernel_code.h"

int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetName(char *name, int length, int device);

/* ---------------------------------------------------------------- memory */

struct piece {
  void *at;
  uint64_t bytes;
  struct piece *next;
};
static struct piece *pieces[1 << 12];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct piece **bucket(const void *at) {
  return &pieces[((uint64_t)at / PAGE) % (sizeof pieces / sizeof *pieces)];
}

EXPORT int cudaMalloc(void **at, size_t bytes) {
  uint64_t taken = (bytes + PAGE - 1) / PAGE * PAGE;
  int error = memcalc_take(taken);
  *at = NULL;
  if (error) return error;
  struct piece *made = malloc(sizeof *made);
  *at = made->at = (void *)memcalc_address(taken);
  made->bytes = taken;
  pthread_mutex_lock(&lock);
  made->next = *bucket(*at);
  *bucket(*at) = made;
  pthread_mutex_unlock(&lock);
  return 0;
}

EXPORT int cudaFree(void *at) {
  pthread_mutex_lock(&lock);
  struct piece **link = bucket(at);
  while (*link && (*link)->at != at) link = &(*link)->next;
  struct piece *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  if (found) memcalc_give_back(found->bytes);
  free(found);
  return 0;
}

EXPORT int cudaMallocAsync(void **at, size_t bytes, void *stream) { return cudaMalloc(at, bytes); }
EXPORT int cudaFreeAsync(void *at, void *stream) { return cudaFree(at); }

EXPORT int cudaMallocManaged(void **at, size_t bytes, unsigned flags) {
  /* Pages of the host, there when they are touched. */
  *at = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *at == MAP_FAILED ? 2 : 0;
}

/* Memory of the host that is told apart when somebody asks: pinned. */
static struct piece *pinned;

static void pin(void *at, size_t bytes) {
  struct piece *made = malloc(sizeof *made);
  made->at = at;
  made->bytes = bytes;
  pthread_mutex_lock(&lock);
  made->next = pinned;
  pinned = made;
  pthread_mutex_unlock(&lock);
}

static void unpin(void *at) {
  pthread_mutex_lock(&lock);
  struct piece **link = &pinned;
  while (*link && (*link)->at != at) link = &(*link)->next;
  struct piece *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  free(found);
}

static int is_pinned(const void *at) {
  pthread_mutex_lock(&lock);
  struct piece *found = pinned;
  while (found && ((char *)at < (char *)found->at || (char *)at >= (char *)found->at + found->bytes))
    found = found->next;
  pthread_mutex_unlock(&lock);
  return found != NULL;
}

EXPORT int cudaHostAlloc(void **at, size_t bytes, unsigned flags) {
  *at = malloc(bytes ? bytes : 1);
  if (!*at) return 2;
  pin(*at, bytes ? bytes : 1);
  return 0;
}
EXPORT int cudaMallocHost(void **at, size_t bytes) { return cudaHostAlloc(at, bytes, 0); }
EXPORT int cudaFreeHost(void *at) {
  unpin(at);
  free(at);
  return 0;
}
EXPORT int cudaHostRegister(void *at, size_t bytes, unsigned flags) {
  pin(at, bytes);
  return 0;
}
EXPORT int cudaHostUnregister(void *at) {
  unpin(at);
  return 0;
}

EXPORT int cudaMemGetInfo(size_t *left, size_t *all) {
  *left = memcalc_free();
  *all = memcalc_total();
  return 0;
}

/* Numbers that the next readers of so many bytes find, first come first served. */
static __thread struct {
  size_t bytes;
  long long number;
} announced[16];
static __thread int announcements;

EXPORT void memcalc_answer(size_t bytes, long long number) {
  if (!bytes) announcements = 0;
  else if (announcements < 16) {
    announced[announcements].bytes = bytes;
    announced[announcements++].number = number;
  }
}

static void read_back(void *to, size_t bytes) {
  memset(to, 0, bytes);
  int found = 0;
  while (found < announcements && announced[found].bytes != bytes) found++;
  if (found == announcements || bytes > sizeof announced->number) return;
  memcpy(to, &announced[found].number, bytes);
  memmove(announced + found, announced + found + 1, (--announcements - found) * sizeof *announced);
}

static int copy(void *to, const void *from, size_t bytes) {
  if (on_device(to)) return 0;
  if (on_device(from)) read_back(to, bytes);
  else memmove(to, from, bytes);
  return 0;
}
EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  return copy(to, from, bytes);
}
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return copy(to, from, bytes);
}

EXPORT int cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *at) {
  memset(found, 0, sizeof *found);
  found->type = on_device(at)   ? cudaMemoryTypeDevice
                : is_pinned(at) ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered;
  found->devicePointer = on_device(at) ? (void *)at : NULL;
  found->hostPointer = on_device(at) ? NULL : (void *)at;
  return 0;
}
EXPORT int cudaGetSymbolAddress(void **at, const void *symbol) {
  *at = (void *)(DEVICE_BASE + DEVICE_SPAN / 2);
  return 0;
}

/* ---------------------------------------------------------------- the device */

static __thread int current;

EXPORT int cudaGetDeviceCount(int *count) {
  *count = (int)setting("MEMCALC_DRIVER_DEVICES", 1);
  return 0;
}
EXPORT int cudaGetDevice(int *device) {
  *device = current;
  return 0;
}
EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= setting("MEMCALC_DRIVER_DEVICES", 1)) return cudaErrorInvalidDevice;
  current = device;
  return 0;
}
EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return cuDeviceGetAttribute(value, attribute, device);
}

static int of_device(int attribute) {
  int value;
  cuDeviceGetAttribute(&value, attribute, 0);
  return value;
}

EXPORT int cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  memset(found, 0, sizeof *found);
  cuDeviceGetName(found->name, sizeof found->name, device);
  found->totalGlobalMem = memcalc_total();
  found->major = capability() / 10;
  found->minor = capability() % 10;
  found->multiProcessorCount = of_device(cudaDevAttrMultiProcessorCount);
  found->maxThreadsPerMultiProcessor = of_device(cudaDevAttrMaxThreadsPerMultiProcessor);
  found->sharedMemPerMultiprocessor = of_device(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  found->sharedMemPerBlockOptin = of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  found->sharedMemPerBlock = of_device(cudaDevAttrMaxSharedMemoryPerBlock);
  found->l2CacheSize = of_device(cudaDevAttrL2CacheSize);
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->warpSize = found->maxBlocksPerMultiProcessor = 32;
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 0x7fffffff;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->totalConstMem = 65536;
  found->textureAlignment = 512;
  found->texturePitchAlignment = 32;
  found->unifiedAddressing = found->managedMemory = found->concurrentKernels = 1;
  found->cooperativeLaunch = found->streamPrioritiesSupported = 1;
  return 0;
}
EXPORT int cudaGetDeviceProperties_v2(struct cudaDeviceProp *found, int device) {
  return cudaGetDeviceProperties(found, device);
}
EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, "0000:00:%02x.0", device);
  return 0;
}
EXPORT int cudaDeviceCanAccessPeer(int *can, int one, int other) {
  *can = 1;
  return 0;
}
EXPORT int cudaDriverGetVersion(int *version) {
  *version = (int)setting("MEMCALC_DRIVER_CUDA", 13000);
  return 0;
}
EXPORT int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
EXPORT const char *cudaGetErrorString(int error) {
  return error == 2 ? "out of memory" : "an error of the stand-in driver";
}
EXPORT const char *cudaGetErrorName(int error) {
  return error == 2 ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

/* ---------------------------------------------------------------- streams and kernels */

#define MAKES(name, ...) \
  EXPORT int name(void **made, ##__VA_ARGS__) { \
    *made = handle(); \
    return 0; \
  }
MAKES(cudaStreamCreate)
MAKES(cudaStreamCreateWithFlags, unsigned flags)
MAKES(cudaStreamCreateWithPriority, unsigned flags, int priority)
MAKES(cudaEventCreate)
MAKES(cudaEventCreateWithFlags, unsigned flags)
MAKES(cudaLibraryGetKernel, void *library, const char *name)

EXPORT int cudaStreamGetPriority(void *stream, int *priority) {
  *priority = 0;
  return 0;
}
EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return 0;
}
EXPORT int cudaEventElapsedTime(float *milliseconds, void *begin, void *end) {
  *milliseconds = 1;
  return 0;
}

/* One capture at a time: the stream that began it, and those that wait for what it has recorded. */
#define MOST_CAPTURED 64
static struct { void *handle; int is_event; } captured[MOST_CAPTURED];
static int number_captured;
static unsigned long long capture_id;

static int is_captured(void *one, int is_event) {
  for (int i = 0; i < number_captured; i++)
    if (captured[i].handle == one && captured[i].is_event == is_event) return 1;
  return 0;
}
static void capture(void *one, int is_event) {
  if (is_captured(one, is_event) || number_captured == MOST_CAPTURED) return;
  captured[number_captured].handle = one;
  captured[number_captured++].is_event = is_event;
}
EXPORT int cudaStreamBeginCapture(void *stream, int mode) {
  number_captured = 0;
  capture_id++;
  capture(stream, 0);
  return 0;
}
EXPORT int cudaStreamEndCapture(void *stream, void **graph) {
  number_captured = 0;
  *graph = handle();
  return 0;
}
EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  if (is_captured(stream, 0)) capture(event, 1);
  return 0;
}
EXPORT int cudaEventRecord(void *event, void *stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  if (is_captured(event, 1)) capture(stream, 0);
  return 0;
}
EXPORT int cudaStreamIsCapturing(void *stream, int *status) {
  *status = is_captured(stream, 0); /* active: 1 */
  return 0;
}
EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id) {
  if (id) *id = capture_id;
  return cudaStreamIsCapturing(stream, status);
}
EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id) {
  return cudaStreamGetCaptureInfo(stream, status, id);
}
EXPORT int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id) {
  return cudaStreamGetCaptureInfo(stream, status, id);
}
EXPORT int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
  *count = 1; /* an empty graph would be a mistake of the program */
  return 0;
}
EXPORT int cudaGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
  *made = handle();
  return 0;
}
EXPORT int cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->ptxVersion = found->binaryVersion = code_of(function);
  found->maxDynamicSharedSizeBytes = of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return 0;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                         int threads, size_t shared) {
  *blocks = (int)setting("MEMCALC_DRIVER_OCCUPANCY", 2);
  return 0;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                  int threads, size_t shared,
                                                                  unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
EXPORT int __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return 0;
}

static int nothing(void) { return 0; }

EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                            unsigned long long flags, int *status) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = (void *)nothing;
  if (status) *status = 0;
  return 0;
}
EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                   int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
