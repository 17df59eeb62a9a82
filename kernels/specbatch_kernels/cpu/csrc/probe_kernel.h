/* Two loops that measure the processor: how fast it reads memory, how fast it multiplies and adds.
 * Kernel times are judged against them because absolute times mean nothing on a shared machine. */
#ifndef SB_PROBE_KERNEL_H
#define SB_PROBE_KERNEL_H

#include "kernels.h"
#include "simd.h"

/* Sums `count` floats (a multiple of 64) with enough independent chains to wait for memory only. */
static float probe_read(const float *data, int64_t count) {
    v8 sum[8];
    SB_FOR(8, i, 8, sum[i] = v8_zero();)
    for (int64_t k = 0; k < count; k += 64)
        SB_FOR(8, i, 8, sum[i] = sum[i] + v8_load(data + k + 8 * i);)
    float total = 0.0f;
    SB_FOR(8, i, 8, total += v8_sum(sum[i]);)
    return total;
}

/* 12 x 8 independent multiply-adds per iteration, no memory. */
static float probe_fma(int64_t iterations) {
    v8 sum[12], a = v8_set1(0.999f), b = v8_set1(0.001f);
    SB_FOR(12, i, 12, sum[i] = v8_set1((float)i);)
    for (int64_t k = 0; k < iterations; k++)
        SB_FOR(12, i, 12, sum[i] = v8_fma(sum[i], a, b);)
    float total = 0.0f;
    SB_FOR(12, i, 12, total += v8_sum(sum[i]);)
    return total;
}

#endif
