/* The libcuda that the real cuDNN finds: engines that compile at run time are offered only where
   its functions are there. None does anything: they fail as on a machine without a GPU, also where
   NVIDIA's driver is installed. */
#define EXPORT __attribute__((visibility("default")))
enum { CUDA_SUCCESS = 0, CUDA_ERROR_NO_DEVICE = 100, VERSION = 13000 };

EXPORT int cuDriverGetVersion(int *version) {
  *version = VERSION;
  return CUDA_SUCCESS;
}
EXPORT int cuDeviceGetCount(int *count) {
  *count = 0;
  return CUDA_ERROR_NO_DEVICE;
}
#define FAILS(name) \
  EXPORT int name(void) { return CUDA_ERROR_NO_DEVICE; }
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryGetKernel)
FAILS(cuLibraryLoadData)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLibraryUnload)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
