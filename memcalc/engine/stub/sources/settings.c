/* Settings of the simulated GPUs, read from the environment when they are first needed, and again
   after a fork. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>

#include "stub.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings current;
static int loaded;

static long long number(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* The GPU that an entry of CUDA_VISIBLE_DEVICES names; machine: one that is not here; -1: none. */
static int named(const char *entry, size_t length, int machine) {
  if (length > 4 && (!strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4))) {
    for (int index = 0; index < machine; index++) {
      char text[48];
      memcalc_uuid_text(text, index);
      if (length <= strlen(text) && !strncmp(text, entry, length)) return index;
    }
    return machine;
  }
  char *end;
  long index = strtol(entry, &end, 10);
  return end == entry || index < 0 ? -1 : index >= machine ? machine : (int)index;
}

static int is_seen(const struct settings *of, int index) {
  for (int device = 0; device < of->devices; device++)
    if (of->visible[device] == index) return 1;
  return 0;
}

/* CUDA stops at the first entry that it does not understand. A program names GPUs of the machine that it is written
   for: one that the simulated machine lacks stands for its first GPU that is not seen yet. */
static void see(struct settings *of) {
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  of->devices = 0;
  if (!text)
    for (; of->devices < of->machine; of->devices++) of->visible[of->devices] = of->devices;
  while (text && *text && of->devices < MOST_DEVICES) {
    text += strspn(text, " ");
    size_t length = strcspn(text, ", ");
    int index = named(text, length, of->machine);
    if (index < 0) return;
    if (index == of->machine || is_seen(of, index))
      for (index = 0; index < of->machine && is_seen(of, index);) index++;
    if (index == of->machine) return;
    of->visible[of->devices++] = index;
    text += strcspn(text, ",");
    text += *text == ',';
  }
}

static void load(struct settings *of) {
  const char *name = getenv("MEMCALC_STUB_NAME");
  snprintf(of->name, sizeof of->name, "%s", name ? name : "simulated GPU");
  of->capability = (int)number("MEMCALC_STUB_CAPABILITY", 80);
  of->processors = (int)number("MEMCALC_STUB_PROCESSORS", 108);
  of->threads = (int)number("MEMCALC_STUB_THREADS", 2048);
  of->shared = (int)number("MEMCALC_STUB_SHARED", 167936);
  of->shared_of_block = (int)number("MEMCALC_STUB_SHARED_OF_BLOCK", 166912);
  of->cuda = (int)number("MEMCALC_STUB_CUDA", 13000);
  of->nccl = (int)number("MEMCALC_STUB_NCCL", 22809);
  of->cudnn = (int)number("MEMCALC_STUB_CUDNN", 90100);
  of->occupancy = (int)number("MEMCALC_STUB_OCCUPANCY", 2);
  of->l2 = (int)number("MEMCALC_STUB_L2", 40ll << 20);
  of->memory = number("MEMCALC_STUB_MEMORY", 80ll << 30);
  of->kept = number("MEMCALC_STUB_KEPT", 0);
  of->outside = number("MEMCALC_STUB_OUTSIDE", 0);
  of->room = number("MEMCALC_STUB_ROOM", (long long)of->memory);
  of->linked = (int)number("MEMCALC_STUB_LINKED", 0);
  of->carried = number("MEMCALC_STUB_CARRIED", 1ll << 20);
  long long machine = number("MEMCALC_STUB_DEVICES", 1);
  of->machine = machine < 0 ? 0 : machine > MOST_DEVICES ? MOST_DEVICES : (int)machine;
  see(of);
}

const struct settings *memcalc_settings(void) {
  if (!__atomic_load_n(&loaded, __ATOMIC_ACQUIRE)) {
    pthread_mutex_lock(&lock);
    if (!loaded) load(&current);
    __atomic_store_n(&loaded, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
  }
  return &current;
}

/* Read the environment again, as a program may change it before it uses a GPU. */
EXPORT void memcalc_stub_reload(void) { __atomic_store_n(&loaded, 0, __ATOMIC_RELEASE); }

/* Which GPUs of the machine a program would see that reads the environment now; returns how many. */
EXPORT int memcalc_stub_visible(int found[MOST_DEVICES]) {
  struct settings now;
  load(&now);
  memcpy(found, now.visible, sizeof now.visible);
  return now.devices;
}

void memcalc_uuid(unsigned char uuid[16], int machine_index) {
  memset(uuid, 0, 16);
  memcpy(uuid, "memcalc", 7);
  uuid[15] = (unsigned char)machine_index;
}

/* As NVML writes it: GPU-, then groups of 4, 2, 2, 2 and 6 bytes. */
void memcalc_uuid_text(char text[48], int machine_index) {
  unsigned char uuid[16];
  memcalc_uuid(uuid, machine_index);
  int at = sprintf(text, "GPU");
  for (int byte = 0; byte < 16; byte++)
    at += sprintf(text + at, !byte || (byte % 2 == 0 && byte >= 4 && byte <= 10) ? "-%02x" : "%02x", uuid[byte]);
}

static void prepare(void) { pthread_mutex_lock(&lock); }
static void parent(void) { pthread_mutex_unlock(&lock); }
static void child(void) {
  pthread_mutex_unlock(&lock);
  memcalc_stub_reload();
}
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, parent, child); }
