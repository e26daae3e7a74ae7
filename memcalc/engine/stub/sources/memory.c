/* Allocations: how much of each simulated GPU is taken, and memory of the host that CUDA knows. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stub.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used[MOST_DEVICES];
static int contexts[MOST_DEVICES];
static __thread int current;

int memcalc_device(void) { return current; }
void memcalc_use(int device) { current = device; }

/* From here on the process holds what it takes outside of allocations. */
void memcalc_begin_context(int device) {
  if (__atomic_load_n(&contexts[device], __ATOMIC_RELAXED)) return;
  if (__atomic_exchange_n(&contexts[device], 1, __ATOMIC_RELAXED)) return;
  memcalc_wait_at_exit();
  memcalc_publish(device);
}
int memcalc_has_context(int device) { return __atomic_load_n(&contexts[device], __ATOMIC_RELAXED); }

/* What this process takes of a GPU. */
uint64_t memcalc_used(int device) {
  return used[device] + (memcalc_has_context(device) ? SET->outside : 0);
}
uint64_t memcalc_free(int device) {
  uint64_t taken = memcalc_used(device);
  return taken < SET->memory ? SET->memory - taken : 0;
}

int memcalc_take(uint64_t bytes, int device) {
  memcalc_map();
  memcalc_begin_context(device);
  pthread_mutex_lock(&lock);
  int full = bytes > SET->room || used[device] > SET->room - bytes;
  if (!full) used[device] += bytes;
  pthread_mutex_unlock(&lock);
  if (full) return OUT_OF_MEMORY;
  memcalc_publish(device);
  return 0;
}

void memcalc_give_back(uint64_t bytes, int device) {
  pthread_mutex_lock(&lock);
  used[device] -= bytes;
  pthread_mutex_unlock(&lock);
  memcalc_publish(device);
}

/* ---- what is known by its address ---- */

enum kind { ALLOCATED, MAPPED, PINNED, MANAGED, SHARED };
struct piece {
  char *at;
  uint64_t bytes;
  enum kind kind;
  int owned;  /* this library took it from the host */
  void *from; /* physical memory behind a mapping */
  struct piece *next;
};
#define BUCKETS (1 << 12)
static struct piece *pieces[BUCKETS];
static struct piece *pinned; /* found by any address within */

static struct piece **list_of(const void *at, enum kind kind) {
  return kind == PINNED ? &pinned : &pieces[(uint64_t)at / GRANULE % BUCKETS];
}

static int know(void *at, uint64_t bytes, enum kind kind, void *from, int owned) {
  struct piece *made = malloc(sizeof *made), **list = list_of(at, kind);
  if (!made) return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  *made = (struct piece){at, bytes, kind, owned, from, *list};
  *list = made;
  pthread_mutex_unlock(&lock);
  return 0;
}

/* Take it out, for the caller to free; NULL: nothing is known there. */
static struct piece *forget(const void *at, enum kind kind) {
  pthread_mutex_lock(&lock);
  struct piece **link = list_of(at, kind);
  while (*link && ((*link)->at != at || (*link)->kind != kind)) link = &(*link)->next;
  struct piece *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  return found;
}

/* ---- memory of a GPU ---- */

EXPORT int cudaMalloc(void **at, size_t bytes) {
  uint64_t taken = (bytes + GRANULE - 1) / GRANULE * GRANULE;
  int device = memcalc_device(), error = memcalc_take(taken, device);
  *at = NULL;
  if (error) return error;
  *at = (void *)memcalc_reserve(taken, device);
  if (*at && !know(*at, taken, ALLOCATED, NULL, 1)) return 0;
  memcalc_give_back(taken, device);
  return OUT_OF_MEMORY;
}

EXPORT int cudaFree(void *at) {
  memcalc_wait_for_all();
  struct piece *found = forget(at, ALLOCATED);
  if (found) {
    memcalc_unreserve((uint64_t)at, found->bytes);
    memcalc_give_back(found->bytes, memcalc_device_of(at));
  } else if ((found = forget(at, MANAGED))) {
    munmap(at, found->bytes);
  }
  free(found);
  return 0;
}

EXPORT int cudaMallocAsync(void **at, size_t bytes, void *stream) { return cudaMalloc(at, bytes); }
EXPORT int cudaMallocFromPoolAsync(void **at, size_t bytes, void *pool, void *stream) {
  return cudaMalloc(at, bytes);
}
EXPORT int cudaFreeAsync(void *at, void *stream) { return cudaFree(at); }
EXPORT int cuMemAlloc_v2(void **at, size_t bytes) { return cudaMalloc(at, bytes); }
EXPORT int cuMemAlloc(void **at, size_t bytes) { return cudaMalloc(at, bytes); }
EXPORT int cuMemAllocAsync(void **at, size_t bytes, void *stream) { return cudaMalloc(at, bytes); }
EXPORT int cuMemFree_v2(void *at) { return cudaFree(at); }
EXPORT int cuMemFree(void *at) { return cudaFree(at); }
EXPORT int cuMemFreeAsync(void *at, void *stream) { return cudaFree(at); }

EXPORT int cudaMemGetInfo(size_t *left, size_t *all) {
  memcalc_begin_context(current);
  *left = memcalc_free(current);
  *all = SET->memory;
  return 0;
}
EXPORT int cuMemGetInfo_v2(size_t *left, size_t *all) { return cudaMemGetInfo(left, all); }
EXPORT int cuMemGetInfo(size_t *left, size_t *all) { return cudaMemGetInfo(left, all); }

MAKES_HANDLE(cudaDeviceGetDefaultMemPool, int device)
MAKES_HANDLE(cudaDeviceGetMemPool, int device)
MAKES_HANDLE(cudaMemPoolCreate, const void *properties)
/* Attributes 5 to 8: bytes reserved and used, each now and at most. */
EXPORT int cudaMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
  if (attribute < 5) *(int *)value = 1;
  else *value = used[current];
  return 0;
}

/* ---- virtual memory management, which expandable segments use ---- */

struct physical {
  uint64_t bytes;
  int device, elsewhere, references; /* elsewhere: on the host, or counted in the process it is from */
};

static void let_go(struct physical *piece) {
  if (__atomic_sub_fetch(&piece->references, 1, __ATOMIC_RELAXED)) return;
  if (!piece->elsewhere) memcalc_give_back(piece->bytes, piece->device);
  free(piece);
}

/* CUmemAllocationProp begins with four ints: kind, kinds of handle, kind of place, its number. */
EXPORT int cuMemCreate(struct physical **made, size_t bytes, const int *properties, uint64_t flags) {
  int on_host = properties && properties[2] > 1, device = properties ? properties[3] : current;
  if (device < 0 || device >= SET->devices) device = current;
  int error = on_host ? 0 : memcalc_take(bytes, device);
  if (error) return error;
  *made = malloc(sizeof **made);
  if (!*made) return OUT_OF_MEMORY;
  **made = (struct physical){bytes, device, on_host, 1};
  return 0;
}
EXPORT int cuMemRelease(struct physical *piece) {
  let_go(piece);
  return 0;
}
EXPORT int cuMemMap(char *at, size_t bytes, size_t offset, struct physical *piece, uint64_t flags) {
  int error = know(at, bytes, MAPPED, piece, 0);
  if (!error) __atomic_add_fetch(&piece->references, 1, __ATOMIC_RELAXED);
  return error;
}
EXPORT int cuMemUnmap(char *at, size_t bytes) {
  memcalc_zero(at, bytes);
  for (char *end = at + bytes; at < end;) {
    struct piece *found = forget(at, MAPPED);
    if (!found) return INVALID_VALUE;
    at += found->bytes;
    let_go(found->from);
    free(found);
  }
  return 0;
}
EXPORT int cuMemAddressReserve(uint64_t *at, size_t bytes, size_t alignment, uint64_t near, uint64_t flags) {
  memcalc_map();
  *at = memcalc_reserve(bytes, current);
  return *at ? 0 : OUT_OF_MEMORY;
}
EXPORT int cuMemAddressFree(uint64_t at, size_t bytes) {
  memcalc_unreserve(at, bytes);
  return 0;
}
EXPORT int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) {
  *bytes = GRANULE;
  return 0;
}

/* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; a fabric joins machines, and there is none. */
enum { DESCRIPTOR = 1 };
EXPORT int cuMemExportToShareableHandle(int *made, const struct physical *piece, int kind, uint64_t flags) {
  if (kind != DESCRIPTOR) return INVALID_VALUE;
  *made = memfd_create("memcalc", MFD_CLOEXEC);
  if (*made < 0) return OUT_OF_MEMORY;
  return write(*made, &piece->bytes, sizeof piece->bytes) == sizeof piece->bytes ? 0 : INVALID_VALUE;
}
EXPORT int cuMemImportFromShareableHandle(struct physical **made, void *from, int kind) {
  uint64_t bytes;
  if (kind != DESCRIPTOR) return INVALID_VALUE;
  if (pread((int)(uintptr_t)from, &bytes, sizeof bytes, 0) != sizeof bytes) return INVALID_VALUE;
  *made = malloc(sizeof **made);
  if (!*made) return OUT_OF_MEMORY;
  **made = (struct physical){bytes, current, 1, 1};
  return 0;
}

/* ---- memory of the host ---- */

static void *host_pages(size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? NULL : at;
}

EXPORT int cudaMallocManaged(void **at, size_t bytes, unsigned flags) {
  bytes = bytes ? bytes : 1;
  *at = host_pages(bytes);
  return *at ? know(*at, bytes, MANAGED, NULL, 1) : OUT_OF_MEMORY;
}

int memcalc_is_pinned(const void *at) {
  pthread_mutex_lock(&lock);
  struct piece *found = pinned;
  while (found && (uint64_t)((char *)at - found->at) >= found->bytes) found = found->next;
  pthread_mutex_unlock(&lock);
  return found != NULL;
}

EXPORT int cudaHostAlloc(void **at, size_t bytes, unsigned flags) {
  bytes = bytes ? bytes : 1;
  *at = host_pages(bytes);
  return *at ? know(*at, bytes, PINNED, NULL, 1) : OUT_OF_MEMORY;
}
EXPORT int cudaMallocHost(void **at, size_t bytes) { return cudaHostAlloc(at, bytes, 0); }
EXPORT int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { return cudaHostAlloc(at, bytes, flags); }
EXPORT int cuMemAllocHost_v2(void **at, size_t bytes) { return cudaHostAlloc(at, bytes, 0); }
EXPORT int cudaHostRegister(void *at, size_t bytes, unsigned flags) { return know(at, bytes, PINNED, NULL, 0); }
EXPORT int cudaHostUnregister(void *at) {
  free(forget(at, PINNED));
  return 0;
}
EXPORT int cudaFreeHost(void *at) {
  struct piece *found = forget(at, PINNED);
  if (found && found->owned) munmap(at, found->bytes);
  free(found);
  return 0;
}
EXPORT int cuMemFreeHost(void *at) { return cudaFreeHost(at); }
EXPORT int cudaHostGetDevicePointer(void **seen, void *at, unsigned flags) {
  *seen = at;
  return 0;
}

/* ---- memory of another process ---- */

/* cudaIpcMemHandle_t and cudaIpcEventHandle_t have 64 bytes. */
struct ipc_handle {
  uint64_t bytes;
  int device;
  char rest[64 - sizeof(uint64_t) - sizeof(int)];
};

EXPORT int cudaIpcGetMemHandle(struct ipc_handle *made, void *at) {
  pthread_mutex_lock(&lock);
  struct piece *found = *list_of(at, ALLOCATED);
  while (found && (found->at != at || found->kind != ALLOCATED)) found = found->next;
  *made = (struct ipc_handle){found ? found->bytes : 0, on_device(at) ? memcalc_device_of(at) : 0};
  pthread_mutex_unlock(&lock);
  return found ? 0 : INVALID_VALUE;
}
/* Addresses of its own, behind which are zeros; the memory counts where it was allocated. */
EXPORT int cudaIpcOpenMemHandle(void **at, struct ipc_handle of, unsigned flags) {
  if (!of.bytes) return INVALID_VALUE;
  memcalc_map();
  memcalc_begin_context(current);
  *at = (void *)memcalc_reserve(of.bytes, of.device);
  return *at ? know(*at, of.bytes, SHARED, NULL, 0) : OUT_OF_MEMORY;
}
EXPORT int cudaIpcCloseMemHandle(void *at) {
  struct piece *found = forget(at, SHARED);
  if (found) memcalc_unreserve((uint64_t)at, found->bytes);
  free(found);
  return found ? 0 : INVALID_VALUE;
}
EXPORT int cuIpcGetMemHandle(struct ipc_handle *made, void *at) { return cudaIpcGetMemHandle(made, at); }
EXPORT int cuIpcOpenMemHandle(void **at, struct ipc_handle of, unsigned flags) {
  return cudaIpcOpenMemHandle(at, of, flags);
}
EXPORT int cuIpcOpenMemHandle_v2(void **at, struct ipc_handle of, unsigned flags) {
  return cudaIpcOpenMemHandle(at, of, flags);
}
EXPORT int cuIpcCloseMemHandle(void *at) { return cudaIpcCloseMemHandle(at); }
/* Work is done at once, so an event of another process has happened. */
MAKES_HANDLE(cudaIpcOpenEventHandle, struct ipc_handle of)
MAKES_HANDLE(cuIpcOpenEventHandle, struct ipc_handle of)

/* ---- what an address is ---- */

enum { UNREGISTERED, HOST, DEVICE, MANAGED_MEMORY };
static int kind_of(const void *at) { return on_device(at) ? DEVICE : memcalc_is_pinned(at) ? HOST : UNREGISTERED; }

/* cudaPointerAttributes: 24 bytes up to CUDA 12, 88 from 13 on, which begin alike. */
EXPORT int cudaPointerGetAttributes(char *found, const void *at) {
  struct { int kind, device; const void *on_device, *on_host; } begin = {
    kind_of(at), on_device(at) ? memcalc_device_of(at) : current, on_device(at) ? at : NULL, on_device(at) ? NULL : at};
  memset(found, 0, SET->cuda >= 13000 ? 88 : 24);
  memcpy(found, &begin, sizeof begin);
  return 0;
}
/* Where the memory around an address begins, and its bytes. */
EXPORT int cuMemGetAddressRange_v2(void **begin, size_t *bytes, const char *at) {
  pthread_mutex_lock(&lock);
  struct piece *found = NULL;
  for (int number = 0; number < BUCKETS && !found; number++)
    for (found = pieces[number]; found && !(found->at <= at && at < found->at + found->bytes);) found = found->next;
  if (found && begin) *begin = found->at;
  if (found && bytes) *bytes = found->bytes;
  pthread_mutex_unlock(&lock);
  return found ? 0 : INVALID_VALUE;
}
EXPORT int cuMemGetAddressRange(void **begin, size_t *bytes, const char *at) {
  return cuMemGetAddressRange_v2(begin, bytes, at);
}
/* CU_POINTER_ATTRIBUTE_: MEMORY_TYPE 2, DEVICE_POINTER 3, HOST_POINTER 4, DEVICE_ORDINAL 9, RANGE_START_ADDR 11,
   RANGE_SIZE 12. */
EXPORT int cuPointerGetAttribute(void *value, int attribute, const void *at) {
  int kind = kind_of(at);
  if (attribute == 3 || attribute == 4) *(const void **)value = at;
  else if (attribute == 2 && kind) *(int *)value = kind;
  else if (attribute == 9) *(int *)value = on_device(at) ? memcalc_device_of(at) : current;
  else if (attribute == 11) return cuMemGetAddressRange_v2(value, NULL, at);
  else if (attribute == 12) return cuMemGetAddressRange_v2(NULL, value, at);
  else return INVALID_VALUE;
  return 0;
}

static void prepare(void) { pthread_mutex_lock(&lock); }
static void resume(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, resume, resume); }
