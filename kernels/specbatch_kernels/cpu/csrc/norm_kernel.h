/* RMSNorm (Zhang & Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * weight. */
#ifndef SB_NORM_KERNEL_H
#define SB_NORM_KERNEL_H

#include "kernels.h"
#include "simd.h"

static float sum_of_squares(const float *x, int64_t count) {
    v8 sum = v8_zero();
    for (int64_t k = 0; k < count; k += 8) {
        v8 v = k + 8 <= count ? v8_load(x + k) : v8_load_first(x + k, count - k);
        sum = v8_fma(v, v, sum);
    }
    return v8_sum(sum);
}

/* `out` may be `x`. */
static void rms_norm_row(float *out, const float *x, const float *weight, int64_t count, float eps) {
    float scale = 1.0f / sqrtf(sum_of_squares(x, count) / (float)count + eps);
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) v8_store(out + k, v8_load(x + k) * v8_set1(scale) * v8_load(weight + k));
    for (; k < count; k++) out[k] = x[k] * scale * weight[k];
}

static void rms_norm(const sb_norm *n, sb_pool *pool) {
    for (int64_t t; (t = sb_pool_ticket(pool)) < n->tokens;)
        rms_norm_row(n->out + t * n->width, n->x + t * n->width, n->weight, n->width, n->eps);
}

#endif
