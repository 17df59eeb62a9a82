/* Inputs of eight bits: each block of SB_QBLOCK inputs of a token is rounded to whole multiples of its own
 * scale, 1/127 of its largest magnitude.  What is multiplied are then small integers, whose sums are exact in
 * any order (Jacob et al. 2018, section 2; the blocks are those of llama.cpp's Q8_0).
 *
 * Tokens that are multiplied together form a group; groups follow each other, [blocks, tokens of the group].
 */
#ifndef SB_LINEAR_INT8_INPUTS_H
#define SB_LINEAR_INT8_INPUTS_H

#include "linear_inputs.h"

/* Four inputs as bytes, first input lowest. */
typedef int32_t sb_quad;

#define QUADS (SB_QBLOCK / 4)

/* One block of inputs of one token: a cache line, so that workers never write into each other's. */
typedef struct {
    sb_quad quads[QUADS]; /* in the order of the weights' quads, see linear_int8.h */
    float scale;
    float sum;      /* scale times the sum of the quads: what a weight's minimum is multiplied with (Q4_1) */
    int32_t offset; /* what the weights' own zero comes to in a sum of products (Q4_0, Q8_0) */
    int32_t unused[5];
} sb_input_block;

/* Magnitudes under this are nothing: their scale could not be inverted. */
#define FAINTEST 1e-30f

static int64_t int8_groups(int64_t tokens) {
#ifdef SB_AMX
    if (tokens >= AMX_TOKENS) return (tokens + AMX_GROUP - 1) / AMX_GROUP;
#endif
    return (tokens + PANEL_TOKENS - 1) / PANEL_TOKENS;
}

/* Sizes differ by one at most. */
static int64_t int8_group_start(int64_t tokens, int64_t group) { return tokens * group / int8_groups(tokens); }

/* The last group that does not start behind a token. */
static int64_t int8_group_of(int64_t tokens, int64_t token) { return ((token + 1) * int8_groups(tokens) - 1) / tokens; }

/* Bytes of 32 whole numbers between -127 and 127.  Of each eight inputs of 4-bit weights the even ones make a
 * quad and the odd ones the next: that is how the lanes of the weights come apart. */
#ifdef SB_AVX2
SB_INLINE void pack_quads(sb_quad *quads, const v8i *whole, const sb_type type) {
    const __m256i order = type == SB_Q8_0 ? _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) /* as they are */
                                          : _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    __m256i x[4];
    SB_FOR(4, i, 4, x[i] = _mm256_permutevar8x32_epi32((__m256i)whole[i], order);)
    /* Packing works on halves of vectors: the first quads of all eights, then the second ones. */
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)quads, bytes);
}
#else
SB_INLINE void pack_quads(sb_quad *quads, const v8i *whole, const sb_type type) {
    for (int q = 0; q < QUADS; q++) {
        uint32_t bytes = 0;
        for (int i = 0; i < 4; i++) {
            int input = type == SB_Q8_0 ? 4 * q + i : 4 * (q & ~1) + 2 * i + (q & 1);
            bytes |= ((uint32_t)whole[input / 8][input % 8] & 0xFFu) << 8 * i;
        }
        quads[q] = (sb_quad)bytes;
    }
}
#endif

/* What is not a number, or infinite, makes the scale so, and with it every output of the token. */
SB_INLINE void quantise_block(sb_input_block *block, const float *x, const sb_type type) {
    v8 value[4], top = v8_zero(), poison = v8_zero();
    v8i whole[4], sum = v8i_set1(0);
    SB_FOR(4, i, 4, {
        value[i] = v8_load(x + 8 * i);
        top = v8_max((v8)((v8i)value[i] & v8i_set1(0x7FFFFFFF)), top);
        poison = poison + (value[i] - value[i]);
    })
    float largest = v8_top(top);
    if (!(largest >= FAINTEST)) largest = 0.0f;
    const v8 inverse = v8_set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    SB_FOR(4, i, 4, {
        whole[i] = v8_round(value[i] * inverse);
        sum = sum + whole[i];
    })
    pack_quads(block->quads, whole, type);
    sum = sum + SB_HALVES(sum);
    sum = sum + SB_PAIRS(sum);
    sum = sum + SB_NEIGHBOURS(sum);
    block->scale = largest * (1.0f / 127.0f) + v8_sum(poison);
    block->sum = block->scale * (float)sum[0];
    block->offset = (type == SB_Q8_0 ? -128 : type == SB_Q4_0 ? -8 : 0) * sum[0];
}

/* The blocks of one token, `stride` apart. */
static void quantise_row(sb_input_block *to, int64_t stride, const float *x, int64_t cols, const sb_type type) {
    for (int64_t k = 0; k < cols; k += SB_QBLOCK, to += stride)
        if (type == SB_Q8_0)
            quantise_block(to, x + k, SB_Q8_0);
        else
            quantise_block(to, x + k, type == SB_Q4_0 ? SB_Q4_0 : SB_Q4_1);
}

/* As prepare_inputs.  `scratch` has room for a row and its blocks. */
static const sb_input_block *prepare_int8(const sb_linear *l, sb_pool *pool, float *scratch) {
    const int64_t cols = l->matrix.cols, blocks = cols / SB_QBLOCK;
    if (l->tokens == 1) {
        sb_input_block *own = (sb_input_block *)(scratch + cols);
        quantise_row(own, 1, input_row(l, 0, scratch), cols, l->matrix.type);
        return own;
    }
    sb_input_block *all = (sb_input_block *)l->packed;
    for (int64_t t; (t = sb_pool_ticket(pool)) < l->tokens;) {
        int64_t g = int8_group_of(l->tokens, t);
        int64_t first = int8_group_start(l->tokens, g), count = int8_group_start(l->tokens, g + 1) - first;
        quantise_row(all + first * blocks + t - first, count, input_row(l, t, scratch), cols, l->matrix.type);
    }
    sb_pool_barrier(pool);
    return all;
}

#endif
