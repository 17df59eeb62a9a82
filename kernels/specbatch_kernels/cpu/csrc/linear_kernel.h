/* The two paths of a linear layer and the choice between them.
 *
 * A few tokens: weights are decoded in registers and used at once.  More tokens: a panel of weights
 * is decoded into the first-level cache and multiplied by all tokens, a group at a time.
 */
#ifndef SB_LINEAR_KERNEL_H
#define SB_LINEAR_KERNEL_H

#include "kernels.h"
#include "linear_direct.h"
#include "linear_inputs.h"
#include "linear_int8.h"
#include "linear_panel.h"

static void run_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, float *scratch) {
    if (l->tokens <= DIRECT_TOKENS)
        direct_functions[l->matrix.type][l->tokens - 1](l, inputs, tile, end);
    else
        panel_tiles(l, inputs, tile, end, scratch);
}

/* Panels and sums, then rows of inputs. */
static size_t linear_scratch(int64_t cols) {
    return (PANEL_FLOATS + (size_t)(DIRECT_TOKENS * cols)) * sizeof(float);
}

/* Work is claimed in chunks of even numbers of tiles, several per worker: workers that the system
 * slows down claim fewer. */
static int claim_tiles(const sb_linear *l, sb_pool *pool, int64_t *tile, int64_t *end) {
    int64_t tiles = sb_tiles(l->matrix.rows), chunk = tiles / (sb_pool_workers(pool) * 8) / 2 * 2;
    if (chunk < 2) chunk = 2;
    *tile = sb_pool_ticket(pool) * chunk;
    *end = *tile + chunk < tiles ? *tile + chunk : tiles;
    return *tile < tiles;
}

static void linear(const sb_linear *l, sb_pool *pool, int worker) {
    if (l->tokens == 0) return;
    float *scratch = sb_pool_scratch(pool, worker);
    if (l->matrix.int8) {
        const sb_input_block *inputs = prepare_int8(l, pool, scratch + PANEL_FLOATS);
        for (int64_t tile, end; claim_tiles(l, pool, &tile, &end);) run_int8_tiles(l, inputs, tile, end);
    } else {
        const float *inputs = prepare_inputs(l, pool, scratch + PANEL_FLOATS);
        for (int64_t tile, end; claim_tiles(l, pool, &tile, &end);) run_tiles(l, inputs, tile, end, scratch);
    }
}

#endif
