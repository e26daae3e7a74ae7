/* What each process takes, written where others over this driver can see it: NVML in one process
   tells of the runs in others. MEMCALC_STUB_PROCESSES names the file; without it a process sees
   itself alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stub.h"

#define MOST_PROCESSES 256
struct entry {
  int32_t pid; /* 0: free */
  int32_t has_context[MOST_DEVICES];
  uint64_t bytes[MOST_DEVICES]; /* by the GPU's number in the machine */
  uint64_t most;                /* on one GPU, ever, of all that had this entry */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *all, *own;
static int tried;

static int alive(int pid) { return pid && !kill(pid, 0); }

static void open_file(void) {
  const char *path = getenv("MEMCALC_STUB_PROCESSES");
  size_t bytes = MOST_PROCESSES * sizeof *all;
  tried = 1;
  int file = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0) return;
  /* On a full disk there is no such file; without room for its pages SIGBUS would end the process. */
  int failed = posix_fallocate(file, 0, (off_t)bytes);
  void *at = failed ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) all = at;
}

/* An entry that nobody has, or whose process is gone; one that nobody ever had comes first. */
static void take_entry(void) {
  int32_t me = getpid();
  for (int n = 0; n < 2 * MOST_PROCESSES && !own; n++) {
    int i = n % MOST_PROCESSES;
    int32_t before = __atomic_load_n(&all[i].pid, __ATOMIC_ACQUIRE);
    if ((alive(before) || (n < MOST_PROCESSES && all[i].most)) && before != me) continue;
    if (!__atomic_compare_exchange_n(&all[i].pid, &before, me, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    own = &all[i];
    memset(own->has_context, 0, sizeof own->has_context);
    memset(own->bytes, 0, sizeof own->bytes);
  }
}

void memcalc_publish(int device) {
  if (tried && !all) return;
  pthread_mutex_lock(&lock);
  if (!tried) open_file();
  if (all && !own) take_entry();
  if (own) {
    int index = SET->visible[device];
    own->bytes[index] = memcalc_used(device);
    if (own->bytes[index] > own->most) own->most = own->bytes[index];
    own->has_context[index] = memcalc_has_context(device);
  }
  pthread_mutex_unlock(&lock);
}

/* The processes that have a context on a GPU of the machine. */
int memcalc_processes(int machine_index, struct taken *found, int most) {
  int count = 0;
  pthread_mutex_lock(&lock);
  if (!tried) open_file();
  for (int i = 0; all && i < MOST_PROCESSES && count < most; i++)
    if (alive(all[i].pid) && all[i].has_context[machine_index])
      found[count++] = (struct taken){all[i].pid, all[i].bytes[machine_index]};
  for (int device = 0; !all && device < SET->devices && count < most; device++)
    if (SET->visible[device] == machine_index && memcalc_has_context(device))
      found[count++] = (struct taken){getpid(), memcalc_used(device)};
  pthread_mutex_unlock(&lock);
  return count;
}

/* The most bytes that a process beside this one has ever had on a GPU. */
EXPORT uint64_t memcalc_stub_others(void) {
  uint64_t most = 0;
  pthread_mutex_lock(&lock);
  if (!tried) open_file();
  for (int i = 0; all && i < MOST_PROCESSES; i++)
    if (&all[i] != own && all[i].most > most) most = all[i].most;
  pthread_mutex_unlock(&lock);
  return most;
}

__attribute__((destructor)) static void leave(void) {
  if (own && own->pid == getpid()) __atomic_store_n(&own->pid, 0, __ATOMIC_RELEASE);
}

static void prepare(void) { pthread_mutex_lock(&lock); }
static void parent(void) { pthread_mutex_unlock(&lock); }
static void child(void) {
  own = NULL;
  pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void at_load(void) { pthread_atfork(prepare, parent, child); }
