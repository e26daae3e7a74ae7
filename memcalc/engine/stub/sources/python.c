/* Python waits a moment before it ends.

   A thread of autograd lets go of Python's objects after backward() has returned. Over a GPU it has
   done so long before the program ends; here a program may end at once, and a thread that asks a
   Python that has ended for its lock is a crash (the program then exits with 134). */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "stub.h"

#define AT_EXIT "__import__('atexit').register(__import__('time').sleep, 0.02)"

/* Called by Python, in its main thread and with its lock. */
static int register_wait(void *unused) {
  int (*run)(const char *) = dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  if (run) run(AT_EXIT);
  return 0;
}

void memcalc_wait_at_exit(void) {
  static int done;
  int (*later)(int (*)(void *), void *) = dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
  if (later && !__atomic_exchange_n(&done, 1, __ATOMIC_RELAXED)) later(register_wait, NULL);
}
