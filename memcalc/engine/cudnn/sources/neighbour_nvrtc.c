/* The NVRTC that the real cuDNN finds: it has the functions that cuDNN looks for, so that engines
   which compile at run time are offered. No plan of them is built, so nothing is ever compiled. */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
enum { NVRTC_ERROR_INTERNAL_ERROR = 11 };

EXPORT int nvrtcVersion(int *major, int *minor) {
  *major = CUDA_MAJOR;
  *minor = CUDA_MAJOR > 12 ? 0 : 8;
  return 0;
}
EXPORT const char *nvrtcGetErrorString(int error) {
  return error ? "NVRTC_ERROR_INTERNAL_ERROR" : "NVRTC_SUCCESS";
}
#define FAILS(name) \
  EXPORT int name(void) { return NVRTC_ERROR_INTERNAL_ERROR; }
FAILS(nvrtcCreateProgram)
FAILS(__nvrtcCPEx) /* cuDNN's own way to create a program */
FAILS(nvrtcDestroyProgram)
FAILS(nvrtcCompileProgram)
FAILS(nvrtcAddNameExpression)
FAILS(nvrtcGetLoweredName)
FAILS(nvrtcGetCUBINSize)
FAILS(nvrtcGetCUBIN)
FAILS(nvrtcGetPTXSize)
FAILS(nvrtcGetPTX)
FAILS(nvrtcGetProgramLogSize)
FAILS(nvrtcGetProgramLog)
FAILS(nvrtcGetLTOIRSize)
FAILS(nvrtcGetLTOIR)
FAILS(nvrtcGetNumSupportedArchs)
FAILS(nvrtcGetSupportedArchs)
