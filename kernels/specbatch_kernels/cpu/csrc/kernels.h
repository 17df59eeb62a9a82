/* One table of compute functions per instruction set; a pool is bound to one of them. */
#ifndef SB_KERNELS_H
#define SB_KERNELS_H

#include "attention.h"
#include "linear.h"

/* Functions that take a pool are run by all its workers together, each call from a new phase on and
 * without a barrier behind it; the memory they need is had from the function before them. */
typedef struct {
    sb_memory (*attention_memory)(const sb_attention_plan *plan);
    void (*attention)(const sb_attention_plan *plan, const sb_attention_data *data, sb_pool *pool, int worker);
    sb_memory (*linear_memory)(int64_t tokens, int64_t cols);
    void (*linear)(const sb_linear *linear, sb_pool *pool, int worker);
    float (*probe_read)(const float *data, int64_t count);
    float (*probe_fma)(int64_t iterations);
} sb_kernels;

extern const sb_kernels sb_kernels_portable;
#if defined(__x86_64__)
extern const sb_kernels sb_kernels_avx2;
#endif

#endif
