/* A few tokens: every weight is decoded in a register and used at once. */
#ifndef SB_LINEAR_DIRECT_H
#define SB_LINEAR_DIRECT_H

#include "linear_decode.h"
#include "linear_epilogue.h"
#include "linear_inputs.h"

/* How far ahead weights are fetched from memory. */
#define FETCH_BLOCKS 8

/* One vector of lanes of 2 * `tiles` halves (of tiles `stride` bytes apart) for `tokens` tokens, both
 * constants once inlined.  What the compiler would like to keep in registers there are not enough of
 * (scales, inputs) is hidden from it and read again: the first-level cache has nothing else to do. */
SB_INLINE void direct_lanes(v8 *sum, const uint8_t *quants, int64_t stride, const half_scales *scales,
                            const float *inputs, const int tokens, const int tiles, const sb_type type) {
    SB_FOR(4, pair, lane_inputs(type) / 2, {
        v8u lanes[4];
        SB_OPAQUE(quants);
        SB_FOR(4, u, 2 * tiles, {
            lanes[u] = shift_to_pair(v8u_load(quants + u / 2 * stride + 32 * (u % 2)), pair, type);
        })
        SB_FOR(2, second, 2, {
            v8 w[4];
            SB_OPAQUE(scales);
            SB_FOR(4, u, 2 * tiles, w[u] = decode(lanes[u], &scales[u], second, type);)
            SB_FOR(6, t, tokens, {
                v8 input = v8_set1(inputs[(2 * pair + second) * tokens + t]);
                SB_FOR(4, u, 2 * tiles, sum[u * tokens + t] = v8_fma(input, w[u], sum[u * tokens + t]);)
            })
        })
    })
}

SB_INLINE void direct_blocks(v8 *sum, const uint8_t *data, int64_t stride, int64_t cols, const float *inputs,
                             const int tokens, const int tiles, const sb_type type) {
    for (int64_t k = 0; k < cols; k += SB_QBLOCK, data += sb_block_bytes(type)) {
        half_scales scales[4];
        int64_t ahead = FETCH_BLOCKS * sb_block_bytes(type);
        if (k + FETCH_BLOCKS * SB_QBLOCK >= cols) ahead += (tiles - 1) * stride; /* the same place in the next pair */
        SB_FOR(2, u, tiles, SB_FETCH(data + u * stride + ahead, sb_block_bytes(type));)
        SB_FOR(4, u, 2 * tiles, load_scales(&scales[u], data + u / 2 * stride, u % 2, type);)
        const uint8_t *quants = block_quants(data, type);
        for (int g = 0; g < SB_QBLOCK / lane_inputs(type); g++, quants += 64, inputs += lane_inputs(type) * tokens)
            direct_lanes(sum, quants, stride, scales, inputs, tokens, tiles, type);
    }
}

SB_INLINE void direct_float(v8 *sum, const uint8_t *data, int64_t stride, int64_t cols, const float *inputs,
                            const int tokens, const int tiles) {
    for (int64_t k = 0; k < cols; k++, data += SB_TILE * sizeof(float), inputs += tokens) {
        v8 w[4];
        SB_FOR(4, u, 2 * tiles, w[u] = (v8)v8u_load(data + u / 2 * stride + 32 * (u % 2));)
        SB_FOR(6, t, tokens, {
            v8 input = v8_set1(inputs[t]);
            SB_FOR(4, u, 2 * tiles, sum[u * tokens + t] = v8_fma(input, w[u], sum[u * tokens + t]);)
        })
    }
}

SB_INLINE void direct(const sb_linear *l, const float *inputs, int64_t tile, const int tokens, const int tiles,
                      const sb_type type) {
    v8 sum[2 * DIRECT_TOKENS];
    int64_t cols = l->matrix.cols, stride = sb_tile_bytes(type, cols);
    const uint8_t *data = l->matrix.data + tile * stride;
    SB_FOR(12, i, 2 * tiles * tokens, sum[i] = v8_zero();)
    if (type == SB_F32)
        direct_float(sum, data, stride, cols, inputs, tokens, tiles);
    else
        direct_blocks(sum, data, stride, cols, inputs, tokens, tiles, type);
    SB_FOR(2, u, tiles, {
        float sums[DIRECT_TOKENS * SB_TILE];
        SB_FOR(6, t, tokens, {
            v8_store(sums + t * SB_TILE, sum[2 * u * tokens + t]);
            v8_store(sums + t * SB_TILE + 8, sum[(2 * u + 1) * tokens + t]);
        })
        finish_tile(l, tile + u, 0, tokens, sums);
    })
}

/* A lone token has two chains per tile, too few to hide their latency: two tiles go together. */
SB_INLINE void direct_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, const int tokens,
                            const sb_type type) {
    if (tokens == 1)
        for (; tile + 2 <= end; tile += 2) direct(l, inputs, tile, tokens, 2, type);
    for (; tile < end; tile++) direct(l, inputs, tile, tokens, 1, type);
}

/* Each number of tokens and type is a function of its own: together they are more than the compiler
 * can keep in registers well. */
#define SB_DIRECT(tokens, type, name)                                                                                  \
    SB_OUTLINE void direct_##name##_##tokens(const sb_linear *l, const float *inputs, int64_t tile, int64_t end) {     \
        direct_tiles(l, inputs, tile, end, tokens, type);                                                              \
    }
#define SB_DIRECT_ALL(type, name)                                                                                      \
    SB_DIRECT(1, type, name)                                                                                           \
    SB_DIRECT(2, type, name)                                                                                           \
    SB_DIRECT(3, type, name)                                                                                           \
    SB_DIRECT(4, type, name)                                                                                           \
    SB_DIRECT(5, type, name)                                                                                           \
    SB_DIRECT(6, type, name)
SB_DIRECT_ALL(SB_F32, f32)
SB_DIRECT_ALL(SB_Q4_0, q4_0)
SB_DIRECT_ALL(SB_Q4_1, q4_1)
SB_DIRECT_ALL(SB_Q8_0, q8_0)

typedef void (*direct_function)(const sb_linear *l, const float *inputs, int64_t tile, int64_t end);

#define SB_DIRECT_ROW(name)                                                                                            \
    {direct_##name##_1, direct_##name##_2, direct_##name##_3, direct_##name##_4, direct_##name##_5, direct_##name##_6}
static const direct_function direct_functions[SB_TYPES][DIRECT_TOKENS] = {
    [SB_F32] = SB_DIRECT_ROW(f32),
    [SB_Q4_0] = SB_DIRECT_ROW(q4_0),
    [SB_Q4_1] = SB_DIRECT_ROW(q4_1),
    [SB_Q8_0] = SB_DIRECT_ROW(q8_0),
};

#endif
