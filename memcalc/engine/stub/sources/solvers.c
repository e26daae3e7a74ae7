/* cuSOLVER, cuSPARSE and cuFFT: how large their workspaces are only the libraries know, so they ask
   for none. */
#include "stub.h"

MAKES_HANDLE(cusolverDnCreate)
MAKES_HANDLE(cusolverDnCreateParams)
MAKES_HANDLE(cusolverDnCreateGesvdjInfo)
MAKES_HANDLE(cusolverDnCreateSyevjInfo)
MAKES_HANDLE(cusparseCreate)
MAKES_HANDLE(cusparseCreateMatDescr)

EXPORT const char *cusparseGetErrorString(int error) { return error == 10 ? "operation not supported" : "no error"; }

/* Sizes that only cuSPARSELt knows: 10 is CUSPARSE_STATUS_NOT_SUPPORTED. */
EXPORT int cusparseLtSpMMACompressedSize2(void *owner, void *matrix, size_t *size, size_t *buffer) { return 10; }
EXPORT int cusparseLtMatmulGetWorkspace(void *owner, void *plan, size_t *size) { return 10; }

#define WHOLE(...) __VA_ARGS__
/* A function of each of the four types, whose answer is the int after these arguments. */
#define ONE(name, before) \
  EXPORT int cusolverDn##name##_bufferSize(WHOLE before, int *size) { \
    *size = 0; \
    return 0; \
  }
#define REAL(name, before) ONE(S##name, before) ONE(D##name, before)
#define COMPLEX(name, before) ONE(C##name, before) ONE(Z##name, before)
#define ALL(name, before) REAL(name, before) COMPLEX(name, before)

ALL(geqrf, (void *owner, int m, int n, void *a, int lda))
ALL(getrf, (void *owner, int m, int n, void *a, int lda))
ALL(gesvd, (void *owner, int m, int n))
ALL(potrf, (void *owner, int uplo, int n, void *a, int lda))
ALL(sytrf, (void *owner, int n, void *a, int lda))
REAL(orgqr, (void *owner, int m, int n, int k, void *a, int lda, void *tau))
COMPLEX(ungqr, (void *owner, int m, int n, int k, void *a, int lda, void *tau))
REAL(ormqr, (void *owner, int side, int op, int m, int n, int k, void *a, int lda, void *tau,
             void *c, int ldc))
COMPLEX(unmqr, (void *owner, int side, int op, int m, int n, int k, void *a, int lda, void *tau,
                void *c, int ldc))
REAL(syevd, (void *owner, int job, int uplo, int n, void *a, int lda, void *w))
COMPLEX(heevd, (void *owner, int job, int uplo, int n, void *a, int lda, void *w))
REAL(syevj, (void *owner, int job, int uplo, int n, void *a, int lda, void *w))
COMPLEX(heevj, (void *owner, int job, int uplo, int n, void *a, int lda, void *w))
REAL(syevjBatched, (void *owner, int job, int uplo, int n, void *a, int lda, void *w))
COMPLEX(heevjBatched, (void *owner, int job, int uplo, int n, void *a, int lda, void *w))
ALL(gesvdj, (void *owner, int job, int economic, int m, int n, void *a, int lda, void *s, void *u,
             int ldu, void *v, int ldv))
ALL(gesvdjBatched, (void *owner, int job, int m, int n, void *a, int lda, void *s, void *u, int ldu,
                    void *v, int ldv))
ALL(gesvdaStridedBatched, (void *owner, int job, int rank, int m, int n, void *a, int lda,
                           long long stride_a, void *s, long long stride_s, void *u, int ldu,
                           long long stride_u, void *v, int ldv, long long stride_v))

/* The newer ones answer for the device and for the host. */
#define BOTH(name, before) \
  EXPORT int cusolverDn##name##_bufferSize(WHOLE before, size_t *device, size_t *host) { \
    *device = *host = 0; \
    return 0; \
  }
BOTH(Xgeqrf, (void *owner, void *how, int64_t m, int64_t n, int type, void *a, int64_t lda,
              int type_tau, void *tau, int computed))
BOTH(Xgetrf, (void *owner, void *how, int64_t m, int64_t n, int type, void *a, int64_t lda,
              int computed))
BOTH(Xpotrf, (void *owner, void *how, int uplo, int64_t n, int type, void *a, int64_t lda,
              int computed))
BOTH(Xsyevd, (void *owner, void *how, int job, int uplo, int64_t n, int type, void *a, int64_t lda,
              int type_w, void *w, int computed))
BOTH(XsyevBatched, (void *owner, void *how, int job, int uplo, int64_t n, int type, void *a,
                    int64_t lda, int type_w, void *w, int computed))
BOTH(Xgeev, (void *owner, void *how, int left, int right, int64_t n, int type, void *a, int64_t lda,
             int type_w, void *w, int type_l, void *l, int64_t ldl, int type_r, void *r,
             int64_t ldr, int computed))
BOTH(Xsytrs, (void *owner, int uplo, int64_t n, int64_t columns, int type, void *a, int64_t lda,
              void *pivots, int type_b, void *b, int64_t ldb))

/* ---- cuSPARSE ---- */
#define NONE(name, before) \
  EXPORT int cusparse##name(WHOLE before, size_t *size) { \
    *size = 0; \
    return 0; \
  }
NONE(SpMM_bufferSize, (void *owner, int op_a, int op_b, void *alpha, void *a, void *b, void *beta,
                       void *c, int type, int algorithm))
NONE(SDDMM_bufferSize, (void *owner, int op_a, int op_b, void *alpha, void *a, void *b, void *beta,
                        void *c, int type, int algorithm))
NONE(SpMV_bufferSize, (void *owner, int op, void *alpha, void *a, void *x, void *beta, void *y,
                       int type, int algorithm))
NONE(SpSV_bufferSize, (void *owner, int op, void *alpha, void *a, void *x, void *y, int type,
                       int algorithm, void *how))
NONE(SpSM_bufferSize, (void *owner, int op_a, int op_b, void *alpha, void *a, void *b, void *c,
                       int type, int algorithm, void *how))
NONE(Xcoosort_bufferSizeExt, (void *owner, int m, int n, int count, void *rows, void *columns))
NONE(Xcsrsort_bufferSizeExt, (void *owner, int m, int n, int count, void *rows, void *columns))

/* ---- cuFFT ---- */
EXPORT int cufftCreate(int *plan) {
  static int last;
  *plan = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  return 0;
}
EXPORT int cufftXtMakePlanMany(int plan, int rank, long long *n, long long *before,
                               long long stride, long long distance, int from, long long *after,
                               long long stride_after, long long distance_after, int to,
                               long long batch, size_t *size, int type) {
  *size = 0;
  return 0;
}
