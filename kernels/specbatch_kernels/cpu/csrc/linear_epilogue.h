/* What happens to the sums of a tile: bias, then store, add to what is there, or gate. */
#ifndef SB_LINEAR_EPILOGUE_H
#define SB_LINEAR_EPILOGUE_H

#include "linear.h"
#include "simd.h"

/* x * sigmoid(x). */
SB_INLINE v8 v8_silu(v8 x) { return x / (v8_set1(1.0f) + v8_exp(-x)); }

/* The first `count` lanes of eight; count is 1 to 8, and 8 almost always. */
SB_INLINE v8 load_lanes(const float *p, int64_t count) {
    return count == 8 ? v8_load(p) : v8_load_first(p, count);
}
SB_INLINE void store_lanes(float *p, v8 x, int64_t count) {
    if (count == 8) {
        v8_store(p, x);
        return;
    }
    for (int i = 0; i < count; i++) p[i] = x[i];
}

/* Lanes of the eight rows from `row` on that exist in a matrix of `rows` rows. */
static int64_t lanes_left(int64_t row, int64_t rows) {
    int64_t left = rows - row;
    return left < 0 ? 0 : left < 8 ? left : 8;
}

/* The rows of a tile, one token after the other: outputs of different tokens are far apart. */
SB_INLINE void finish_rows(const sb_linear *l, int64_t tile, int64_t first, int64_t tokens, const float *sums) {
    const int64_t rows = l->matrix.rows, row = tile * SB_TILE;
    const int64_t lanes[2] = {lanes_left(row, rows), lanes_left(row + 8, rows)};
    const int accumulate = l->epilogue == SB_ACCUMULATE;
    const float *bias = l->matrix.bias ? l->matrix.bias + row : NULL;
    v8 biases[2] = {v8_zero(), v8_zero()};
    SB_FOR(2, h, 2, if (bias && lanes[h]) biases[h] = load_lanes(bias + 8 * h, lanes[h]);)
    float *out = l->out + first * rows + row;
    for (int64_t t = 0; t < tokens; t++, out += rows, sums += SB_TILE)
        SB_FOR(2, h, 2, if (lanes[h]) {
            v8 y = v8_load(sums + 8 * h) + biases[h];
            store_lanes(out + 8 * h, accumulate ? load_lanes(out + 8 * h, lanes[h]) + y : y, lanes[h]);
        })
}

SB_INLINE void finish_gate(const sb_linear *l, int64_t tile, int64_t first, int64_t tokens, const float *sums) {
    const int64_t width = l->matrix.rows / 2, row = tile * (SB_TILE / 2), lanes = lanes_left(row, width);
    float *out = l->out + first * width + row;
    for (int64_t t = 0; t < tokens; t++, out += width, sums += SB_TILE)
        store_lanes(out, v8_silu(v8_load(sums)) * v8_load(sums + 8), lanes);
}

/* Takes the finished sums [tokens, SB_TILE] of one tile for the tokens from `first` on. */
SB_OUTLINE void finish_tile(const sb_linear *l, int64_t tile, int64_t first, int64_t tokens, const float *sums) {
    if (l->epilogue == SB_GATE) {
        finish_gate(l, tile, first, tokens, sums);
        return;
    }
    finish_rows(l, tile, first, tokens, sums);
}

/* Where finish_tile will write.  The tokens' outputs are far apart, often by a multiple of 4 KiB, and
 * waiting for each of them there would take as long as computing several. */
static void fetch_outputs(const sb_linear *l, int64_t tile, int64_t first, int64_t tokens) {
    int64_t shrink = l->epilogue == SB_GATE ? 2 : 1, width = l->matrix.rows / shrink;
    float *out = l->out + first * width + tile * SB_TILE / shrink;
    for (int64_t t = 0; t < tokens; t++, out += width) __builtin_prefetch(out, 1, 3);
}

#endif
