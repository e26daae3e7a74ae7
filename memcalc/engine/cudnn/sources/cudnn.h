/* What the parts of the cuDNN shim share. No header of NVIDIA's is needed. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Values of cudnnStatus_t, from cuDNN's reference of its graph library. */
enum { SUCCESS = 0, LIBRARY_NOT_LOADED = 1008, NOT_SUPPORTED = 3000 };

/* A setting of the simulated GPU: MEMCALC_STUB_<name>, or MEMCALC_DRIVER_<name>. */
long long memcalc_setting(const char *name, long long otherwise);

/* A function of the real library, which is loaded first; NULL: there is no library, or no such
   function in it. */
void *memcalc_real(const char *name);

/* The real library if it is loaded by now. */
int memcalc_cudnn_loaded(void);

/* Properties of the simulated GPU. */
int memcalc_capability(void);
int memcalc_processors(void);
int memcalc_threads(void);
long long memcalc_shared_memory(void);

/* Calls a function of the real library, looked up once; LIBRARY_NOT_LOADED if it is not there. */
#define REAL(name, parameters, arguments)                                    \
  ({                                                                         \
    static int(*function_) parameters;                                       \
    if (!function_) function_ = (int(*) parameters)memcalc_real(name);       \
    function_ ? function_ arguments : LIBRARY_NOT_LOADED;                    \
  })
