/* The kernels for processors with AVX2, FMA and F16C. */
#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels.h"

/* Chosen per file and not on the command line, so that one build serves every processor. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define SB_AVX2
#define SB_TABLE sb_kernels_avx2
#include "kernels_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
