/* NVML: the simulated GPUs of the machine, whether CUDA sees them or not.
   Source: nvml.h of CUDA 13.0. Functions that are not here are unknown to the driver. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "stub.h"

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NO_FUNCTION = 13 };
#define DRIVER_OF_13 "580.65.06" /* CUDA 13.0, 12.8 and 11.8 came with these (table 3 of their release notes) */
#define DRIVER_OF_12 "570.86.10"
#define DRIVER_OF_11 "520.61.05"

/* A device's handle is its number in the machine, from one on. */
static void *handle_of(int index) { return (void *)(uintptr_t)(index + 1); }
static int index_of(const void *device) { return (int)(uintptr_t)device - 1; }
static int is_device(const void *device) { return index_of(device) >= 0 && index_of(device) < SET->machine; }

EXPORT int nvmlInit_v2(void) { return SUCCESS; }
EXPORT int nvmlInit(void) { return SUCCESS; }
EXPORT int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
EXPORT int nvmlShutdown(void) { return SUCCESS; }
EXPORT const char *nvmlErrorString(int error) {
  return error == SUCCESS             ? "Success"
         : error == INVALID_ARGUMENT  ? "Invalid Argument"
         : error == NOT_SUPPORTED     ? "Not Supported"
         : error == NOT_FOUND         ? "Not Found"
         : error == INSUFFICIENT_SIZE ? "Insufficient Size"
                                      : "Unknown Error";
}

static int tell(char *text, unsigned length, const char *what) {
  if (strlen(what) >= length) return INSUFFICIENT_SIZE;
  strcpy(text, what);
  return SUCCESS;
}
static const char *driver(void) {
  return SET->cuda >= 13000 ? DRIVER_OF_13 : SET->cuda >= 12000 ? DRIVER_OF_12 : DRIVER_OF_11;
}
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) { return tell(text, length, driver()); }
EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned length) {
  char version[32];
  snprintf(version, sizeof version, "%d.%s", SET->cuda / 1000, driver());
  return tell(text, length, version);
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = SET->cuda;
  return SUCCESS;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
EXPORT int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
  char path[32], text[256] = "";
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "r");
  if (!file) return NOT_FOUND;
  size_t read = fread(text, 1, sizeof text - 1, file); /* it ends at the first argument's zero */
  fclose(file);
  return read ? tell(name, length, text) : NOT_FOUND;
}

/* ---- which GPU ---- */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)SET->machine;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index >= (unsigned)SET->machine) return INVALID_ARGUMENT;
  *device = handle_of((int)index);
  return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  char uuid[48];
  if (!is_device(device)) return INVALID_ARGUMENT;
  memcalc_uuid_text(uuid, index_of(device));
  return tell(text, length, uuid);
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *asked, void **device) {
  for (int index = 0; index < SET->machine; index++) {
    char uuid[48];
    memcalc_uuid_text(uuid, index);
    if (!strcmp(uuid, asked)) return nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
  }
  return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *place, void **device) {
  unsigned domain, bus, slot;
  if (sscanf(place, "%x:%x:%x", &domain, &bus, &slot) != 3 || !bus || bus > (unsigned)SET->machine) return NOT_FOUND;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *place, void **device) {
  return nvmlDeviceGetHandleByPciBusId_v2(place, device);
}
EXPORT int nvmlDeviceGetIndex(void *device, unsigned *index) {
  *index = (unsigned)index_of(device);
  return is_device(device) ? SUCCESS : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetMinorNumber(void *device, unsigned *number) { return nvmlDeviceGetIndex(device, number); }

struct pci { /* nvmlPciInfo_t */
  char old_text[16];
  unsigned domain, bus, device, kind, subsystem;
  char text[32];
};
EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci *found) {
  if (!is_device(device)) return INVALID_ARGUMENT;
  memset(found, 0, sizeof *found);
  found->bus = (unsigned)index_of(device) + 1;
  snprintf(found->old_text, sizeof found->old_text, "0000:%02X:00.0", found->bus);
  snprintf(found->text, sizeof found->text, "00000000:%02X:00.0", found->bus);
  return SUCCESS;
}

/* ---- what it is ---- */

EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned length) { return tell(name, length, SET->name); }
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *major = SET->capability / 10;
  *minor = SET->capability % 10;
  return SUCCESS;
}
struct fabric { /* nvmlGpuFabricInfoV_t */
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric *found) {
  found->state = 0; /* it is in no fabric: PyTorch goes on without, where an error would be its own */
  return SUCCESS;
}
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *found) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) { return NOT_SUPPORTED; }
/* Capabilities: 0 to 4 are read, write, NVLink, atomics and PCI Express. */
EXPORT int nvmlDeviceGetP2PStatus(void *one, void *other, int capability, int *status) {
  if (!is_device(one) || !is_device(other)) return INVALID_ARGUMENT;
  *status = capability == 2 && !SET->linked ? 5 /* NVML_P2P_STATUS_NOT_SUPPORTED */ : 0;
  return SUCCESS;
}

/* ---- what is taken of it ---- */

#define MOST_TOLD 256
static uint64_t taken_of(int index, struct taken *by, int *count) {
  uint64_t sum = 0;
  *count = memcalc_processes(index, by, MOST_TOLD);
  for (int i = 0; i < *count; i++) sum += by[i].bytes;
  return sum < SET->memory ? sum : SET->memory;
}

/* The second version tells what the driver keeps apart from what is used; the first adds both. */
struct memory { uint64_t total, free, used; };
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
  struct taken by[MOST_TOLD];
  int count;
  if (!is_device(device)) return INVALID_ARGUMENT;
  found->used = taken_of(index_of(device), by, &count) + SET->kept;
  found->total = SET->memory + SET->kept;
  found->free = found->total - found->used;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *found) {
  struct memory first;
  int error = nvmlDeviceGetMemoryInfo(device, &first);
  found->total = first.total;
  found->free = first.free;
  found->reserved = SET->kept;
  found->used = first.used - SET->kept;
  return error;
}

/* nvmlProcessInfo_t of the second and third version; whoever gives too little room learns how much it takes. */
struct process { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; };
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *found) {
  struct taken by[MOST_TOLD];
  int number;
  if (!is_device(device)) return INVALID_ARGUMENT;
  taken_of(index_of(device), by, &number);
  unsigned room = found ? *count : 0;
  *count = (unsigned)number;
  if (room < *count) return INSUFFICIENT_SIZE;
  for (int i = 0; i < number; i++) found[i] = (struct process){(unsigned)by[i].pid, by[i].bytes, ~0u, ~0u};
  return SUCCESS;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, struct process *found) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct process *found) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
}
#define NOBODY(name) \
  EXPORT int name(void *device, unsigned *count, void *found) { \
    *count = 0; \
    return SUCCESS; \
  }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)

/* ---- gauges, which stand at zero ---- */

#define ZERO(name) \
  EXPORT int name(void *device, unsigned *value) { \
    *value = 0; \
    return SUCCESS; \
  }
#define ZERO_OF_KIND(name) \
  EXPORT int name(void *device, int kind, unsigned *value) { \
    *value = 0; \
    return SUCCESS; \
  }
ZERO(nvmlDeviceGetPowerUsage)
ZERO(nvmlDeviceGetFanSpeed)
ZERO(nvmlDeviceGetPerformanceState)
ZERO(nvmlDeviceGetComputeMode)
ZERO(nvmlDeviceGetPersistenceMode)
ZERO_OF_KIND(nvmlDeviceGetTemperature)
ZERO_OF_KIND(nvmlDeviceGetClockInfo)
ZERO_OF_KIND(nvmlDeviceGetMaxClockInfo)
ZERO_OF_KIND(nvmlDeviceGetPcieThroughput)
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *value) {
  *value = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetTemperatureV(void *device, int *found) { /* version, sensor, temperature */
  found[2] = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned found[2]) {
  found[0] = found[1] = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetEncoderUtilization(void *device, unsigned *value, unsigned *period) {
  *value = *period = 0;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetDecoderUtilization(void *device, unsigned *value, unsigned *period) {
  return nvmlDeviceGetEncoderUtilization(device, value, period);
}
