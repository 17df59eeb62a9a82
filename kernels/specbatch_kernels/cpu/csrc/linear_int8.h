/* Quantised weights times inputs of eight bits: integers within a block, float32 from block to block.
 *
 * sum = fma(dot * weight scale, input scale, sum), and for Q4_1 then fma(minimum, sum of inputs, sum), block after
 * block: a dot is exact, so that instruction sets differ only where their fma does.
 *
 * A lane of weights holds a quad of them as unsigned bytes: what the 32-bit lanes of an 8-bit matrix are, and
 * what the even and the odd nibbles of those of a 4-bit matrix are.
 */
#ifndef SB_LINEAR_INT8_H
#define SB_LINEAR_INT8_H

#include "linear_decode.h"
#include "linear_epilogue.h"
#include "linear_int8_inputs.h"

/* Sums of products while a block lasts: start_dots, dot_quad for every quad, end_dots. */
#if defined(SB_AVX512)
typedef vtu vt_dots;
SB_INLINE vt_dots start_dots(const sb_input_block *x) { return (vt_dots)_mm512_set1_epi32(x->offset); }
SB_INLINE vt_dots dot_quad(vt_dots dots, vtu w, sb_quad x, const sb_type type) {
    (void)type;
    return (vt_dots)_mm512_dpbusd_epi32((__m512i)dots, (__m512i)w, _mm512_set1_epi32(x));
}
SB_INLINE vt end_dots(vt_dots dots, const sb_input_block *x, const sb_type type) {
    (void)x, (void)type;
    return vt_float(dots);
}
#elif defined(SB_AVX2)
/* Sums of two products in 16 bits: a block of 4-bit weights fits, 8 * 2 * 15 * 127 = 30480.  8-bit weights do not;
 * each quad of them is taken signed, its signs given to the inputs, and added up in 32 bits at once. */
typedef vtu vt_dots;
SB_INLINE vt_dots start_dots(const sb_input_block *x) {
    (void)x;
    return (vt_dots){0};
}
SB_INLINE vt_dots dot_quad(vt_dots dots, vtu w, sb_quad x, const sb_type type) {
    const __m256i ones = _mm256_set1_epi16(1);
    if (type != SB_Q8_0) {
        __m256i sum = _mm256_add_epi16((__m256i)dots, _mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(x)));
        __asm__("" : "+x"(sum)); /* the compiler would keep all products and add them up as a tree */
        return (vt_dots)sum;
    }
    __m256i weights = _mm256_xor_si256((__m256i)w, _mm256_set1_epi32((int)0x80808080u));
    __m256i inputs = _mm256_sign_epi8(_mm256_set1_epi32(x), weights);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), inputs);
    return (vt_dots)_mm256_add_epi32((__m256i)dots, _mm256_madd_epi16(pairs, ones));
}
SB_INLINE vt end_dots(vt_dots dots, const sb_input_block *x, const sb_type type) {
    if (type == SB_Q8_0) return vt_float(dots);
    __m256i quads = _mm256_madd_epi16((__m256i)dots, _mm256_set1_epi16(1));
    return vt_float((vtu)_mm256_add_epi32(quads, _mm256_set1_epi32(x->offset)));
}
#else
/* In float32: whole numbers under 2^24. */
typedef vt vt_dots;
SB_INLINE vt_dots start_dots(const sb_input_block *x) { return vt_set1((float)x->offset); }
SB_INLINE vt_dots dot_quad(vt_dots dots, vtu w, sb_quad x, const sb_type type) {
    (void)type;
    SB_FOR(4, i, 4, {
        int8_t input = (int8_t)((uint32_t)x >> 8 * i);
        dots = dots + vt_float(w >> 8 * i & 0xFFu) * vt_set1((float)input);
    })
    return dots;
}
SB_INLINE vt end_dots(vt_dots dots, const sb_input_block *x, const sb_type type) {
    (void)x, (void)type;
    return dots;
}
#endif

/* Quad 0 or 1 of what a vector of lanes holds: an 8-bit matrix has one in it. */
SB_INLINE vtu weight_quad(vtu lanes, const int second, const sb_type type) {
    if (type == SB_Q8_0) return lanes;
    return (second ? lanes >> 4u : lanes) & 0x0F0F0F0Fu;
}

/* Adds the dots of a block to a sum.  The order of the operations is part of the result. */
SB_INLINE vt add_dots(vt sum, vt dots, vt scale, vt minimum, const sb_input_block *x, const sb_type type) {
    vt y = vt_fma(dots * scale, vt_set1(x->scale), sum);
    return type == SB_Q4_1 ? vt_fma(minimum, vt_set1(x->sum), y) : y;
}

/* Vectors that go together through a block: all of them where the registers hold their dots beside the sums. */
SB_INLINE int int8_together(const int tokens, const int vectors) {
    return 2 * vectors * tokens + vectors + 2 <= REGISTERS ? vectors : 1;
}

/* One block for `tokens` tokens and some of its vectors, from number `from` on; tiles lie `stride` bytes apart.
 * sum[vector * tokens + token]. */
SB_INLINE void int8_vectors(vt *sum, const uint8_t *block, int64_t stride, const sb_input_block *x, const int tokens,
                            const int from, const int vectors, const sb_type type) {
    const int per_lane = type == SB_Q8_0 ? 1 : 2;
    const uint8_t *quants = block_quants(block, type);
    vt_dots dots[SUMS];
    if (from > 0) SB_OPAQUE(x); /* quads are read again rather than kept on the stack for the next vectors */
    SB_FOR(4, u, vectors, SB_FOR(TOKENS, t, tokens, dots[u * tokens + t] = start_dots(x + t);))
    SB_FOR(8, g, QUADS / per_lane, {
        vtu lanes[4];
        SB_FOR(4, u, vectors, lanes[u] = vtu_load(quants + 64 * g + part_at(from + u, stride));)
        SB_FOR(2, second, per_lane, {
            vtu w[4];
            SB_FOR(4, u, vectors, w[u] = weight_quad(lanes[u], second, type);)
            SB_FOR(TOKENS, t, tokens, SB_FOR(4, u, vectors, {
                dots[u * tokens + t] = dot_quad(dots[u * tokens + t], w[u], x[t].quads[per_lane * g + second], type);
            }))
        })
    })
    SB_FOR(4, u, vectors, {
        const uint8_t *tile = block + (from + u) / VT_PARTS * stride;
        const uint8_t *halves = tile + (from + u) % VT_PARTS * VT_LANES * (int)sizeof(uint16_t);
        const vt scale = vt_load_half(halves);
        const vt minimum = type == SB_Q4_1 ? vt_load_half(halves + 32) : vt_zero();
        SB_FOR(TOKENS, t, tokens, {
            const vt y = end_dots(dots[u * tokens + t], x + t, type);
            sum[(from + u) * tokens + t] = add_dots(sum[(from + u) * tokens + t], y, scale, minimum, x + t, type);
        })
    })
}

SB_INLINE void int8_tiles(const sb_linear *l, const sb_input_block *x, int64_t tile, int64_t first, const int tokens,
                          const int tiles, const sb_type type) {
    vt sum[SUMS];
    const int64_t cols = l->matrix.cols, stride = sb_tile_bytes(type, cols);
    const uint8_t *data = l->matrix.data + tile * stride;
    SB_FOR(SUMS, i, VT_PARTS * tiles * tokens, sum[i] = vt_zero();)
    for (int64_t k = 0; k < cols; k += SB_QBLOCK, data += sb_block_bytes(type), x += tokens) {
        int64_t ahead = FETCH_BLOCKS * sb_block_bytes(type);
        if (k + FETCH_BLOCKS * SB_QBLOCK >= cols) ahead += (tiles - 1) * stride; /* the same place in the next pair */
        SB_FOR(2, u, tiles, SB_FETCH(data + u * stride + ahead, sb_block_bytes(type));)
        const int together = int8_together(tokens, VT_PARTS * tiles);
        SB_FOR(4, u, VT_PARTS * tiles / together, {
            int8_vectors(sum, data, stride, x, tokens, u * together, together, type);
        })
    }
    SB_FOR(2, u, tiles, {
        float sums[PANEL_TOKENS * SB_TILE];
        SB_FOR(TOKENS, t, tokens, SB_FOR(2, h, VT_PARTS, {
            vt_store(sums + t * SB_TILE + h * VT_LANES, sum[(VT_PARTS * u + h) * tokens + t]);
        }))
        finish_tile(l, tile + u, first, tokens, sums);
    })
}

/* Tiles that go together: as many as there are sums for; dots need as many. */
#define INT8_TILES(tokens) (2 * VT_PARTS * (tokens) <= SUMS / 2 || (tokens) == 1 ? 2 : 1)

#define SB_INT8(tokens, type, name)                                                                                    \
    SB_OUTLINE void int8_##name##_##tokens(const sb_linear *l, const sb_input_block *x, int64_t tile, int64_t end,     \
                                           int64_t first) {                                                            \
        const int together = INT8_TILES(tokens);                                                                       \
        for (; tile + together <= end; tile += together) int8_tiles(l, x, tile, first, tokens, together, type);        \
        for (; together > 1 && tile < end; tile++) int8_tiles(l, x, tile, first, tokens, 1, type);                     \
    }
SB_EACH_PANEL(SB_INT8, SB_Q4_0, q4_0)
SB_EACH_PANEL(SB_INT8, SB_Q4_1, q4_1)
SB_EACH_PANEL(SB_INT8, SB_Q8_0, q8_0)

typedef void (*int8_function)(const sb_linear *l, const sb_input_block *x, int64_t tile, int64_t end, int64_t first);

#define SB_INT8_ENTRY(tokens, name) int8_##name##_##tokens,
static const int8_function int8_functions[SB_TYPES][PANEL_TOKENS] = {
    [SB_Q4_0] = {SB_EACH_PANEL(SB_INT8_ENTRY, q4_0)},
    [SB_Q4_1] = {SB_EACH_PANEL(SB_INT8_ENTRY, q4_1)},
    [SB_Q8_0] = {SB_EACH_PANEL(SB_INT8_ENTRY, q8_0)},
};

/* Tiles [tile, end) for every token, a pair of tiles at a time: they stay in the first-level cache while the groups
 * of tokens pass by. */
static void run_int8_tiles(const sb_linear *l, const sb_input_block *x, int64_t tile, int64_t end) {
    const int64_t groups = int8_groups(l->tokens), blocks = l->matrix.cols / SB_QBLOCK;
    const int64_t together = groups == 1 ? end - tile : 2;
    for (; tile < end; tile += together) {
        int64_t last = tile + together < end ? tile + together : end;
        for (int64_t g = 0; g < groups; g++) {
            int64_t first = int8_group_start(l->tokens, g), count = int8_group_start(l->tokens, g + 1) - first;
            int8_functions[l->matrix.type][count - 1](l, x + first * blocks, tile, last, first);
        }
    }
}

#endif
