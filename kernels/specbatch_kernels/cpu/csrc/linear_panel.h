/* Many tokens: a panel of weights is decoded into the first-level cache and used by all tokens. */
#ifndef SB_LINEAR_PANEL_H
#define SB_LINEAR_PANEL_H

#include "linear_decode.h"
#include "linear_epilogue.h"
#include "linear_inputs.h"

#define PANEL_INPUTS 256
/* More tokens than this go in several rounds, so that their sums stay near. */
#define ROUND_GROUPS 16
/* Scratch of one worker: the panel [PANEL_INPUTS, SB_TILE], then the sums of a round, [tokens, SB_TILE]. */
#define PANEL_FLOATS ((PANEL_INPUTS + ROUND_GROUPS * PANEL_TOKENS) * SB_TILE)

/* Decodes blocks [from, to) of a tile into panel[input][row]. */
SB_INLINE void decode_panel(float *panel, const uint8_t *tile, int64_t from, int64_t to, const sb_type type) {
    const uint8_t *block = tile + from * sb_block_bytes(type);
    /* The next panel lies behind this one and is fetched while this one is used. */
    const int64_t ahead = (to - from) * sb_block_bytes(type);
    for (int64_t b = from; b < to; b++, block += sb_block_bytes(type)) {
        SB_FETCH(block + ahead, sb_block_bytes(type));
        half_scales scales[2];
        SB_FOR(2, h, 2, load_scales(&scales[h], block, h, type);)
        const uint8_t *quants = block_quants(block, type);
        for (int k = 0; k < SB_QBLOCK; k += lane_inputs(type), quants += 64)
            SB_FOR(2, h, 2, {
                v8u lanes = v8u_load(quants + 32 * h);
                SB_FOR(8, i, lane_inputs(type),
                       v8_store(panel + SB_TILE * (k + i) + 8 * h,
                                decode(shift_to_pair(lanes, i / 2, type), &scales[h], i % 2, type));)
            })
        panel += SB_TILE * SB_QBLOCK;
    }
}

/* Continues (or starts) the sums of `tokens` tokens (a constant once inlined) with some inputs. */
SB_INLINE void panel_tile(float *sums, const float *panel, const float *inputs, int64_t count, int start,
                          const int tokens) {
    v8 sum[2 * PANEL_TOKENS];
    SB_FOR(12, i, 2 * tokens, sum[i] = start ? v8_zero() : v8_load(sums + 8 * i);)
    for (int64_t k = 0; k < count; k++, panel += SB_TILE, inputs += tokens) {
        v8 low = v8_load(panel), high = v8_load(panel + 8);
        SB_FOR(6, t, tokens, {
            v8 input = v8_set1(inputs[t]);
            sum[2 * t] = v8_fma(input, low, sum[2 * t]);
            sum[2 * t + 1] = v8_fma(input, high, sum[2 * t + 1]);
        })
    }
    SB_FOR(12, i, 2 * tokens, v8_store(sums + 8 * i, sum[i]);)
}

SB_OUTLINE void panel_3(float *sums, const float *panel, const float *inputs, int64_t count, int start) {
    panel_tile(sums, panel, inputs, count, start, 3);
}
SB_OUTLINE void panel_4(float *sums, const float *panel, const float *inputs, int64_t count, int start) {
    panel_tile(sums, panel, inputs, count, start, 4);
}
SB_OUTLINE void panel_5(float *sums, const float *panel, const float *inputs, int64_t count, int start) {
    panel_tile(sums, panel, inputs, count, start, 5);
}
SB_OUTLINE void panel_6(float *sums, const float *panel, const float *inputs, int64_t count, int start) {
    panel_tile(sums, panel, inputs, count, start, 6);
}

/* Groups have 3 to 6 tokens once there are more than DIRECT_TOKENS. */
static void panel_group(float *sums, const float *panel, const float *inputs, int64_t count, int start,
                        int64_t tokens) {
    if (tokens == 3)
        panel_3(sums, panel, inputs, count, start);
    else if (tokens == 4)
        panel_4(sums, panel, inputs, count, start);
    else if (tokens == 5)
        panel_5(sums, panel, inputs, count, start);
    else
        panel_6(sums, panel, inputs, count, start);
}

SB_OUTLINE void decode_q4_0(float *panel, const uint8_t *tile, int64_t from, int64_t to) {
    decode_panel(panel, tile, from, to, SB_Q4_0);
}
SB_OUTLINE void decode_q4_1(float *panel, const uint8_t *tile, int64_t from, int64_t to) {
    decode_panel(panel, tile, from, to, SB_Q4_1);
}
SB_OUTLINE void decode_q8_0(float *panel, const uint8_t *tile, int64_t from, int64_t to) {
    decode_panel(panel, tile, from, to, SB_Q8_0);
}

/* Blocks [from, to) of a tile as floats: decoded into `scratch`, or where they are. */
static const float *panel_of(float *scratch, const uint8_t *tile, int64_t from, int64_t to, sb_type type) {
    if (type == SB_F32) return (const float *)tile + from * SB_TILE;
    if (type == SB_Q4_0) decode_q4_0(scratch, tile, from, to);
    if (type == SB_Q4_1) decode_q4_1(scratch, tile, from, to);
    if (type == SB_Q8_0) decode_q8_0(scratch, tile, from, to);
    return scratch;
}

/* One tile for the tokens of the groups [from, to). */
static void panel_round(const sb_linear *l, const float *inputs, int64_t tile, int64_t from, int64_t to,
                        float *scratch) {
    sb_type type = l->matrix.type;
    int64_t cols = l->matrix.cols, unit = type == SB_F32 ? 1 : SB_QBLOCK, blocks = cols / unit;
    int64_t parts = (cols + PANEL_INPUTS - 1) / PANEL_INPUTS, first = group_start(l->tokens, from);
    const uint8_t *data = l->matrix.data + tile * sb_tile_bytes(type, cols);
    int64_t tokens = group_start(l->tokens, to) - first;
    float *sums = scratch + PANEL_INPUTS * SB_TILE;
    fetch_outputs(l, tile, first, tokens);
    for (int64_t p = 0; p < parts; p++) {
        int64_t begin = blocks * p / parts, end = blocks * (p + 1) / parts;
        const float *panel = panel_of(scratch, data, begin, end, type);
        for (int64_t g = from; g < to; g++) {
            int64_t token = group_start(l->tokens, g), count = group_start(l->tokens, g + 1) - token;
            panel_group(sums + (token - first) * SB_TILE, panel, inputs + token * cols + begin * unit * count,
                        (end - begin) * unit, p == 0, count);
        }
    }
    finish_tile(l, tile, first, tokens, sums);
}

static void panel_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, float *scratch) {
    int64_t groups = num_groups(l->tokens), rounds = (groups + ROUND_GROUPS - 1) / ROUND_GROUPS;
    for (; tile < end; tile++)
        for (int64_t r = 0; r < rounds; r++)
            panel_round(l, inputs, tile, groups * r / rounds, groups * (r + 1) / rounds, scratch);
}

#endif
