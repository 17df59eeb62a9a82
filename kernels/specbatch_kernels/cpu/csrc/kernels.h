/* One table of compute functions per instruction set; a pool is bound to one of them. */
#ifndef SB_KERNELS_H
#define SB_KERNELS_H

#include "attention.h"

typedef struct {
    /* Bytes of scratch per worker that `attention` needs for this plan. */
    size_t (*attention_scratch)(const sb_attention_plan *plan);
    /* One phase or two (with a barrier between), run by all workers of the pool together. */
    void (*attention)(const sb_attention_plan *plan, const sb_attention_data *data, sb_pool *pool, int worker);
    float (*probe_read)(const float *data, int64_t count);
    float (*probe_fma)(int64_t iterations);
} sb_kernels;

extern const sb_kernels sb_kernels_portable;
#if defined(__x86_64__)
extern const sb_kernels sb_kernels_avx2;
#endif

#endif
