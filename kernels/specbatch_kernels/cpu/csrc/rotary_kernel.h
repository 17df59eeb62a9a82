/* Rotary embedding in the half-split layout (Su et al. 2021; pairs are d and d + head_dim / 2), with the
 * per-head norm of Qwen3 before it and the write to the K/V cache behind it. */
#ifndef SB_ROTARY_KERNEL_H
#define SB_ROTARY_KERNEL_H

#include "norm_kernel.h"

/* `out` may be `x`. */
static void rotate_head(float *out, const float *x, const float *rotary, int64_t dim) {
    int64_t half = dim / 2, d = 0;
    for (; d + 8 <= half; d += 8) {
        v8 first = v8_load(x + d), second = v8_load(x + half + d);
        v8 cosine = v8_load(rotary + d), sine = v8_load(rotary + half + d);
        v8_store(out + d, first * cosine - second * sine);
        v8_store(out + half + d, second * cosine + first * sine);
    }
    for (; d < half; d++) {
        float first = x[d], second = x[half + d];
        out[d] = first * rotary[d] - second * rotary[half + d];
        out[half + d] = second * rotary[d] + first * rotary[half + d];
    }
}

static void rotate_token(const sb_rotary *r, int64_t token) {
    int64_t dim = r->head_dim, slot = r->slots[token] * r->kv_heads * dim;
    float *q = r->heads + token * (r->num_heads + 2 * r->kv_heads) * dim;
    float *k = q + r->num_heads * dim, *v = k + r->kv_heads * dim;
    const float *rotary = r->rotary + r->positions[token] * dim;
    for (int64_t h = 0; h < r->num_heads; h++, q += dim) {
        if (r->q_norm) rms_norm_row(q, q, r->q_norm, dim, r->eps);
        rotate_head(q, q, rotary, dim);
    }
    for (int64_t h = 0; h < r->kv_heads; h++, k += dim) {
        if (r->k_norm) rms_norm_row(k, k, r->k_norm, dim, r->eps);
        rotate_head(r->k_cache + slot + h * dim, k, rotary, dim);
    }
    memcpy(r->v_cache + slot, v, (size_t)(r->kv_heads * dim) * sizeof(float));
}

static void rotate_and_store(const sb_rotary *r, sb_pool *pool) {
    for (int64_t t; (t = sb_pool_ticket(pool)) < r->tokens;) rotate_token(r, t);
}

#endif
