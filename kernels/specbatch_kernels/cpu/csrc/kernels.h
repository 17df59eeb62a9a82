/* One table of compute functions per instruction set; a pool is bound to one of them. */
#ifndef SB_KERNELS_H
#define SB_KERNELS_H

#include "attention.h"
#include "decoder.h"
#include "draft.h"
#include "layers.h"
#include "linear.h"
#include "pool.h"
#include "sample.h"

/* Functions that take a pool are run by all its workers together, each call from a new phase on and
 * without a barrier behind it.  The scratch functions give the bytes a worker needs for them. */
typedef struct {
    void (*attention)(const sb_attention_plan *plan, const sb_attention_data *data, sb_pool *pool, int worker);
    void (*linear)(const sb_linear *linear, sb_pool *pool, int worker);
    void (*decoder)(const sb_pass *pass, sb_pool *pool, int worker);
    void (*draft)(const sb_draft *passes, int64_t count, sb_pool *pool, int worker);
    void (*rms_norm)(const sb_norm *norm, sb_pool *pool);
    void (*rotate_and_store)(const sb_rotary *rotary, sb_pool *pool);
    void (*lookup)(const sb_lookup *lookup, sb_pool *pool);
    void (*argmax)(const sb_argmax *argmax, sb_pool *pool);
    void (*sample)(const sb_sample *sample, sb_pool *pool, int worker);
    size_t (*attention_scratch)(const sb_attention_shape *shape);
    size_t (*linear_scratch)(int64_t cols);
    size_t (*sample_scratch)(int64_t width);
    float (*probe_read)(const float *data, int64_t count);
    float (*probe_fma)(int64_t iterations);
} sb_kernels;

extern const sb_kernels sb_kernels_portable;
#if defined(__x86_64__)
extern const sb_kernels sb_kernels_avx2, sb_kernels_avx512;
#endif

/* Linux hands out the tile registers; older compilers do not know them. */
#if defined(__x86_64__) && defined(__linux__) &&                                                                       \
    (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#define SB_HAS_AMX 1
extern const sb_kernels sb_kernels_amx;
#endif

#endif
