/* What happens to the sums of a tile: bias, then store, add to what is there, or gate. */
#ifndef SB_LINEAR_EPILOGUE_H
#define SB_LINEAR_EPILOGUE_H

#include "linear.h"
#include "simd.h"

/* x * sigmoid(x). */
SB_INLINE v8 v8_silu(v8 x) { return x / (v8_set1(1.0f) + v8_exp(-x)); }

SB_INLINE void store_first(float *out, v8 x, int64_t count) {
    if (count >= 8) {
        v8_store(out, x);
        return;
    }
    for (int i = 0; i < count; i++) out[i] = x[i];
}

/* Eight outputs of one token, `count` of them inside the matrix. */
SB_INLINE void finish_half(const sb_linear *l, int64_t row, int64_t token, v8 y) {
    int64_t count = l->matrix.rows - row;
    if (count <= 0) return;
    float *out = l->out + token * l->matrix.rows + row;
    if (l->matrix.bias)
        y = y + (count >= 8 ? v8_load(l->matrix.bias + row) : v8_load_first(l->matrix.bias + row, count));
    if (l->epilogue == SB_ACCUMULATE) y = (count >= 8 ? v8_load(out) : v8_load_first(out, count)) + y;
    store_first(out, y, count);
}

SB_INLINE void finish_tile(const sb_linear *l, int64_t tile, int64_t token, v8 low, v8 high) {
    if (l->epilogue == SB_GATE) {
        int64_t half = l->matrix.rows / 2, at = tile * (SB_TILE / 2);
        store_first(l->out + token * half + at, v8_silu(low) * high, half - at);
        return;
    }
    finish_half(l, tile * SB_TILE, token, low);
    finish_half(l, tile * SB_TILE + 8, token, high);
}

#endif
