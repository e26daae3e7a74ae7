/* Streams and events, how far the GPU is behind the host, and capture into graphs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "stub.h"

MAKES_HANDLE(cudaStreamCreate)
MAKES_HANDLE(cudaStreamCreateWithFlags, unsigned flags)
MAKES_HANDLE(cudaStreamCreateWithPriority, unsigned flags, int priority)
MAKES_HANDLE(cudaEventCreate)
MAKES_HANDLE(cudaEventCreateWithFlags, unsigned flags)
MAKES_HANDLE(cuStreamCreate, unsigned flags)
MAKES_HANDLE(cuStreamCreateWithPriority, unsigned flags, int priority)
MAKES_HANDLE(cuEventCreate, unsigned flags)

EXPORT int cudaStreamGetPriority(void *stream, int *priority) {
  *priority = 0;
  return 0;
}
EXPORT int cudaStreamGetFlags(void *stream, unsigned *flags) {
  *flags = stream ? 1 : 0; /* those of PyTorch do not wait for the default stream */
  return 0;
}
EXPORT int cudaStreamGetDevice(void *stream, int *device) {
  *device = memcalc_device();
  return 0;
}
EXPORT int cudaStreamGetId(void *stream, unsigned long long *id) {
  *id = (uint64_t)stream;
  return 0;
}
EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return 0;
}
/* No kernel runs, so no time can be told: choices by time take the first. */
EXPORT int cudaEventElapsedTime(float *milliseconds, void *begin, void *end) {
  *milliseconds = 1;
  return 0;
}
EXPORT int cudaEventElapsedTime_v2(float *milliseconds, void *begin, void *end) {
  return cudaEventElapsedTime(milliseconds, begin, end);
}
EXPORT int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
  return cudaEventElapsedTime(milliseconds, begin, end);
}

/* ---- capture: the stream that began one, and all that wait for what it has recorded ---- */

enum { NONE, ACTIVE, INVALIDATED }; /* cudaStreamCaptureStatus */
struct captured {
  const void *handle;
  int is_event;
  unsigned long long id;
  void *graph;
  int status;
};
#define MOST_CAPTURED 256
static struct captured captured[MOST_CAPTURED];
static int number_captured;
static unsigned long long last_id;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct captured *find(const void *handle, int is_event) {
  for (int i = 0; i < number_captured; i++)
    if (captured[i].handle == handle && captured[i].is_event == is_event) return &captured[i];
  return NULL;
}
/* It takes part in the capture of another. */
static void join(const void *handle, int is_event, const struct captured *of) {
  struct captured *place = find(handle, is_event);
  if (!place && number_captured == MOST_CAPTURED) return;
  struct captured joined = *of;
  joined.handle = handle;
  joined.is_event = is_event;
  *(place ? place : &captured[number_captured++]) = joined;
}
static void leave(const void *handle, int is_event) {
  struct captured *place = find(handle, is_event);
  if (place) *place = captured[--number_captured];
}

/* Outside of captures, nearly always, no lock is taken. */
static int any(void) { return __atomic_load_n(&number_captured, __ATOMIC_RELAXED); }

static struct captured state(const void *stream) {
  struct captured found = {0};
  if (!any()) return found;
  pthread_mutex_lock(&lock);
  struct captured *place = find(stream, 0);
  if (place) found = *place;
  pthread_mutex_unlock(&lock);
  return found;
}
int memcalc_capturing(const void *stream) { return state(stream).status == ACTIVE; }

static void spoil(unsigned long long id) {
  for (int i = 0; i < number_captured; i++)
    if (!id || captured[i].id == id) captured[i].status = INVALIDATED;
}
void memcalc_spoil_capture(const void *stream) {
  unsigned long long id = state(stream).id;
  pthread_mutex_lock(&lock);
  spoil(id);
  pthread_mutex_unlock(&lock);
}

EXPORT int cudaStreamBeginCapture(void *stream, int mode) {
  pthread_mutex_lock(&lock);
  struct captured begun = {.id = ++last_id, .graph = new_handle(), .status = ACTIVE};
  join(stream, 0, &begun);
  pthread_mutex_unlock(&lock);
  return 0;
}
EXPORT int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                         size_t count, int mode) {
  pthread_mutex_lock(&lock);
  struct captured begun = {.id = ++last_id, .graph = graph, .status = ACTIVE};
  join(stream, 0, &begun);
  pthread_mutex_unlock(&lock);
  return 0;
}
EXPORT int cudaStreamEndCapture(void *stream, void **graph) {
  struct captured ended = state(stream);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < number_captured;)
    if (captured[i].id == ended.id) captured[i] = captured[--number_captured];
    else i++;
  pthread_mutex_unlock(&lock);
  *graph = ended.status == ACTIVE ? ended.graph : NULL;
  return ended.status == ACTIVE ? 0 : CAPTURE_INVALIDATED;
}

/* ---- a GPU that is behind the host: it does all work in one order, and has done what the host waited for ----

   So it is wherever training keeps a GPU busy. A block that another stream used is not free before the host waits for
   work that was queued after that use, or before a full queue makes it wait. */

enum {
  QUEUE = 1000,     /* kernels, about: measured in stackoverflow.com/questions/53970187 */
  EVENTS = 1 << 16, /* more than PyTorch ever has at once; one whose place another took has finished */
};
static struct recorded { const void *event; uint64_t number, launched; } recorded[EVENTS];
static uint64_t last_recorded, finished, launched;

#define LAUNCHES(name) \
  EXPORT int name(void) { \
    __atomic_add_fetch(&launched, 1, __ATOMIC_RELAXED); \
    return 0; \
  }
LAUNCHES(cudaLaunchKernel)
LAUNCHES(cudaLaunchKernelExC)
LAUNCHES(__cudaLaunchKernel)
LAUNCHES(cuLaunchKernel)
LAUNCHES(cuLaunchKernelEx)
LAUNCHES(cublasLtMatmul)
LAUNCHES(cublasGemmEx)
LAUNCHES(cublasGemmStridedBatchedEx)
LAUNCHES(cublasSgemm_v2)
LAUNCHES(cublasSgemmStridedBatched)

static int keeps_up; /* 1: all work has finished at once */
/* Let all work finish at once; a replay knows itself which streams are behind. */
EXPORT void memcalc_stub_keep_up(void) { keeps_up = 1; }

static struct recorded *place_of(const void *event) { return &recorded[((uint64_t)event >> 6) % EVENTS]; }
static void record(const void *event) {
  uint64_t number = __atomic_add_fetch(&last_recorded, 1, __ATOMIC_RELAXED);
  *place_of(event) = (struct recorded){event, number, __atomic_load_n(&launched, __ATOMIC_RELAXED)};
}
static void finish(uint64_t until) {
  uint64_t before = __atomic_load_n(&finished, __ATOMIC_RELAXED);
  while (before < until &&
         !__atomic_compare_exchange_n(&finished, &before, until, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
void memcalc_wait_for_all(void) { finish(__atomic_load_n(&last_recorded, __ATOMIC_RELAXED)); }

/* Only PyTorch's allocator asks, without waiting, whether work has finished; NCCL's watchdog asks at random moments,
   and a program that asks would wait so. */
static int is_behind(const void *event, const void *caller) {
  Dl_info library;
  struct recorded found = *place_of(event);
  if (keeps_up || found.event != event || found.number <= __atomic_load_n(&finished, __ATOMIC_RELAXED)) return 0;
  if (found.launched + QUEUE <= __atomic_load_n(&launched, __ATOMIC_RELAXED)) return 0;
  return dladdr(caller, &library) && strstr(library.dli_fname, "libc10_cuda") != NULL;
}

/* ---- streams that a replay holds back: their events have not finished until they are let go ---- */

static struct held { const void *stream, *event; struct held *next; } *held;

/* Hold a stream back, before its only event is recorded, or let it go. */
EXPORT void memcalc_stub_hold_back(const void *stream, int holds) {
  pthread_mutex_lock(&lock);
  struct held **link = &held, *found;
  while (*link && (*link)->stream != stream) link = &(*link)->next;
  if (holds && !*link && (found = malloc(sizeof *found))) {
    *found = (struct held){stream, NULL, held};
    held = found;
  } else if (!holds && (found = *link)) {
    *link = found->next;
    free(found);
  }
  pthread_mutex_unlock(&lock);
}
static void hold_event(const void *event, const void *stream) {
  pthread_mutex_lock(&lock);
  for (struct held *one = held; one; one = one->next)
    if (one->stream == stream) one->event = event;
    else if (one->event == event) one->event = NULL;
  pthread_mutex_unlock(&lock);
}
static int is_held(const void *event) {
  pthread_mutex_lock(&lock);
  struct held *one = held;
  while (one && one->event != event) one = one->next;
  pthread_mutex_unlock(&lock);
  return one != NULL;
}

EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  if (held) hold_event(event, stream);
  record(event);
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  struct captured *of = find(stream, 0);
  if (of) join(event, 1, of);
  else leave(event, 1);
  pthread_mutex_unlock(&lock);
  return 0;
}
EXPORT int cudaEventRecord(void *event, void *stream) { return cudaEventRecordWithFlags(event, stream, 0); }
EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  struct captured *of = find(event, 1);
  if (of) join(stream, 0, of);
  pthread_mutex_unlock(&lock);
  return 0;
}
EXPORT int cudaEventDestroy(void *event) {
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  leave(event, 1);
  pthread_mutex_unlock(&lock);
  return 0;
}

EXPORT int cudaStreamIsCapturing(void *stream, int *status) {
  *status = state(stream).status;
  return 0;
}
EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                       const void ***nodes, size_t *count) {
  struct captured found = state(stream);
  *status = found.status;
  if (id) *id = found.id;
  if (graph) *graph = found.graph;
  if (nodes) *nodes = NULL;
  if (count) *count = 0;
  return 0;
}
EXPORT int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph,
                                       const void ***nodes, const void **edges, size_t *count) {
  if (edges) *edges = NULL;
  return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}
/* Since CUDA 13 it has the arguments of _v3; before, three. */
EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                                    const void ***nodes, const void **edges, size_t *count) {
  if (SET->cuda >= 13000) return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count);
  return cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

/* ---- waiting, which a capture forbids ---- */

static int query_stream(const void *stream) {
  if (!memcalc_capturing(stream)) return 0;
  memcalc_spoil_capture(stream);
  return CAPTURE_UNSUPPORTED;
}
static int wait_for_stream(const void *stream) {
  memcalc_wait_for_all();
  return query_stream(stream);
}
static int query_event(const void *event) {
  int error = 0;
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  struct captured *of = find(event, 1);
  if (of && of->status == ACTIVE) {
    spoil(of->id);
    error = CAPTURED_EVENT;
  }
  pthread_mutex_unlock(&lock);
  return error;
}
EXPORT int cudaStreamSynchronize(void *stream) { return wait_for_stream(stream); }
EXPORT int cudaStreamQuery(void *stream) { return query_stream(stream); }
EXPORT int cuStreamSynchronize(void *stream) { return wait_for_stream(stream); }
EXPORT int cuStreamQuery(void *stream) { return query_stream(stream); }
EXPORT int cudaEventSynchronize(void *event) {
  struct recorded found = *place_of(event);
  finish(found.event == event ? found.number : 0);
  return query_event(event);
}
EXPORT int cudaEventQuery(void *event) {
  if ((held && is_held(event)) || is_behind(event, __builtin_return_address(0))) return NOT_READY;
  return query_event(event);
}
EXPORT int cudaDeviceSynchronize(void) {
  int error = 0;
  memcalc_wait_for_all();
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < number_captured; i++)
    if (captured[i].status == ACTIVE) error = CAPTURE_UNSUPPORTED;
  if (error) spoil(0);
  pthread_mutex_unlock(&lock);
  return error;
}
EXPORT int cuCtxSynchronize(void) { return cudaDeviceSynchronize(); }

static void prepare(void) { pthread_mutex_lock(&lock); }
static void resume(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, resume, resume); }
