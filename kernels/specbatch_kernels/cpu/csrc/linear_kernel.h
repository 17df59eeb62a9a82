/* The two paths of a linear layer and the choice between them.
 *
 * A few tokens: weights are decoded in registers and used at once.  More tokens: a panel of weights
 * is decoded into the first-level cache and multiplied by all tokens, up to six at a time.
 */
#ifndef SB_LINEAR_KERNEL_H
#define SB_LINEAR_KERNEL_H

#include "kernels.h"
#include "linear_direct.h"
#include "linear_inputs.h"
#include "linear_panel.h"

static void run_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, float *scratch) {
    if (l->tokens <= DIRECT_TOKENS)
        direct_functions[l->matrix.type][l->tokens - 1](l, inputs, tile, end);
    else
        panel_tiles(l, inputs, tile, end, scratch);
}

/* One token's inputs are used where they are. */
static sb_memory linear_memory(int64_t tokens, int64_t cols) {
    return (sb_memory){
        .shared = tokens == 1 ? 0 : (size_t)(tokens * cols) * sizeof(float),
        .per_worker = PANEL_FLOATS * sizeof(float),
    };
}

/* Work is claimed in chunks of even numbers of tiles, several per worker: workers that the system
 * slows down claim fewer. */
static void linear(const sb_linear *l, sb_pool *pool, int worker) {
    if (l->tokens == 0) return;
    const float *inputs = l->x;
    if (l->tokens > 1) {
        inputs = sb_pool_shared(pool);
        pack_inputs(sb_pool_shared(pool), l, pool);
        sb_pool_barrier(pool);
    }
    int64_t tiles = sb_tiles(l->matrix.rows), chunk = tiles / (sb_pool_workers(pool) * 8) / 2 * 2;
    if (chunk < 2) chunk = 2;
    for (int64_t tile; (tile = sb_pool_ticket(pool) * chunk) < tiles;)
        run_tiles(l, inputs, tile, tile + chunk < tiles ? tile + chunk : tiles, sb_pool_scratch(pool, worker));
}

#endif
