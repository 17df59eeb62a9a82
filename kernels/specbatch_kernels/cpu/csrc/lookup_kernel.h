/* Reading along one row or one column: embeddings out of a packed matrix, the largest logit. */
#ifndef SB_LOOKUP_KERNEL_H
#define SB_LOOKUP_KERNEL_H

#include "kernels.h"
#include "linear_decode.h"

/* The lane of one row out of the decoded vectors of a block. */
SB_INLINE void lookup_blocks(float *out, const uint8_t *tile, int row, int64_t cols, const sb_type type) {
    for (int64_t k = 0; k < cols; k += SB_QBLOCK, tile += sb_block_bytes(type)) {
        part_scales scales;
        load_scales(&scales, tile, row / VT_LANES, type);
        const uint8_t *quants = block_quants(tile, type) + row / VT_LANES * (int)sizeof(vt);
        for (int g = 0; g < SB_QBLOCK; g += lane_inputs(type), quants += 64) {
            vtu lanes = vtu_load(quants);
            SB_FOR(8, i, lane_inputs(type), {
                float weights[VT_LANES];
                vt_store(weights, decode(shift_to_pair(lanes, i / 2, type), &scales, i % 2, type));
                out[k + g + i] = weights[row % VT_LANES];
            })
        }
    }
}

static void lookup_row(float *out, const sb_matrix *m, int64_t row) {
    const uint8_t *tile = m->data + row / SB_TILE * sb_tile_bytes(m->type, m->cols);
    int lane = (int)(row % SB_TILE);
    if (m->type == SB_Q4_0) lookup_blocks(out, tile, lane, m->cols, SB_Q4_0);
    if (m->type == SB_Q4_1) lookup_blocks(out, tile, lane, m->cols, SB_Q4_1);
    if (m->type == SB_Q8_0) lookup_blocks(out, tile, lane, m->cols, SB_Q8_0);
    for (int64_t k = 0; m->type == SB_F32 && k < m->cols; k++) out[k] = ((const float *)tile)[k * SB_TILE + lane];
}

static void lookup(const sb_lookup *l, sb_pool *pool) {
    for (int64_t t; (t = sb_pool_ticket(pool)) < l->tokens;)
        lookup_row(l->out + t * l->matrix.cols, &l->matrix, l->index[t]);
}

/* First index of the largest element: the largest value first, then where it is. */
static int64_t argmax_row(const float *x, int64_t count) {
    v8 top = v8_set1(-INFINITY);
    v8i strange = v8i_set1(0);
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        v8 v = v8_load(x + k);
        strange |= v != v;
        top = v8_max(v, top);
    }
    float best = v8_top(top);
    int odd = 0;
    for (int i = 0; i < 8; i++) odd |= strange[i];
    for (; k < count; k++) {
        odd |= x[k] != x[k];
        best = x[k] > best ? x[k] : best;
    }
    if (odd) return -1;
    for (k = 0; k < count && x[k] != best;) k++;
    return k;
}

static void argmax(const sb_argmax *a, sb_pool *pool) {
    for (int64_t t; (t = sb_pool_ticket(pool)) < a->tokens;) a->out[t] = argmax_row(a->x + t * a->width, a->width);
}

#endif
