/* A few tokens: every weight is decoded in a register and used at once. */
#ifndef SB_LINEAR_DIRECT_H
#define SB_LINEAR_DIRECT_H

#include "linear_decode.h"
#include "linear_epilogue.h"
#include "linear_inputs.h"

/* How far ahead weights are fetched from memory. */
#define FETCH_BLOCKS 8

/* One vector of lanes of each part of `tiles` tiles (`stride` bytes apart) for `tokens` tokens, both
 * constants once inlined.  What the compiler would like to keep in registers there are not enough of
 * (quants; scales, unless sums leave room) is hidden from it and read again: the first-level cache has
 * nothing else to do. */
SB_INLINE void direct_lanes(vt *sum, const uint8_t *quants, int64_t stride, const part_scales *scales,
                            const float *inputs, const int tokens, const int tiles, const sb_type type) {
    /* Of every vector of rows: its sums, three scales, quants and weight; then an input and two masks. */
    const int scales_stay = VT_PARTS * tiles * (tokens + 5) + 3 <= REGISTERS;
    SB_FOR(4, pair, lane_inputs(type) / 2, {
        vtu lanes[4];
        SB_OPAQUE(quants);
        SB_FOR(4, u, VT_PARTS * tiles, {
            lanes[u] = shift_to_pair(vtu_load(quants + part_at(u, stride)), pair, type);
        })
        SB_FOR(2, second, 2, {
            vt w[4];
            if (!scales_stay) SB_OPAQUE(scales);
            SB_FOR(4, u, VT_PARTS * tiles, w[u] = decode(lanes[u], &scales[u], second, type);)
            SB_FOR(TOKENS, t, tokens, {
                vt input = vt_set1(inputs[(2 * pair + second) * tokens + t]);
                SB_FOR(4, u, VT_PARTS * tiles, sum[u * tokens + t] = vt_fma(input, w[u], sum[u * tokens + t]);)
            })
        })
    })
}

SB_INLINE void direct_blocks(vt *sum, const uint8_t *data, int64_t stride, int64_t cols, const float *inputs,
                             const int tokens, const int tiles, const sb_type type) {
    for (int64_t k = 0; k < cols; k += SB_QBLOCK, data += sb_block_bytes(type)) {
        part_scales scales[4];
        int64_t ahead = FETCH_BLOCKS * sb_block_bytes(type);
        if (k + FETCH_BLOCKS * SB_QBLOCK >= cols) ahead += (tiles - 1) * stride; /* the same place in the next pair */
        SB_FOR(2, u, tiles, SB_FETCH(data + u * stride + ahead, sb_block_bytes(type));)
        SB_FOR(4, u, VT_PARTS * tiles, load_scales(&scales[u], data + u / VT_PARTS * stride, u % VT_PARTS, type);)
        const uint8_t *quants = block_quants(data, type);
        for (int g = 0; g < SB_QBLOCK / lane_inputs(type); g++, quants += 64, inputs += lane_inputs(type) * tokens)
            direct_lanes(sum, quants, stride, scales, inputs, tokens, tiles, type);
    }
}

SB_INLINE void direct_float(vt *sum, const uint8_t *data, int64_t stride, int64_t cols, const float *inputs,
                            const int tokens, const int tiles) {
    for (int64_t k = 0; k < cols; k++, data += SB_TILE * sizeof(float), inputs += tokens) {
        vt w[4];
        SB_FOR(4, u, VT_PARTS * tiles, w[u] = (vt)vtu_load(data + part_at(u, stride));)
        SB_FOR(TOKENS, t, tokens, {
            vt input = vt_set1(inputs[t]);
            SB_FOR(4, u, VT_PARTS * tiles, sum[u * tokens + t] = vt_fma(input, w[u], sum[u * tokens + t]);)
        })
    }
}

SB_INLINE void direct(const sb_linear *l, const float *inputs, int64_t tile, const int tokens, const int tiles,
                      const sb_type type) {
    vt sum[SUMS];
    int64_t cols = l->matrix.cols, stride = sb_tile_bytes(type, cols);
    const uint8_t *data = l->matrix.data + tile * stride;
    SB_FOR(SUMS, i, VT_PARTS * tiles * tokens, sum[i] = vt_zero();)
    if (type == SB_F32)
        direct_float(sum, data, stride, cols, inputs, tokens, tiles);
    else
        direct_blocks(sum, data, stride, cols, inputs, tokens, tiles, type);
    SB_FOR(2, u, tiles, {
        float sums[DIRECT_TOKENS * SB_TILE];
        SB_FOR(TOKENS, t, tokens, SB_FOR(2, h, VT_PARTS, {
            vt_store(sums + t * SB_TILE + h * VT_LANES, sum[(VT_PARTS * u + h) * tokens + t]);
        }))
        finish_tile(l, tile + u, 0, tokens, sums);
    })
}

/* Two tiles go together where there are sums for both, and for a lone token in any case: the chains of one tile
 * are too few to hide their latency. */
SB_INLINE void direct_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, const int tokens,
                            const sb_type type) {
    if (tokens == 1 || (PANEL_TILES == 2 && tokens <= PANEL_TOKENS))
        for (; tile + 2 <= end; tile += 2) direct(l, inputs, tile, tokens, 2, type);
    for (; tile < end; tile++) direct(l, inputs, tile, tokens, 1, type);
}

/* Each number of tokens and type is a function of its own: together they are more than the compiler
 * can keep in registers well. */
#define SB_DIRECT(tokens, type, name)                                                                                  \
    SB_OUTLINE void direct_##name##_##tokens(const sb_linear *l, const float *inputs, int64_t tile, int64_t end) {     \
        direct_tiles(l, inputs, tile, end, tokens, type);                                                              \
    }
SB_EACH_DIRECT(SB_DIRECT, SB_F32, f32)
SB_EACH_DIRECT(SB_DIRECT, SB_Q4_0, q4_0)
SB_EACH_DIRECT(SB_DIRECT, SB_Q4_1, q4_1)
SB_EACH_DIRECT(SB_DIRECT, SB_Q8_0, q8_0)

typedef void (*direct_function)(const sb_linear *l, const float *inputs, int64_t tile, int64_t end);

#define SB_DIRECT_ENTRY(tokens, name) direct_##name##_##tokens,
static const direct_function direct_functions[SB_TYPES][DIRECT_TOKENS] = {
    [SB_F32] = {SB_EACH_DIRECT(SB_DIRECT_ENTRY, f32)},
    [SB_Q4_0] = {SB_EACH_DIRECT(SB_DIRECT_ENTRY, q4_0)},
    [SB_Q4_1] = {SB_EACH_DIRECT(SB_DIRECT_ENTRY, q4_1)},
    [SB_Q8_0] = {SB_EACH_DIRECT(SB_DIRECT_ENTRY, q8_0)},
};

#endif
