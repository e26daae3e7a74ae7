/* Descriptors of cuDNN's graph API, planned for a device that is described in words.

   PyTorch gets a wrapper in place of each descriptor, which remembers what the shim must know of
   it. A handle in a graph or a plan is left out; heuristics, engines and plans get the device. */
#include "cudnn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t and cudnnBackendAttributeType_t. */
enum { ENGINE = 2, HEURISTICS = 4, PLAN = 5, DEVICE = 38 };
enum {
  CONFIG_ENGINE = 300, CONFIG_WORKSPACE = 303,
  HEURISTICS_DEVICE = 204, ENGINE_NOTES = 1305, ENGINE_DEVICE = 1307,
  PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, PLAN_DEVICE = 407,
  GRAPH_HANDLE = 800, DEVICE_ID = 2700, DEVICE_HANDLE = 2701, DEVICE_WORDS = 2702,
};
enum { TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15, TYPE_NOTE = 19, TYPE_CHAR = 24 };
enum { COMPILES_AT_RUNTIME = 0, MOST_NOTES = 32 };

typedef struct {
  void *real;
  int kind;
  /* Of a plan whose engine compiles its kernels at run time. */
  int compiles, error;
  int64_t workspace;
} Descriptor;

static int create(int kind, void **made) {
  return REAL("cudnnBackendCreateDescriptor", (int, void **), (kind, made));
}
static int destroy(void *one) { return REAL("cudnnBackendDestroyDescriptor", (void *), (one)); }
static int finalize(void *one) { return REAL("cudnnBackendFinalize", (void *), (one)); }
static int set(void *one, int name, int type, int64_t count, const void *values) {
  return REAL("cudnnBackendSetAttribute", (void *, int, int, int64_t, const void *),
              (one, name, type, count, values));
}
static int get(void *one, int name, int type, int64_t room, int64_t *count, void *values) {
  return REAL("cudnnBackendGetAttribute", (void *, int, int, int64_t, int64_t *, void *),
              (one, name, type, room, count, values));
}

/* ---------------------------------------------------------------- the device in words */
int memcalc_capability(void) { return (int)memcalc_setting("CAPABILITY", 80); }
int memcalc_processors(void) { return (int)memcalc_setting("PROCESSORS", 108); }
int memcalc_threads(void) { return (int)memcalc_setting("THREADS", 2048); }
long long memcalc_shared_memory(void) { return memcalc_setting("SHARED_OF_BLOCK", 166912); }

static char words[2048];
static void *device;
static pthread_once_t described = PTHREAD_ONCE_INIT;

/* Clocks are those of an H100 SXM and PCIe. Which of them is higher decides between engines on
   9.0, in one of a hundred convolutions; on no other capability did it in 792 that were asked. */
static void describe(void) {
  int capability = memcalc_capability(), pcie = memcalc_processors() == 114;
  snprintf(words, sizeof words,
           "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
           "\"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"warpSize\": 32, "
           "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %lld, "
           "\"reservedSharedMemoryPerBlock\": %d, \"maxRegistersPerSM\": 65536, "
           "\"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %d, "
           "\"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
           "\"totalGlobalMem\": %lld, \"smClockRateKHz\": %lld, \"memClockRateKHz\": %lld, "
           "\"l2CacheSize\": %lld, \"cudaDeviceId\": 0, \"deviceVer\": %d, \"driverVer\": %lld, "
           "\"memoryBusWidth\": %lld, \"deviceName\": \"GPU\"}",
           memcalc_processors(), memcalc_shared_memory(), capability >= 80 ? 1024 : 0,
           memcalc_threads(), 80ll << 30, memcalc_setting("CLOCK", pcie ? 1755000 : 1980000),
           memcalc_setting("MEMORY_CLOCK", pcie ? 1593000 : 2619000),
           memcalc_setting("L2", 40ll << 20), capability * 10,
           memcalc_setting("CUDA", 13000), memcalc_setting("BUS_WIDTH", 5120));
  int error = create(DEVICE, &device);
  if (!error) error = set(device, DEVICE_WORDS, TYPE_CHAR, strlen(words), words);
  if (!error) error = finalize(device);
  if (!error) return;
  fprintf(stderr, "memcalc: cuDNN does not accept the description of the GPU: %d\n", error);
  device = NULL;
}

static int set_device(void *one, int name) {
  pthread_once(&described, describe);
  return device ? set(one, name, TYPE_DESCRIPTOR, 1, &device) : NOT_SUPPORTED;
}

/* ---------------------------------------------------------------- plans */

/* Whether the engine of a configuration compiles its kernels at run time. */
static int compiles(void *config) {
  void *engine;
  int notes[MOST_NOTES], found = 0;
  int64_t count = 0;
  if (create(ENGINE, &engine)) return 0;
  if (!get(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &count, &engine) &&
      !get(engine, ENGINE_NOTES, TYPE_NOTE, MOST_NOTES, &count, notes))
    for (int i = 0; i < count && i < MOST_NOTES; i++) found |= notes[i] == COMPILES_AT_RUNTIME;
  destroy(engine);
  return found;
}

/* Such a plan is never built: that would need NVRTC and a driver. Its configuration says the same
   workspace before. */
static void look_at_config(Descriptor *plan, void *config) {
  int64_t count = 0;
  plan->compiles = compiles(config);
  if (plan->compiles)
    plan->error = get(config, CONFIG_WORKSPACE, TYPE_INT64, 1, &count, &plan->workspace);
}

EXPORT int cudnnBackendCreateDescriptor(int kind, void **made) {
  Descriptor *one = calloc(1, sizeof *one);
  one->kind = kind;
  int error = create(kind, &one->real);
  if (error) {
    free(one);
    return error;
  }
  *made = one;
  return SUCCESS;
}
EXPORT int cudnnBackendDestroyDescriptor(Descriptor *one) {
  if (!one) return SUCCESS;
  int error = destroy(one->real);
  free(one);
  return error;
}
EXPORT int cudnnBackendInitialize(Descriptor *one) {
  return REAL("cudnnBackendInitialize", (void *), (one->real));
}

/* The real descriptors of an array of wrappers; what was allocated is the caller's. */
static void **unwrap(Descriptor *const *wrapped, int64_t count) {
  void **reals = calloc(count ? count : 1, sizeof *reals);
  for (int64_t i = 0; wrapped && i < count; i++) reals[i] = wrapped[i] ? wrapped[i]->real : NULL;
  return reals;
}

EXPORT int cudnnBackendSetAttribute(Descriptor *one, int name, int type, int64_t count,
                                    const void *values) {
  if (name == GRAPH_HANDLE) return SUCCESS;
  if (name == PLAN_HANDLE) return set_device(one->real, PLAN_DEVICE);
  if (name == DEVICE_ID || name == DEVICE_HANDLE) {
    pthread_once(&described, describe);
    return set(one->real, DEVICE_WORDS, TYPE_CHAR, strlen(words), words);
  }
  if (type != TYPE_DESCRIPTOR) return set(one->real, name, type, count, values);
  void **reals = unwrap(values, count);
  int error = set(one->real, name, type, count, reals);
  if (!error && name == PLAN_CONFIG && count) look_at_config(one, reals[0]);
  free(reals);
  return error;
}
EXPORT int cudnnBackendGetAttribute(Descriptor *one, int name, int type, int64_t room,
                                    int64_t *count, void *values) {
  if (name == PLAN_WORKSPACE && one->compiles) {
    if (count) *count = 1;
    if (room > 0 && values) *(int64_t *)values = one->workspace;
    return SUCCESS;
  }
  if (type != TYPE_DESCRIPTOR || !values) return get(one->real, name, type, room, count, values);
  void **reals = unwrap(values, room);
  int error = get(one->real, name, type, room, count, reals);
  for (int64_t i = 0; i < room; i++)
    if (((Descriptor **)values)[i]) ((Descriptor **)values)[i]->real = reals[i];
  free(reals);
  return error;
}
EXPORT int cudnnBackendFinalize(Descriptor *one) {
  if (one->kind == PLAN && one->compiles) return one->error;
  /* An engine or heuristics that do not know the attribute say so, and go on without it. */
  if (one->kind == HEURISTICS) set_device(one->real, HEURISTICS_DEVICE);
  if (one->kind == ENGINE) set_device(one->real, ENGINE_DEVICE);
  return finalize(one->real);
}
EXPORT int cudnnBackendExecute(void *handle, void *plan, void *pack) { return SUCCESS; }
EXPORT int cudnnBackendPopulateCudaGraph(void *handle, void *plan, void *pack, void *graph) {
  return SUCCESS;
}
EXPORT int cudnnBackendUpdateCudaGraph(void *handle, void *plan, void *pack, void *graph) {
  return SUCCESS;
}
