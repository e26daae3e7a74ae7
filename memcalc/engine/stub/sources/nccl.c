/* NCCL: one process is any rank of a group of any size. Every other rank says what this one says,
   and a sum is left as what this rank gave. */
#include "stub.h"

struct communicator {
  int ranks, rank, device;
};
struct id {
  char words[128];
};

static int make(struct communicator **made, int ranks, int rank) {
  *made = malloc(sizeof **made);
  if (!*made) return 2; /* ncclSystemError */
  **made = (struct communicator){ranks, rank, memcalc_device()};
  return 0;
}

EXPORT int ncclGetVersion(int *version) {
  *version = SET->nccl;
  return 0;
}
EXPORT const char *ncclGetErrorString(int error) { return error ? "an error of memcalc's stub driver" : "no error"; }
EXPORT const char *ncclGetLastError(void *communicator) { return ""; }
EXPORT int ncclGetUniqueId(struct id *id) {
  memset(id, 7, sizeof *id);
  return 0;
}

EXPORT int ncclCommInitRank(struct communicator **made, int ranks, struct id id, int rank) {
  return make(made, ranks, rank);
}
EXPORT int ncclCommInitRankConfig(struct communicator **made, int ranks, struct id id, int rank, void *config) {
  return make(made, ranks, rank);
}
EXPORT int ncclCommInitRankScalable(struct communicator **made, int ranks, int rank, int count, void *ids,
                                    void *config) {
  return make(made, ranks, rank);
}
EXPORT int ncclCommInitAll(struct communicator **made, int count, const int *devices) {
  for (int rank = 0; rank < count; rank++) {
    if (make(&made[rank], count, rank)) return 2;
    made[rank]->device = devices ? devices[rank] : rank;
  }
  return 0;
}
/* How many ranks share a colour is not known in one process: as many as before. */
EXPORT int ncclCommSplit(struct communicator *from, int colour, int key, struct communicator **made, void *config) {
  *made = NULL;
  return colour < 0 ? 0 : make(made, from->ranks, from->rank);
}
EXPORT int ncclCommShrink(struct communicator *from, int *left_out, int count, struct communicator **made,
                          void *config, int flags) {
  return make(made, from->ranks - count, from->rank < from->ranks - count ? from->rank : 0);
}
EXPORT int ncclCommDestroy(struct communicator *communicator) {
  free(communicator);
  return 0;
}
EXPORT int ncclCommAbort(struct communicator *communicator) { return ncclCommDestroy(communicator); }
EXPORT int ncclCommGetAsyncError(struct communicator *communicator, int *error) {
  *error = 0;
  return 0;
}
EXPORT int ncclCommCount(struct communicator *communicator, int *ranks) {
  *ranks = communicator->ranks;
  return 0;
}
EXPORT int ncclCommUserRank(struct communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return 0;
}
EXPORT int ncclCommCuDevice(struct communicator *communicator, int *device) {
  *device = communicator->device;
  return 0;
}
EXPORT int ncclRedOpCreatePreMulSum(int *made, void *scalar, int type, int where, void *communicator) {
  *made = 5; /* ncclNumOps: the first number that no built-in operation has */
  return 0;
}
EXPORT int ncclMemAlloc(void **at, size_t bytes) { return cudaMalloc(at, bytes) ? 1 : 0; }
EXPORT int ncclMemFree(void *at) { return cudaFree(at); }
EXPORT int ncclCommRegister(void *communicator, void *at, size_t bytes, void **made) {
  *made = new_handle();
  return 0;
}
EXPORT int ncclCommWindowRegister(void *communicator, void *at, size_t bytes, void **made, int flags) {
  *made = new_handle();
  return 0;
}

/* ---- collectives ---- */

/* Bytes of an element, by ncclDataType_t. */
static size_t size_of(int type) {
  static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && (size_t)type < sizeof sizes ? sizes[type] : 1;
}
int cudaMemsetAsync(void *at, int value, size_t bytes, void *stream);
static int arrive(void *to, const void *from, size_t bytes) { return memcalc_copy(to, from, bytes); }

EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, struct communicator *group, void *stream) {
  size_t bytes = count * size_of(type);
  for (int rank = 0; rank < group->ranks; rank++) arrive((char *)to + rank * bytes, from, bytes);
  return 0;
}
EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                         struct communicator *group, void *stream) {
  return arrive(to, from, count * size_of(type));
}
EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct communicator *group,
                         void *stream) {
  return arrive(to, from, count * size_of(type));
}
EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation,
                             struct communicator *group, void *stream) {
  size_t bytes = count * size_of(type);
  return arrive(to, (const char *)from + group->rank * bytes, bytes);
}
EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root,
                      struct communicator *group, void *stream) {
  return group->rank == root ? arrive(to, from, count * size_of(type)) : 0;
}
EXPORT int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct communicator *group, void *stream) {
  size_t bytes = count * size_of(type);
  for (int rank = 0; rank < group->ranks; rank++)
    arrive((char *)to + rank * bytes, (const char *)from + group->rank * bytes, bytes);
  return 0;
}
/* What another rank sends alone nobody knows: zeros. */
EXPORT int ncclRecv(void *to, size_t count, int type, int peer, struct communicator *group, void *stream) {
  return cudaMemsetAsync(to, 0, count * size_of(type), stream);
}
