/* Loads the real cuDNN when it is first needed, and forwards to it what needs no GPU.

   The real library gets a link namespace of its own (dlmopen). There it finds the neighbours that
   lie beside this file (cuBLASLt, NVRTC and a libcuda without functions) and none of the stub
   driver's libraries, and PyTorch does not find it.

   MEMCALC_CUDNN          folder of the real libcudnn.so.9
   MEMCALC_CUDNN_COMMAND  a command that prints that folder, run where MEMCALC_CUDNN is not set
   MEMCALC_STUB_CUDNN     what cudnnGetVersion answers, so that a question for it loads nothing */
#define _GNU_SOURCE
#include "cudnn.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH 4096

long long memcalc_setting(const char *name, long long otherwise) {
  static const char *const spellings[] = {"MEMCALC_STUB_", "MEMCALC_DRIVER_"};
  for (int i = 0; i < 2; i++) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", spellings[i], name);
    const char *text = getenv(full);
    if (text && *text) return strtoll(text, NULL, 10);
  }
  return otherwise;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *real;
static char reason[1024]; /* why it could not be loaded */

static void *refuse(const char *what, const char *detail) {
  snprintf(reason, sizeof reason, "%s%s", what, detail ? detail : "");
  return NULL;
}

/* The folder of the real library: the setting, or what the command prints. */
static int folder_of_library(char *folder) {
  const char *set = getenv("MEMCALC_CUDNN"), *command = getenv("MEMCALC_CUDNN_COMMAND");
  if (set && *set) return snprintf(folder, PATH, "%s", set) < PATH;
  if (!command || !*command) return 0;
  FILE *output = popen(command, "r");
  if (!output) return 0;
  char *line = fgets(folder, PATH, output);
  if (pclose(output) || !line) return 0;
  folder[strcspn(folder, "\n")] = 0;
  return *folder != 0;
}

static int beside_this(char *folder) {
  Dl_info here;
  if (!dladdr((void *)beside_this, &here) || !here.dli_fname) return 0;
  const char *end = strrchr(here.dli_fname, '/');
  return end && snprintf(folder, PATH, "%.*s", (int)(end - here.dli_fname), here.dli_fname) < PATH;
}

/* Neighbours of both versions of CUDA that cuDNN 9 was built for: it opens those of its own. */
static const char *const neighbours[] = {
    "libmemcalc_cudnn_cuda.so",       "libmemcalc_cudnn_cublasLt12.so",
    "libmemcalc_cudnn_cublasLt13.so", "libmemcalc_cudnn_nvrtc12.so",
    "libmemcalc_cudnn_nvrtc13.so",
};

/* The real library has a C library of its own, whose environment is this one's array. setenv moves
   that array, and the other C library would read freed memory: it gets a copy. */
static void copy_environment(void *library) {
  extern char **environ;
  char ***of_library = dlsym(library, "__environ");
  size_t count = 0;
  while (environ && environ[count]) count++;
  char **copy = calloc(count + 1, sizeof *copy);
  if (!of_library || of_library == &environ || !copy) return;
  for (size_t i = 0; i < count; i++) copy[i] = strdup(environ[i]);
  *of_library = copy;
}

/* Both C libraries number the keys of threads' own values from 0, and a thread has one table for
   both: cuDNN would find there what somebody else put under the same number. It gets keys that the
   first library has given away to nobody. */
static pthread_key_t shared[512]; /* cuDNN takes more than 32 */
static int shared_count;
static __thread char has_tables;

/* The first library frees a thread's table as the thread ends, so it must have made it. */
static void make_tables(void) {
  has_tables = 1;
  for (int i = 0; i < shared_count; i++) {
    pthread_setspecific(shared[i], &has_tables);
    pthread_setspecific(shared[i], NULL);
  }
}

static void share_keys(Lmid_t namespace) {
  void *library = dlmopen(namespace, "libpthread.so.0", RTLD_LAZY);
  if (!library) return;
  int (*create)(pthread_key_t *, void (*)(void *)) = dlsym(library, "pthread_key_create");
  int (*drop)(pthread_key_t) = dlsym(library, "pthread_key_delete");
  char taken[PTHREAD_KEYS_MAX] = {0};
  pthread_key_t key;
  if (!create || !drop || create == pthread_key_create) return;
  while (shared_count < (int)(sizeof shared / sizeof *shared) &&
         !pthread_key_create(&shared[shared_count], NULL))
    shared_count++;
  while (!create(&key, NULL)) taken[key] = 1;
  for (int i = 0; i < shared_count; i++)
    if (taken[shared[i]]) drop(shared[i]);
  make_tables();
}

static void *open_in_namespace(void) {
  char folder[PATH], here[PATH], path[2 * PATH];
  if (!folder_of_library(folder)) return refuse("no folder of cuDNN is known", NULL);
  if (!beside_this(here)) return refuse("the folder of memcalc's libraries is not known", NULL);
  Lmid_t namespace = LM_ID_NEWLM;
  for (size_t i = 0; i < sizeof neighbours / sizeof *neighbours; i++) {
    snprintf(path, sizeof path, "%s/%s", here, neighbours[i]);
    void *neighbour = dlmopen(namespace, path, RTLD_LAZY);
    if (!neighbour) return refuse("", dlerror());
    if (namespace == LM_ID_NEWLM && dlinfo(neighbour, RTLD_DI_LMID, &namespace))
      return refuse("", dlerror());
  }
  share_keys(namespace);
  snprintf(path, sizeof path, "%s/libcudnn.so.9", folder);
  void *library = dlmopen(namespace, path, RTLD_LAZY);
  if (!library) return refuse("", dlerror());
  copy_environment(library);
  return library;
}

static void load(void) {
  __atomic_store_n(&real, open_in_namespace(), __ATOMIC_RELEASE);
  if (!real) fprintf(stderr, "memcalc: cuDNN cannot be loaded: %s\n", reason);
}

void *memcalc_real(const char *name) {
  pthread_once(&once, load);
  return real ? dlsym(real, name) : NULL;
}

/* For Python: load now (0: done), ask whether it is loaded, ask why it could not be ("": it was not
   tried, or is loaded). */
EXPORT int memcalc_cudnn_load(void) {
  pthread_once(&once, load);
  return real ? SUCCESS : LIBRARY_NOT_LOADED;
}
EXPORT int memcalc_cudnn_loaded(void) { return __atomic_load_n(&real, __ATOMIC_ACQUIRE) != NULL; }
EXPORT const char *memcalc_cudnn_reason(void) { return reason; }

/* A forwarded function may take up to 24 whole numbers or pointers and 4 floating-point numbers.
   Both x86-64 and AArch64 pass the two kinds in registers of their own, and give whole numbers
   beyond the registers 8 bytes each on the stack, so that one signature passes any other on. */
typedef long W;
#define TAKEN                                                                                    \
  W a, W b, W c, W d, W e, W f, W g, W h, W i, W j, W k, W l, W m, W n, W o, W p, W q, W r, W s, \
      W t, W u, W v, W w, W x, double A, double B, double C, double D
#define PASSED a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, A, B, C, D
typedef W forwarded(TAKEN);

#define FORWARD(name)                                                  \
  EXPORT W name(TAKEN) {                                               \
    static forwarded *function;                                        \
    if (!function) function = (forwarded *)memcalc_real(#name);        \
    if (!has_tables) make_tables();                                    \
    return function ? function(PASSED) : LIBRARY_NOT_LOADED;           \
  }
#define NOTHING(name) \
  EXPORT int name(void) { return SUCCESS; }
#define REFUSED(name) \
  EXPORT int name(void) { return NOT_SUPPORTED; }
#include "functions.h"

/* ---------------------------------------------------------------- versions and errors */
EXPORT size_t cudnnGetVersion(void) {
  long long told = memcalc_setting("CUDNN", 0);
  if (told) return told;
  size_t (*function)(void) = (size_t(*)(void))memcalc_real("cudnnGetVersion");
  return function ? function() : 0;
}
EXPORT size_t cudnnGetCudartVersion(void) { return memcalc_setting("CUDA", 13000); }
EXPORT int cudnnGetProperty(int part, int *value) {
  size_t version = cudnnGetVersion();
  *value = (int)(part == 0 ? version / 10000 : part == 1 ? version / 100 % 100 : version % 100);
  return SUCCESS;
}
EXPORT const char *cudnnGetErrorString(int error) {
  const char *(*function)(int) = NULL;
  if (memcalc_cudnn_loaded())
    function = (const char *(*)(int))memcalc_real("cudnnGetErrorString");
  return function ? function(error) : error ? "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED" : "CUDNN_STATUS_SUCCESS";
}
EXPORT void cudnnGetLastErrorString(char *message, size_t room) {
  void (*function)(char *, size_t) = NULL;
  if (memcalc_cudnn_loaded())
    function = (void (*)(char *, size_t))memcalc_real("cudnnGetLastErrorString");
  if (function) function(message, room);
  else if (room) snprintf(message, room, "%s", reason);
}
