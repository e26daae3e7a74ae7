/* Handles, and the functions that read sizes by one: batch norm, recurrent layers, dropout, CTC.

   PyTorch's handles hold a stream and nothing else. The real functions get zeroed memory in which
   the words that they read of a device are written. Where those lie is found by changing words and
   watching which answers change. */
#include "cudnn.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 256, ROOM = 64 * WORDS, FULL = 1000, MOST = 4 };
/* The kernels that follow on an answered size fail (CUDNN_STATUS_EXECUTION_FAILED and
   _CUDART): the answer stands. */
enum { KERNEL_FAILED = 5000, KERNEL_FAILED_IN_CUDA = 5003 };
typedef void *P;

static int answered(int error) {
  return error == KERNEL_FAILED || error == KERNEL_FAILED_IN_CUDA ? SUCCESS : error;
}

typedef struct { void *stream; } Handle;

EXPORT int cudnnCreate(Handle **made) {
  *made = calloc(1, sizeof **made);
  return SUCCESS;
}
EXPORT int cudnnDestroy(Handle *handle) {
  free(handle);
  return SUCCESS;
}
EXPORT int cudnnSetStream(Handle *handle, void *stream) {
  handle->stream = stream;
  return SUCCESS;
}
EXPORT int cudnnGetStream(Handle *handle, void **stream) {
  *stream = handle->stream;
  return SUCCESS;
}

/* ---------------------------------------------------------------- the device's words */
static int32_t memory[ROOM], ample_memory[ROOM];
static int processors_at = -1, threads_at = -1, capability_at = -1, cooperates_at = -1;

static int no_dropout_states(int32_t *h) {
  size_t size = 0;
  REAL("cudnnDropoutGetStatesSize", (P, size_t *), (h, &size));
  return size == 0;
}

/* A persistent kernel of a small recurrent layer is refused. */
static int recurrent_refused(int32_t *h) {
  static P dropout, layers, data;
  size_t work = 0, reserve = 0;
  int lengths[4] = {10, 10, 10, 10};
  if (!dropout) {
    REAL("cudnnCreateDropoutDescriptor", (P *), (&dropout));
    REAL("cudnnCreateRNNDescriptor", (P *), (&layers));
    REAL("cudnnCreateRNNDataDescriptor", (P *), (&data));
    REAL("cudnnSetDropoutDescriptor", (P, P, float, P, size_t, unsigned long long),
         (dropout, h, 0.f, NULL, 0, 0));
  }
  if (REAL("cudnnSetRNNDescriptor_v8",
           (P, int, int, int, int, int, int, int, int, int, int, int, int, P, int),
           (layers, 3, 2, 2, 0, 0, 0, 0, 1, 64, 64, 64, 1, dropout, 1)))
    return 1;
  if (REAL("cudnnSetRNNDataDescriptor", (P, int, int, int, int, int, const int *, P),
           (data, 0, 0, 10, 4, 64, lengths, NULL)))
    return 1;
  return answered(REAL("cudnnGetRNNTempSpaceSizes", (P, P, int, P, size_t *, size_t *),
                       (h, layers, 1, data, &work, &reserve))) != SUCCESS;
}

/* A persistent batch norm takes no workspace. */
static int no_norm_workspace(int32_t *h) {
  static P image, moments;
  int shape[4] = {8, 64, 16, 16}, strides[4] = {64 * 256, 1, 64 * 16, 64};
  size_t bytes = 0;
  if (!image) {
    REAL("cudnnCreateTensorDescriptor", (P *), (&image));
    REAL("cudnnCreateTensorDescriptor", (P *), (&moments));
    REAL("cudnnSetTensorNdDescriptor", (P, int, int, const int *, const int *),
         (image, 2, 4, shape, strides));
    REAL("cudnnDeriveBNTensorDescriptor", (P, P, int), (moments, image, 2));
  }
  REAL("cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
       (P, int, int, P, P, P, P, P, size_t *),
       (h, 2, 0, image, image, image, moments, NULL, &bytes));
  return bytes == 0;
}

/* Words without which `gone` holds: how many, and which. */
static int that_decide(int32_t *h, int (*gone)(int32_t *), int *places) {
  int count = 0;
  for (int i = 0; i < WORDS; i++) {
    h[i] = 0;
    if (gone(h) && count < MOST) places[count++] = i;
    h[i] = FULL;
  }
  return count;
}

static void probe(void) {
  int32_t *h = calloc(ROOM, sizeof *h);
  int places[MOST], count;
  for (int i = 0; i < ROOM; i++) h[i] = FULL;
  if (that_decide(h, no_dropout_states, places) == 2) {
    processors_at = places[0];
    threads_at = places[1];
  }
  if (that_decide(h, recurrent_refused, places) == 1) capability_at = places[0];
  count = that_decide(h, no_norm_workspace, places);
  for (int i = 0; i < count; i++)
    if (places[i] != capability_at) cooperates_at = places[i];
  free(h);
}

static void write_device(int32_t *h) {
  if (processors_at >= 0) h[processors_at] = memcalc_processors();
  if (threads_at >= 0) h[threads_at] = memcalc_threads();
  if (capability_at >= 0) h[capability_at] = memcalc_capability() * 10;
  if (cooperates_at >= 0) h[cooperates_at] = 1;
}

static void prepare(void) {
  probe();
  write_device(memory);
  for (int i = 0; i < WORDS; i++) ample_memory[i] = (int32_t)memcalc_shared_memory();
  write_device(ample_memory);
}
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static P sized(void) {
  pthread_once(&prepared, prepare);
  return memory;
}
/* CTC asks for more of a device than zeros say (shared memory): all other words are large. */
static P ample(void) {
  pthread_once(&prepared, prepare);
  return ample_memory;
}

/* ---------------------------------------------------------------- dropout */
EXPORT int cudnnDropoutGetStatesSize(P handle, size_t *size) {
  return answered(REAL("cudnnDropoutGetStatesSize", (P, size_t *), (sized(), size)));
}
EXPORT int cudnnRestoreDropoutDescriptor(P one, P handle, float share, P states, size_t size,
                                         unsigned long long seed) {
  return answered(REAL("cudnnRestoreDropoutDescriptor",
                       (P, P, float, P, size_t, unsigned long long),
                       (one, sized(), share, states, size, seed)));
}
EXPORT int cudnnSetDropoutDescriptor(P one, P handle, float share, P states, size_t size,
                                     unsigned long long seed) {
  /* Restoring launches no kernel that fills the states. */
  if (states) return cudnnRestoreDropoutDescriptor(one, handle, share, states, size, seed);
  return answered(REAL("cudnnSetDropoutDescriptor", (P, P, float, P, size_t, unsigned long long),
                       (one, sized(), share, states, size, seed)));
}

/* ---------------------------------------------------------------- sizes */
#define SIZE(name, types, declared, given)                            \
  EXPORT int name declared {                                          \
    return answered(REAL(#name, types, given));                       \
  }
SIZE(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize,
     (P, int, int, P, P, P, P, P, size_t *),
     (P handle, int mode, int ops, P x, P z, P y, P moments, P activation, size_t *size),
     (sized(), mode, ops, x, z, y, moments, activation, size))
SIZE(cudnnGetBatchNormalizationBackwardExWorkspaceSize,
     (P, int, int, P, P, P, P, P, P, P, size_t *),
     (P handle, int mode, int ops, P x, P y, P dy, P dz, P dx, P moments, P activation,
      size_t *size),
     (sized(), mode, ops, x, y, dy, dz, dx, moments, activation, size))
SIZE(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, (P, int, int, P, P, size_t *),
     (P handle, int mode, int ops, P activation, P x, size_t *size),
     (sized(), mode, ops, activation, x, size))
SIZE(cudnnGetRNNTempSpaceSizes, (P, P, int, P, size_t *, size_t *),
     (P handle, P layers, int mode, P x, size_t *work, size_t *reserve),
     (sized(), layers, mode, x, work, reserve))
SIZE(cudnnGetRNNWeightSpaceSize, (P, P, size_t *), (P handle, P layers, size_t *size),
     (sized(), layers, size))
SIZE(cudnnGetRNNWeightParams, (P, P, int, size_t, P, int, P, P *, P, P *),
     (P handle, P layers, int layer, size_t size, P space, int id, P matrix, P *matrix_at, P bias,
      P *bias_at),
     (sized(), layers, layer, size, space, id, matrix, matrix_at, bias, bias_at))
SIZE(cudnnGetCTCLossWorkspaceSize, (P, P, P, const int *, const int *, const int *, int, P, size_t *),
     (P handle, P p, P gradients, const int *labels, const int *label_lengths,
      const int *input_lengths, int algorithm, P loss, size_t *size),
     (ample(), p, gradients, labels, label_lengths, input_lengths, algorithm, loss, size))
SIZE(cudnnGetCTCLossWorkspaceSize_v8, (P, int, P, P, P, size_t *),
     (P handle, int algorithm, P loss, P p, P gradients, size_t *size),
     (ample(), algorithm, loss, p, gradients, size))
