/* What another rank sends is promised: Python finds it out once the host reads it. */
#include <pthread.h>

#include "stub.h"

#define SMALL (1 << 10) /* bytes up to which it is found out where somebody asks what is known */
enum { MOST_PROMISES = 1024 };
static struct promise {
  uint64_t at, bytes;
  int number;
} promises[MOST_PROMISES];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*deliver)(int number, void *at);

static int overlaps(const struct promise *one, uint64_t at, uint64_t bytes) {
  return one->at < at + bytes && at < one->at + one->bytes;
}

/* Something else is there now. */
void memcalc_drop_promises(const void *at, size_t bytes) {
  if (!__atomic_load_n(&count, __ATOMIC_RELAXED)) return;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count;)
    if (overlaps(&promises[i], (uint64_t)at, bytes)) promises[i] = promises[--count];
    else i++;
  pthread_mutex_unlock(&lock);
}

EXPORT void memcalc_stub_when_promised(void (*function)(int, void *)) { deliver = function; }

EXPORT void memcalc_stub_promise(void *at, size_t bytes, int number) {
  memcalc_zero(at, bytes);
  pthread_mutex_lock(&lock);
  if (count < MOST_PROMISES) promises[count++] = (struct promise){(uint64_t)at, bytes, number};
  pthread_mutex_unlock(&lock);
}

static int take(const void *at, size_t bytes, size_t most, struct promise *taken) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count && !found; i++)
    if (overlaps(&promises[i], (uint64_t)at, bytes) && promises[i].bytes <= most) {
      *taken = promises[i];
      promises[i] = promises[--count];
      found = 1;
    }
  pthread_mutex_unlock(&lock);
  return found;
}

/* All that was promised in a range arrives; `asked`: what is small alone. */
void memcalc_keep_promises(const void *at, size_t bytes, int asked) {
  struct promise one;
  if (!__atomic_load_n(&count, __ATOMIC_RELAXED)) return;
  while (take(at, bytes, asked ? SMALL : (size_t)-1, &one))
    if (deliver) deliver(one.number, (void *)one.at);
}

/* A copy on the GPU is promised what its source is. */
void memcalc_copy_promises(void *to, const void *from, size_t bytes) {
  if (!__atomic_load_n(&count, __ATOMIC_RELAXED)) return;
  pthread_mutex_lock(&lock);
  for (int i = 0, before = count; i < before && count < MOST_PROMISES; i++) {
    struct promise one = promises[i];
    if (one.at < (uint64_t)from || one.at + one.bytes > (uint64_t)from + bytes) continue;
    one.at += (uint64_t)to - (uint64_t)from;
    promises[count++] = one;
  }
  pthread_mutex_unlock(&lock);
}

static void prepare(void) { pthread_mutex_lock(&lock); }
static void resume(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, resume, resume); }
