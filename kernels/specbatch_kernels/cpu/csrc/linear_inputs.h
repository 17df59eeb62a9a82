/* Inputs are regrouped so that the tokens that are multiplied together lie together: groups of
 * nearly equal size, each [cols, tokens of the group].  The groups follow each other. */
#ifndef SB_LINEAR_INPUTS_H
#define SB_LINEAR_INPUTS_H

#include "linear.h"
#include "linear_lanes.h"
#include "norm_kernel.h"

/* Up to DIRECT_TOKENS are one group, more are groups of up to PANEL_TOKENS. */
static int64_t num_groups(int64_t tokens) {
    return tokens <= DIRECT_TOKENS ? 1 : (tokens + PANEL_TOKENS - 1) / PANEL_TOKENS;
}

/* First token of a group.  Sizes differ by one at most: a small last group would leave too few
 * independent sums to hide the latency of an addition. */
static int64_t group_start(int64_t tokens, int64_t group) { return tokens * group / num_groups(tokens); }

/* Inputs [k, k + 8) of the up to eight tokens from `first` on, of `count`.  Whole vectors are written: the
 * surplus of the last tokens lies where the first tokens' later inputs will, which must be written later,
 * by the same worker. */
SB_INLINE void pack_eight(float *packed, const float *const *rows, int64_t k, int64_t first, int64_t count) {
    v8 block[8];
    SB_FOR(8, t, 8, block[t] = first + t < count ? v8_load(rows[first + t] + k) : v8_zero();)
    v8_transpose(block);
    SB_FOR(8, i, 8, v8_store(packed + (k + i) * count + first, block[i]);)
}

static void pack_group(float *packed, const float *const *rows, int64_t cols, int64_t count) {
    int64_t k = 0;
    for (; k + 16 <= cols; k += 8)
        for (int64_t first = (count - 1) / 8 * 8; first >= 0; first -= 8) pack_eight(packed, rows, k, first, count);
    for (; k < cols; k++)
        for (int64_t t = 0; t < count; t++) packed[k * count + t] = rows[t][k];
}

/* Inputs of one token, normed into `scratch` if the layer norms its inputs. */
static const float *input_row(const sb_linear *l, int64_t token, float *scratch) {
    const float *row = l->x + (l->index ? l->index[token] : token) * l->matrix.cols;
    if (!l->norm) return row;
    rms_norm_row(scratch, row, l->norm, l->matrix.cols, l->eps);
    return scratch;
}

/* The inputs as the paths read them.  `scratch` has room for the rows of a group.  A lone token is
 * prepared by every worker for itself: cheaper than waiting for one another. */
static const float *prepare_inputs(const sb_linear *l, sb_pool *pool, float *scratch) {
    if (l->tokens == 1) return input_row(l, 0, scratch);
    int64_t cols = l->matrix.cols;
    for (int64_t g; (g = sb_pool_ticket(pool)) < num_groups(l->tokens);) {
        int64_t first = group_start(l->tokens, g), count = group_start(l->tokens, g + 1) - first;
        const float *rows[DIRECT_TOKENS];
        for (int64_t t = 0; t < count; t++) rows[t] = input_row(l, first + t, scratch + t * cols);
        pack_group(l->packed + first * cols, rows, cols, count);
    }
    sb_pool_barrier(pool);
    return l->packed;
}

#endif
