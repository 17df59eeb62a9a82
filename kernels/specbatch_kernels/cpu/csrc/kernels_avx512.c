/* The kernels for processors with AVX-512 (F, BW, VL, DQ and VNNI). */
#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))),              \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#endif

#define SB_AVX2
#define SB_AVX512
#define SB_TABLE sb_kernels_avx512
#include "kernels_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
