/* NCCL: one process is any rank of a group of any size. Every other rank says what this one says,
   and a sum is left as what this rank gave. */
#include <pthread.h>

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

/* What was sent, by collective and number of ranks: calls, and bytes that this rank gave. */
enum { ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, REDUCE, ALL_TO_ALL, SEND };
static const char *const names[] = {"all-gather", "all-reduce", "broadcast", "reduce-scatter", "reduce",
                                    "all-to-all", "send"};
enum { ROWS = 64 };
static struct row {
  int kind, ranks;
  unsigned long long calls, bytes;
} rows[ROWS];
static int used;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* What stands between ncclGroupStart and ncclGroupEnd is one call; several messages to others are
   an exchange of all with all. */
static __thread int depth;
static __thread unsigned long long counted; /* rows that this group has counted a call of */
static __thread unsigned long long messages, message_bytes;
static __thread int message_ranks;

/* Messages of a group of calls, which arrive at its end: nobody knows what another rank sends, so it
   is what this rank sends to it, or else what it sends to any rank in as many bytes. */
enum { MOST_MESSAGES = 2048 };
struct message {
  void *at;
  size_t bytes;
  int peer;
  const struct communicator *group;
};
static __thread struct messages {
  struct message *held;
  int count;
} sends, receives;

static void hold(struct messages *all, void *at, size_t bytes, int peer, const struct communicator *group) {
  if (!all->held) all->held = malloc(MOST_MESSAGES * sizeof *all->held);
  if (all->held && all->count < MOST_MESSAGES) all->held[all->count++] = (struct message){at, bytes, peer, group};
}

static const struct message *sent_like(const struct message *one) {
  const struct message *like = NULL;
  for (int i = 0; i < sends.count; i++) {
    const struct message *sent = &sends.held[i];
    if (sent->group != one->group || sent->bytes != one->bytes) continue;
    if (sent->peer == one->peer) return sent;
    if (!like) like = sent;
  }
  return like;
}

static void deliver_messages(void) {
  for (int i = 0; i < receives.count; i++) {
    const struct message *sent = sent_like(&receives.held[i]);
    if (sent) memcalc_copy(receives.held[i].at, sent->at, sent->bytes);
  }
  sends.count = receives.count = 0;
}

static void count(int kind, int ranks, unsigned long long bytes) {
  if (ranks < 2) return;
  pthread_mutex_lock(&counting);
  int at = 0;
  while (at < used && (rows[at].kind != kind || rows[at].ranks != ranks)) at++;
  if (at < ROWS) {
    if (at == used) rows[used++] = (struct row){kind, ranks};
    if (!depth || !(counted >> at & 1)) rows[at].calls++;
    if (depth) counted |= 1ull << at;
    rows[at].bytes += bytes;
  }
  pthread_mutex_unlock(&counting);
}

/* The name of the collective in a row; NULL: there is no such row. */
EXPORT const char *memcalc_stub_sent(int row, int *ranks, unsigned long long *calls, unsigned long long *bytes) {
  const char *name = NULL;
  pthread_mutex_lock(&counting);
  if (row >= 0 && row < used) {
    name = names[rows[row].kind];
    *ranks = rows[row].ranks;
    *calls = rows[row].calls;
    *bytes = rows[row].bytes;
  }
  pthread_mutex_unlock(&counting);
  return name;
}

EXPORT int ncclGroupStart(void) {
  depth++;
  return 0;
}
EXPORT int ncclGroupEnd(void) {
  if (depth && --depth) return 0;
  deliver_messages();
  counted = 0;
  if (messages) count(messages > 1 ? ALL_TO_ALL : SEND, message_ranks, message_bytes);
  messages = message_bytes = 0;
  return 0;
}

static int arrive(void *to, const void *from, size_t bytes) { return memcalc_copy(to, from, bytes); }

EXPORT int ncclAllGather(const void *from, void *to, size_t many, int type, struct communicator *group, void *stream) {
  count(ALL_GATHER, group->ranks, many * size_of(type));
  size_t bytes = many * size_of(type);
  for (int rank = 0; rank < group->ranks; rank++) arrive((char *)to + rank * bytes, from, bytes);
  return 0;
}
EXPORT int ncclAllReduce(const void *from, void *to, size_t many, int type, int operation,
                         struct communicator *group, void *stream) {
  count(ALL_REDUCE, group->ranks, many * size_of(type));
  return arrive(to, from, many * size_of(type));
}
EXPORT int ncclBroadcast(const void *from, void *to, size_t many, int type, int root, struct communicator *group,
                         void *stream) {
  count(BROADCAST, group->ranks, many * size_of(type));
  return arrive(to, from, many * size_of(type));
}
EXPORT int ncclBcast(void *at, size_t many, int type, int root, struct communicator *group, void *stream) {
  count(BROADCAST, group->ranks, many * size_of(type));
  return 0;
}
EXPORT int ncclReduceScatter(const void *from, void *to, size_t many, int type, int operation,
                             struct communicator *group, void *stream) {
  count(REDUCE_SCATTER, group->ranks, many * size_of(type));
  size_t bytes = many * size_of(type);
  return arrive(to, (const char *)from + group->rank * bytes, bytes);
}
EXPORT int ncclReduce(const void *from, void *to, size_t many, int type, int operation, int root,
                      struct communicator *group, void *stream) {
  count(REDUCE, group->ranks, many * size_of(type));
  return group->rank == root ? arrive(to, from, many * size_of(type)) : 0;
}
/* From each as much as goes to it: what all give is what all get. */
EXPORT int ncclAlltoAll(const void *from, void *to, size_t many, int type, struct communicator *group, void *stream) {
  count(ALL_TO_ALL, group->ranks, (group->ranks - 1) * many * size_of(type));
  size_t bytes = many * size_of(type);
  for (int rank = 0; rank < group->ranks; rank++)
    arrive((char *)to + rank * bytes, (const char *)from + rank * bytes, bytes);
  return 0;
}
EXPORT int ncclSend(const void *from, size_t many, int type, int peer, struct communicator *group, void *stream) {
  size_t bytes = peer == group->rank ? 0 : many * size_of(type);
  if (!depth) {
    count(SEND, group->ranks, bytes);
    return 0;
  }
  hold(&sends, (void *)from, many * size_of(type), peer, group);
  messages++;
  message_bytes += bytes;
  message_ranks = group->ranks;
  return 0;
}
/* What another rank sends alone nobody knows: zeros. */
EXPORT int ncclRecv(void *to, size_t many, int type, int peer, struct communicator *group, void *stream) {
  if (depth) hold(&receives, to, many * size_of(type), peer, group);
  return cudaMemsetAsync(to, 0, many * size_of(type), stream);
}
