/* cuBLAS and cuBLASLt: handles, modes that are always the first, and one algorithm for every product,
   which needs no workspace of its own. */
#include "stub.h"

MAKES_HANDLE(cublasCreate_v2)
MAKES_HANDLE(cublasLtCreate)
MAKES_HANDLE(cublasLtMatmulDescCreate, int computed, int scaled)
MAKES_HANDLE(cublasLtMatrixLayoutCreate, int type, uint64_t rows, uint64_t columns, int64_t stride)
MAKES_HANDLE(cublasLtMatmulPreferenceCreate)

#define FIRST(name, type) \
  EXPORT int name(void *owner, type *value) { \
    *value = 0; \
    return 0; \
  }
FIRST(cublasGetMathMode, int)
FIRST(cublasGetPointerMode_v2, int)
FIRST(cublasGetAtomicsMode, int)
FIRST(cublasGetStream_v2, void *)

/* A cublasLtMatmulHeuristicResult_t is 96 bytes; zeros mean success, without a workspace. */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *owner, void *product, void *a, void *b, void *c, void *d,
                                          void *preference, int wanted, void *results, int *found) {
  if (wanted > 0) memset(results, 0, 96);
  *found = wanted > 0;
  return 0;
}
/* CUDA 13.0 comes with cuBLAS 13.1. */
static size_t version(void) {
  int cuda = SET->cuda;
  return cuda >= 13000 ? 130100 : cuda / 1000 * 10000 + cuda % 1000 / 10 * 100;
}
EXPORT size_t cublasLtGetVersion(void) { return version(); }
EXPORT int cublasGetVersion_v2(void *owner, int *found) {
  *found = (int)version();
  return 0;
}

/* What these say of their arguments lies on the host, and is read. */
#define SOUND(name, before) \
  EXPORT int cublas##name(before int *info) { \
    *info = 0; \
    return 0; \
  }
#define WHOLE(...) __VA_ARGS__,
#define EACH(name, before) \
  SOUND(S##name, WHOLE before) SOUND(D##name, WHOLE before) SOUND(C##name, WHOLE before) SOUND(Z##name, WHOLE before)
EACH(geqrfBatched, (void *owner, int m, int n, void *a, int lda, void *tau))
EACH(gelsBatched, (void *owner, int op, int m, int n, int columns, void *a, int lda, void *c, int ldc))
