/* The paths of a linear layer and the choice between them.
 *
 * A few tokens: weights are decoded in registers and used at once.  More tokens: a panel of weights
 * is decoded into the first-level cache and multiplied by all tokens, a group at a time.  Inputs of eight bits
 * have a path of their own, and with AMX a second one for many tokens.
 */
#ifndef SB_LINEAR_KERNEL_H
#define SB_LINEAR_KERNEL_H

#include "kernels.h"
#include "linear_direct.h"
#include "linear_inputs.h"
#include "linear_int8.h"
#include "linear_panel.h"
#ifdef SB_AMX
#include "linear_amx.h"
#endif

static void run_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, float *scratch) {
    if (l->tokens <= DIRECT_TOKENS)
        direct_functions[l->matrix.type][l->tokens - 1](l, inputs, tile, end);
    else
        panel_tiles(l, inputs, tile, end, scratch);
}

/* Of a worker, before the rows of inputs: panels and sums. */
#ifdef SB_AMX
#define SCRATCH_FLOATS                                                                                                 \
    (PANEL_FLOATS * sizeof(float) > sizeof(amx_scratch) ? PANEL_FLOATS : sizeof(amx_scratch) / sizeof(float))
#else
#define SCRATCH_FLOATS PANEL_FLOATS
#endif

static size_t linear_scratch(int64_t cols) {
    return (SCRATCH_FLOATS + (size_t)(DIRECT_TOKENS * cols)) * sizeof(float);
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

static void linear_int8(const sb_linear *l, sb_pool *pool, float *scratch) {
    const sb_input_block *inputs = prepare_int8(l, pool, scratch + SCRATCH_FLOATS);
    int64_t tile, end;
#ifdef SB_AMX
    if (l->tokens >= AMX_TOKENS) {
        amx_start(l->tokens);
        while (claim_tiles(l, pool, &tile, &end)) amx_tiles(l, inputs, tile, end, (amx_scratch *)scratch);
        _tile_release(); /* or the system would save the tiles whenever it interrupts this thread */
        return;
    }
#endif
    while (claim_tiles(l, pool, &tile, &end)) run_int8_tiles(l, inputs, tile, end);
}

static void linear(const sb_linear *l, sb_pool *pool, int worker) {
    if (l->tokens == 0) return;
    float *scratch = sb_pool_scratch(pool, worker);
    if (l->matrix.int8) {
        linear_int8(l, pool, scratch);
    } else {
        const float *inputs = prepare_inputs(l, pool, scratch + PANEL_FLOATS);
        for (int64_t tile, end; claim_tiles(l, pool, &tile, &end);) run_tiles(l, inputs, tile, end, scratch);
    }
}

#endif
