/* cuBLAS: handles, and modes that are always the first. */
#include "device.h"

EXPORT int cublasCreate_v2(void **made) {
  *made = handle();
  return 0;
}
EXPORT int cublasGetMathMode(void *owner, int *mode) {
  *mode = 0;
  return 0;
}
EXPORT int cublasGetPointerMode_v2(void *owner, int *mode) {
  *mode = 0;
  return 0;
}
EXPORT int cublasGetStream_v2(void *owner, void **stream) {
  *stream = 0;
  return 0;
}
