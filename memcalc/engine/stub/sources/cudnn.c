/* cuDNN, of a version too old for its attention, which cannot run here (PyTorch asks for 9.9). */
#include "stub.h"
EXPORT long cudnnGetVersion(void) { return SET->cudnn; }
EXPORT long cudnnGetCudartVersion(void) { return SET->cuda; }
EXPORT int cudnnCreate(void **made) {
  *made = new_handle();
  return 0;
}
EXPORT int cudnnGetProperty(int part, int *value) {
  long version = cudnnGetVersion();
  *value = (int)(part == 0 ? version / 10000 : part == 1 ? version / 100 % 100 : version % 100);
  return 0;
}
EXPORT const char *cudnnGetErrorString(int error) { return "an error of memcalc's stub driver"; }
