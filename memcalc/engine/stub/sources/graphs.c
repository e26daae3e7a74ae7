/* CUDA graphs, which replay nothing. */
#include "stub.h"

MAKES_HANDLE(cudaGraphCreate, unsigned flags)
MAKES_HANDLE(cudaGraphInstantiate, void *graph, unsigned long long flags)
MAKES_HANDLE(cudaGraphInstantiateWithFlags, void *graph, unsigned long long flags)
MAKES_HANDLE(cudaGraphInstantiateWithParams, void *graph, void *parameters)
MAKES_HANDLE(cudaGraphClone, void *graph)
MAKES_HANDLE(cudaUserObjectCreate, void *data, void *destroy, unsigned references, unsigned flags)
MAKES_HANDLE(cudaGraphAddNode)
MAKES_HANDLE(cudaGraphAddKernelNode)
MAKES_HANDLE(cudaGraphAddMemcpyNode)
MAKES_HANDLE(cudaGraphAddMemsetNode)
MAKES_HANDLE(cudaGraphAddEmptyNode)
MAKES_HANDLE(cudaGraphConditionalHandleCreate)

/* PyTorch warns of a graph that is empty. */
EXPORT int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
  *count = 1;
  if (nodes) nodes[0] = graph;
  return 0;
}
EXPORT int cudaGraphNodeGetType(void *node, int *type) {
  *type = 0; /* a kernel */
  return 0;
}
