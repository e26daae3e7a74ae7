/* What all stand-in libraries share: settings from the environment, and handles that mean nothing. */
#pragma once
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define DEVICE_BASE 0x200000000000ull /* where addresses of the device begin; nothing is mapped there */
#define DEVICE_SPAN (1ull << 44)
#define PAGE (2ull << 20) /* what the driver hands out is a multiple of it */

static inline long long setting(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

static inline int capability(void) { return (int)setting("MEMCALC_DRIVER_CAPABILITY", 80); }

static inline int on_device(const void *address) {
  return (uint64_t)address >= DEVICE_BASE && (uint64_t)address < DEVICE_BASE + DEVICE_SPAN;
}

/* A new handle, unlike all others of this library. */
static inline void *handle(void) {
  static uint64_t last = 0x100000;
  return (void *)__atomic_add_fetch(&last, 64, __ATOMIC_RELAXED);
}

/* In libcuda: the device's memory, which the runtime and the driver take from. */
int memcalc_take(uint64_t bytes);
void memcalc_give_back(uint64_t bytes);
uint64_t memcalc_address(uint64_t bytes);
uint64_t memcalc_total(void);
uint64_t memcalc_free(void);
