/* The simulated GPUs: how many, what they can do, versions, contexts and errors. */
#define _GNU_SOURCE
#include <stdio.h>

#include "stub.h"

/* ---- which ---- */

EXPORT int cuInit(unsigned flags) { return SET->devices ? 0 : NO_DEVICE; }
EXPORT int cudaGetDeviceCount(int *count) {
  *count = SET->devices;
  return SET->devices ? 0 : NO_DEVICE;
}
EXPORT int cuDeviceGetCount(int *count) {
  *count = SET->devices;
  return 0;
}
EXPORT int cuDeviceGet(int *device, int index) {
  *device = index;
  return index < 0 || index >= SET->devices ? INVALID_DEVICE : 0;
}
EXPORT int cudaGetDevice(int *device) {
  *device = memcalc_device();
  return 0;
}
/* Since CUDA 12 it begins the context of the device. */
EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= SET->devices) return INVALID_DEVICE;
  memcalc_use(device);
  if (SET->cuda >= 12000) memcalc_begin_context(device);
  return 0;
}
EXPORT int cudaDeviceCanAccessPeer(int *can, int one, int other) {
  *can = one != other;
  return 0;
}
EXPORT int cuDeviceCanAccessPeer(int *can, int one, int other) { return cudaDeviceCanAccessPeer(can, one, other); }

/* ---- what they can do: numbers of CUdevice_attribute, which cudaDeviceAttr repeats ---- */

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const struct settings *set = SET;
  switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;           /* threads of a block, along x, along y */
    case 4: *value = 64; break;                             /* along z */
    case 5: *value = 0x7fffffff; break;                     /* blocks of a grid along x */
    case 6: case 7: *value = 65535; break;                  /* along y, z */
    case 8: *value = 49152; break;                          /* shared memory of a block */
    case 9: *value = 65536; break;                          /* constant memory */
    case 10: *value = 32; break;                            /* warp */
    case 12: case 82: *value = 65536; break;                /* registers of a block, of a processor */
    case 13: *value = 1500000; break;                       /* clock in kHz; a nominal one */
    case 16: *value = set->processors; break;
    case 31: *value = 1; break;                             /* concurrent kernels */
    case 33: *value = set->visible[device] + 1; break;      /* bus */
    case 36: *value = 1500000; break;                       /* memory clock in kHz; a nominal one */
    case 37: *value = 4096; break;                          /* width of the memory bus; a nominal one */
    case 38: *value = set->l2; break;
    case 39: *value = set->threads; break;
    case 41: *value = 1; break;                             /* one address space */
    case 75: *value = set->capability / 10; break;
    case 76: *value = set->capability % 10; break;
    case 78: case 95: case 102: *value = 1; break;          /* priorities, cooperation, virtual memory */
    case 81: *value = set->shared; break;
    case 97: *value = set->shared_of_block; break;
    case 106: *value = 32; break;                           /* blocks of a processor */
    case 115: *value = 1; break;                            /* memory pools */
    default: *value = 0;
  }
  return 0;
}
EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (device < 0 || device >= SET->devices) return INVALID_DEVICE;
  return cuDeviceGetAttribute(value, attribute, device);
}

EXPORT int cuDeviceGetName(char *name, int length, int device) {
  snprintf(name, length, "%s", SET->name);
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = SET->memory;
  return 0;
}
EXPORT int cuDeviceTotalMem(size_t *bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device) {
  memcalc_uuid(uuid, SET->visible[device]);
  return 0;
}
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, "0000:%02X:00.0", SET->visible[device] + 1);
  return 0;
}
EXPORT int cuDeviceGetPCIBusId(char *text, int length, int device) {
  return cudaDeviceGetPCIBusId(text, length, device);
}

/* cudaDeviceProp: where its fields lie in CUDA 11 and 12, and in 13. The rest is zeros. */
static const struct field { int older, newer, attribute; } fields[] = {
  {296, 296, 8},             /* sharedMemPerBlock, eight bytes as all before regsPerBlock */
  {304, 304, 12},            /* regsPerBlock */
  {308, 308, 10},            /* warpSize */
  {320, 320, 1},             /* maxThreadsPerBlock */
  {324, 324, 2}, {328, 328, 3}, {332, 332, 4}, /* maxThreadsDim */
  {336, 336, 5}, {340, 340, 6}, {344, 344, 7}, /* maxGridSize */
  {352, 352, 9},             /* totalConstMem */
  {360, 360, 75}, {364, 364, 76}, /* major, minor */
  {388, 384, 16},            /* multiProcessorCount */
  {576, 560, 31},            /* concurrentKernels */
  {584, 568, 33},            /* pciBusID */
  {604, 588, 41},            /* unifiedAddressing */
  {612, 592, 37},            /* memoryBusWidth */
  {616, 596, 38},            /* l2CacheSize */
  {624, 604, 39},            /* maxThreadsPerMultiProcessor */
  {628, 608, 78},            /* streamPrioritiesSupported */
  {640, 624, 81},            /* sharedMemPerMultiprocessor, eight bytes */
  {648, 632, 82},            /* regsPerMultiprocessor */
  {652, 636, 78},            /* managedMemory */
  {688, 668, 95},            /* cooperativeLaunch */
  {696, 672, 97},            /* sharedMemPerBlockOptin, eight bytes */
  {712, 688, 106},           /* maxBlocksPerMultiProcessor */
};
static int properties(char *found, int device, size_t size, int newer) {
  if (device < 0 || device >= SET->devices) return INVALID_DEVICE;
  memset(found, 0, size);
  snprintf(found, 256, "%s", SET->name);
  memcalc_uuid((unsigned char *)found + 256, SET->visible[device]);
  memcpy(found + 288, &SET->memory, sizeof SET->memory); /* totalGlobalMem */
  *(size_t *)(found + 368) = 512; /* textureAlignment */
  *(size_t *)(found + 376) = 32;  /* texturePitchAlignment */
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    int value;
    cuDeviceGetAttribute(&value, fields[i].attribute, device);
    *(int *)(found + (newer ? fields[i].newer : fields[i].older)) = value;
  }
  return 0;
}
EXPORT int cudaGetDeviceProperties(char *found, int device) {
  int newer = SET->cuda >= 13000;
  return properties(found, device, newer ? 1008 : 728, newer);
}
EXPORT int cudaGetDeviceProperties_v2(char *found, int device) { return properties(found, device, 1032, 0); }

/* ---- versions ---- */

EXPORT int cudaDriverGetVersion(int *version) {
  *version = SET->cuda;
  return 0;
}
EXPORT int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
EXPORT int cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }

/* ---- contexts ---- */

static void *context_of(int device) { return (void *)(0x10ull + device); }
EXPORT int cuCtxGetCurrent(void **context) {
  *context = context_of(memcalc_device());
  return 0;
}
EXPORT int cuCtxSetCurrent(void *context) {
  if (context) memcalc_use((int)((uint64_t)context - 0x10));
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
EXPORT int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : 0; }
EXPORT int cuCtxGetDevice(int *device) { return cudaGetDevice(device); }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  if (device < 0 || device >= SET->devices) return INVALID_DEVICE;
  memcalc_begin_context(device);
  *context = context_of(device);
  return 0;
}
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = memcalc_has_context(device);
  return 0;
}

/* ---- errors, in the words of CUDA's manual, for people search for them ---- */

static const struct { int number; const char *name, *text; } errors[] = {
  {0, "cudaSuccess", "no error"},
  {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
  {OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
  {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
  {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
  {CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
  {CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
   "operation failed due to a previous error during capture"},
  {CAPTURED_EVENT, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
};
static int place(int error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].number == error) return (int)i;
  return -1;
}
EXPORT const char *cudaGetErrorString(int error) {
  return place(error) < 0 ? "an error of memcalc's stub driver" : errors[place(error)].text;
}
EXPORT const char *cudaGetErrorName(int error) {
  return place(error) < 0 ? "cudaErrorUnknown" : errors[place(error)].name;
}
EXPORT int cuGetErrorString(int error, const char **text) {
  *text = cudaGetErrorString(error);
  return 0;
}
EXPORT int cuGetErrorName(int error, const char **text) {
  *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
  return 0;
}
