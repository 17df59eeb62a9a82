/* Inputs are regrouped so that the tokens that are multiplied together lie together: groups of
 * nearly equal size, each [cols, tokens of the group].  The groups follow each other. */
#ifndef SB_LINEAR_INPUTS_H
#define SB_LINEAR_INPUTS_H

#include "linear.h"
#include "simd.h"

/* Up to this many tokens are one group, multiplied by weights decoded in registers. */
#define DIRECT_TOKENS 4
/* Most tokens that a panel of weights is multiplied by at a time: 12 sums, 2 weights, 1 input. */
#define PANEL_TOKENS 6

static int64_t num_groups(int64_t tokens) {
    return tokens <= DIRECT_TOKENS ? 1 : (tokens + PANEL_TOKENS - 1) / PANEL_TOKENS;
}

/* First token of a group.  Sizes differ by one at most: a small last group would leave too few
 * independent sums to hide the latency of an addition. */
static int64_t group_start(int64_t tokens, int64_t group) { return tokens * group / num_groups(tokens); }

/* Inputs [k, k + 8) of up to eight tokens.  Whole vectors are written, each over the surplus of the one
 * before: what follows the last must be written later, by the same worker. */
SB_INLINE void pack_eight(float *packed, const float *x, int64_t cols, int64_t count) {
    v8 rows[8];
    SB_FOR(8, t, 8, rows[t] = t < count ? v8_load(x + t * cols) : v8_zero();)
    v8_transpose(rows);
    SB_FOR(8, k, 8, v8_store(packed + k * count, rows[k]);)
}

static void pack_group(float *packed, const float *x, int64_t cols, int64_t count) {
    int64_t k = 0;
    for (; k + 16 <= cols; k += 8) pack_eight(packed + k * count, x + k, cols, count);
    for (; k < cols; k++)
        for (int64_t t = 0; t < count; t++) packed[k * count + t] = x[t * cols + k];
}

static void pack_inputs(float *packed, const sb_linear *l, sb_pool *pool) {
    int64_t cols = l->matrix.cols;
    for (int64_t g; (g = sb_pool_ticket(pool)) < num_groups(l->tokens);) {
        int64_t first = group_start(l->tokens, g), end = group_start(l->tokens, g + 1);
        pack_group(packed + first * cols, l->x + first * cols, cols, end - first);
    }
}

#endif
