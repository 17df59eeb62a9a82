/* The kernels for processors with AVX-512 (F, BW, VL, DQ and VNNI) and AMX (tiles of integers). */
#include "kernels.h"

#if SB_HAS_AMX

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8"))),          \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8")
#endif

#define SB_AVX2
#define SB_AVX512
#define SB_AMX
#define SB_TABLE sb_kernels_amx
#include "kernels_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
