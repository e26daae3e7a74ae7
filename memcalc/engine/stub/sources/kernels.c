/* Kernels: which code of theirs would run, what they ask for, and how they are found and launched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "stub.h"

enum { NO_TABLE = 500 }; /* CUDA_ERROR_NOT_FOUND */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the code in a library: the newest of the device's major that is no newer than it.
   Source: include/fatbinary_section.h of CUDA 13, and what PyTorch's libraries hold. ---- */

struct section { /* what the library registers */
  int magic, version;
  const uint8_t *data;
  void *more;
};
struct binary {
  const struct section *section;
  int code, of_capability; /* found for this capability */
};
#define SECTION_MAGIC 0x466243b1
#define DATA_MAGIC 0xba55ed50

static uint64_t field(const uint8_t *at, int bytes) {
  uint64_t value = 0;
  memcpy(&value, at, bytes);
  return value;
}
static int newest_code(const struct section *section, int capability) {
  const uint8_t *at = section->data;
  int newest = 0;
  if (section->magic != SECTION_MAGIC || !at || field(at, 4) != DATA_MAGIC) return 0;
  const uint8_t *end = at + field(at + 6, 2) + field(at + 8, 8);
  for (at += field(at + 6, 2); at + 32 <= end; at += field(at + 4, 4) + field(at + 8, 8)) {
    int code = (int)field(at + 28, 4);
    if (code / 10 == capability / 10 && code <= capability && code > newest) newest = code;
    if (!field(at + 4, 4)) break;
  }
  return newest;
}
/* The capability may be set after the library is loaded, in a fork. */
static int code_of_binary(struct binary *binary) {
  if (binary->of_capability != SET->capability) {
    binary->code = newest_code(binary->section, SET->capability);
    binary->of_capability = SET->capability;
  }
  return binary->code;
}

static struct kernel { const void *function; struct binary *binary; } *kernels;
static size_t kernels_known, kernels_room;

static struct kernel *place_of(const void *function) {
  size_t at = ((uintptr_t)function >> 4) * 0x9e3779b97f4a7c15ull & (kernels_room - 1);
  while (kernels[at].function && kernels[at].function != function) at = (at + 1) & (kernels_room - 1);
  return &kernels[at];
}
static int make_room(void) {
  struct kernel *before = kernels;
  size_t room = kernels_room;
  struct kernel *made = calloc(room ? 2 * room : 1 << 16, sizeof *made);
  if (!made) return 0;
  kernels = made;
  kernels_room = room ? 2 * room : 1 << 16;
  for (size_t at = 0; at < room; at++)
    if (before[at].function) *place_of(before[at].function) = before[at];
  free(before);
  return 1;
}

EXPORT struct binary *__cudaRegisterFatBinary(const struct section *section) {
  struct binary *made = calloc(1, sizeof *made);
  if (made) made->section = section;
  return made;
}
EXPORT void __cudaRegisterFunction(struct binary *binary, const char *function, char *device, const char *name,
                                   int threads, void *a, void *b, void *c, void *d, int *size) {
  pthread_mutex_lock(&lock);
  if (2 * kernels_known < kernels_room || make_room()) {
    struct kernel *found = place_of(function);
    kernels_known += !found->function;
    *found = (struct kernel){function, binary};
  }
  pthread_mutex_unlock(&lock);
}
/* A library that is unloaded takes its kernels along; its binary is asked for no more. */
EXPORT void __cudaUnregisterFatBinary(struct binary *binary) {
  pthread_mutex_lock(&lock);
  for (size_t at = 0; at < kernels_room; at++)
    if (kernels[at].binary == binary) kernels[at].binary = NULL;
  pthread_mutex_unlock(&lock);
  free(binary);
}
static int code_of(const void *function) {
  pthread_mutex_lock(&lock);
  struct binary *binary = kernels ? place_of(function)->binary : NULL;
  int code = binary ? code_of_binary(binary) : 0;
  pthread_mutex_unlock(&lock);
  return code ? code : SET->capability;
}

/* ---- what a kernel asks for ---- */

/* cudaFuncAttributes: 56 bytes in CUDA 11, 144 since 12, which begin alike. */
EXPORT int cudaFuncGetAttributes(char *found, const void *function) {
  int code = code_of(function);
  struct { size_t shared, constant, local; int threads, registers, ptx, binary, cache, dynamic, carveout; } begin = {
    .threads = 1024, .registers = 32, .ptx = code, .binary = code, .dynamic = SET->shared_of_block};
  memset(found, 0, SET->cuda >= 12000 ? 144 : 56);
  memcpy(found, &begin, sizeof begin);
  return 0;
}
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : 0; /* threads of a block; nothing is spilled, nothing is shared */
  return 0;
}
static int occupancy(int *blocks) {
  *blocks = SET->occupancy;
  return 0;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
  return occupancy(blocks);
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                  size_t shared, unsigned flags) {
  return occupancy(blocks);
}
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
  return occupancy(blocks);
}
EXPORT int cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const void *launch) {
  return occupancy(clusters);
}
EXPORT int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *launch) { return occupancy(clusters); }

/* ---- how a kernel is found ---- */

MAKES_HANDLE(cuModuleLoad, const char *path)
MAKES_HANDLE(cuModuleLoadData, const void *image)
MAKES_HANDLE(cuModuleLoadDataEx, const void *image, unsigned count, void *options, void *values)
MAKES_HANDLE(cuModuleGetFunction, void *module, const char *name)
MAKES_HANDLE(cuLibraryLoadData)
MAKES_HANDLE(cuLibraryLoadFromFile)
MAKES_HANDLE(cuLibraryGetKernel, void *library, const char *name)
/* What is compiled as it is needed holds one kernel, and packages check that (DeepGEMM). */
EXPORT int cuLibraryGetKernelCount(unsigned *count, void *library) {
  *count = 1;
  return 0;
}
EXPORT int cuLibraryEnumerateKernels(void **kernels, unsigned most, void *library) {
  for (unsigned index = 0; index < most; index++) kernels[index] = new_handle();
  return 0;
}
MAKES_HANDLE(cuLibraryGetModule, void *library)
MAKES_HANDLE(cuKernelGetFunction, void *kernel)
MAKES_HANDLE(cudaLibraryLoadData)
MAKES_HANDLE(cudaLibraryGetKernel, void *library, const char *name)
EXPORT int __cudaGetKernel(void **kernel, const void *function) {
  *kernel = (void *)function;
  return 0;
}
EXPORT int cudaGetKernel(void **kernel, const void *function) { return __cudaGetKernel(kernel, function); }
EXPORT int cudaGetFuncBySymbol(void **found, const void *function) { return __cudaGetKernel(found, function); }
/* Variables of kernels: one place for all, of which nobody reads. */
EXPORT int cudaGetSymbolAddress(void **at, const void *symbol) {
  static void *variables;
  if (!variables) variables = (void *)memcalc_reserve(1, memcalc_device());
  *at = variables;
  return 0;
}

/* ---- how a function of the driver is found ---- */

static int nothing(void) { return 0; }

static void *function_named(const char *name) {
  static void *own;
  Dl_info info;
  if (!own && dladdr((void *)&lock, &info)) own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  void *found = own ? dlsym(own, name) : NULL;
  return found ? found : (void *)nothing;
}
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                            unsigned long long flags, int *status) {
  *function = function_named(name);
  if (status) *status = 0;
  return 0;
}
EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
/* Private tables of functions between NVIDIA's own runtime and driver. A runtime that is linked into
   a package (cuda-bindings) calls entries of a table that it is given, and fails cleanly without. */
EXPORT int cuGetExportTable(const void **table, const void *which) {
  *table = NULL;
  return NO_TABLE;
}
EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  *function = function_named(name);
  return 0;
}
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}

/* ---- NVRTC: every program compiles, to nothing ---- */

EXPORT int nvrtcVersion(int *major, int *minor) {
  *major = SET->cuda / 1000;
  *minor = SET->cuda % 1000 / 10;
  return 0;
}
MAKES_HANDLE(nvrtcCreateProgram)
EXPORT int nvrtcGetLoweredName(void *program, const char *asked, const char **lowered) {
  *lowered = "kernel";
  return 0;
}
EXPORT const char *nvrtcGetErrorString(int error) { return error ? "an error of memcalc's stub driver" : "no error"; }
static int one_byte(size_t *size) {
  *size = 1;
  return 0;
}
static int empty_text(char *text) {
  *text = 0;
  return 0;
}
EXPORT int nvrtcGetProgramLogSize(void *program, size_t *size) { return one_byte(size); }
EXPORT int nvrtcGetPTXSize(void *program, size_t *size) { return one_byte(size); }
EXPORT int nvrtcGetCUBINSize(void *program, size_t *size) { return one_byte(size); }
EXPORT int nvrtcGetProgramLog(void *program, char *text) { return empty_text(text); }
EXPORT int nvrtcGetPTX(void *program, char *text) { return empty_text(text); }
EXPORT int nvrtcGetCUBIN(void *program, char *text) { return empty_text(text); }

static void prepare(void) { pthread_mutex_lock(&lock); }
static void resume(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, resume, resume); }
