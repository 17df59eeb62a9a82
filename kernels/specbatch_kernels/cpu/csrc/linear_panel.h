/* Many tokens: a panel of weights is decoded into the first-level cache and used by all tokens. */
#ifndef SB_LINEAR_PANEL_H
#define SB_LINEAR_PANEL_H

#include "linear_decode.h"
#include "linear_epilogue.h"
#include "linear_inputs.h"

/* Two panels of 192 inputs are 24 KiB. */
#define PANEL_INPUTS (PANEL_TILES == 1 ? 256 : 192)
/* More tokens than this go in several rounds, so that their sums stay near. */
#define ROUND_TOKENS 96
#define ROUND_GROUPS (ROUND_TOKENS / PANEL_TOKENS)
/* Scratch of one worker: for each tile its panel [PANEL_INPUTS, SB_TILE], then for each the sums of a
 * round, [tokens, SB_TILE]. */
#define PANEL_FLOATS (PANEL_TILES * (PANEL_INPUTS + ROUND_TOKENS) * SB_TILE)

/* Decodes `blocks` blocks into panel[input][row].  The next panel, `ahead` bytes on, is fetched while this one
 * is used. */
SB_INLINE void decode_panel(float *panel, const uint8_t *block, int64_t blocks, int64_t ahead, const sb_type type) {
    for (int64_t b = 0; b < blocks; b++, block += sb_block_bytes(type)) {
        SB_FETCH(block + ahead, sb_block_bytes(type));
        part_scales scales[2];
        SB_FOR(2, h, VT_PARTS, load_scales(&scales[h], block, h, type);)
        const uint8_t *quants = block_quants(block, type);
        for (int k = 0; k < SB_QBLOCK; k += lane_inputs(type), quants += 64)
            SB_FOR(2, h, VT_PARTS, {
                vtu lanes = vtu_load(quants + part_at(h, 0));
                SB_FOR(8, i, lane_inputs(type),
                       vt_store(panel + SB_TILE * (k + i) + VT_LANES * h,
                                decode(shift_to_pair(lanes, i / 2, type), &scales[h], i % 2, type));)
            })
        panel += SB_TILE * SB_QBLOCK;
    }
}

/* The panels of tiles that go together and their sums of one group; further tiles lie a stride of floats on. */
typedef struct {
    const float *panel;
    float *sums;
    int64_t panel_stride, sums_stride;
} panel_place;

/* Continues (or starts) the sums of `tokens` tokens with `count` inputs; tokens and tiles are constants once
 * inlined. */
SB_INLINE void panel_group(const panel_place *at, const float *inputs, int64_t count, int start, const int tokens,
                           const int tiles) {
    vt sum[SUMS];
    const float *panel = at->panel;
    const int64_t stride = at->panel_stride;
    SB_FOR(2, u, VT_PARTS * tiles, {
        const float *sums = at->sums + u / VT_PARTS * at->sums_stride + u % VT_PARTS * VT_LANES;
        SB_FOR(TOKENS, t, tokens, sum[u * tokens + t] = start ? vt_zero() : vt_load(sums + SB_TILE * t);)
    })
    for (int64_t k = 0; k < count; k++, panel += SB_TILE, inputs += tokens) {
        vt w[2];
        SB_FOR(2, u, VT_PARTS * tiles, w[u] = vt_load(panel + u / VT_PARTS * stride + u % VT_PARTS * VT_LANES);)
        SB_FOR(TOKENS, t, tokens, {
            vt input = vt_set1(inputs[t]);
            SB_FOR(2, u, VT_PARTS * tiles, sum[u * tokens + t] = vt_fma(input, w[u], sum[u * tokens + t]);)
        })
    }
    SB_FOR(2, u, VT_PARTS * tiles, {
        float *sums = at->sums + u / VT_PARTS * at->sums_stride + u % VT_PARTS * VT_LANES;
        SB_FOR(TOKENS, t, tokens, vt_store(sums + SB_TILE * t, sum[u * tokens + t]);)
    })
}

#define SB_PANEL(tokens, tiles)                                                                                        \
    SB_OUTLINE void panel_##tokens##_##tiles(const panel_place *at, const float *inputs, int64_t count, int start) {   \
        panel_group(at, inputs, count, start, tokens, tiles);                                                          \
    }
#define SB_PANEL_ENTRY(tokens, tiles) panel_##tokens##_##tiles,

SB_EACH_PANEL(SB_PANEL, 1)
#if PANEL_TILES == 2
SB_EACH_PANEL(SB_PANEL, 2)
#endif

typedef void (*panel_function)(const panel_place *at, const float *inputs, int64_t count, int start);

static const panel_function panel_functions[PANEL_TILES][PANEL_TOKENS] = {
    {SB_EACH_PANEL(SB_PANEL_ENTRY, 1)},
#if PANEL_TILES == 2
    {SB_EACH_PANEL(SB_PANEL_ENTRY, 2)},
#endif
};

SB_OUTLINE void decode_q4_0(float *panel, const uint8_t *block, int64_t blocks, int64_t ahead) {
    decode_panel(panel, block, blocks, ahead, SB_Q4_0);
}
SB_OUTLINE void decode_q4_1(float *panel, const uint8_t *block, int64_t blocks, int64_t ahead) {
    decode_panel(panel, block, blocks, ahead, SB_Q4_1);
}
SB_OUTLINE void decode_q8_0(float *panel, const uint8_t *block, int64_t blocks, int64_t ahead) {
    decode_panel(panel, block, blocks, ahead, SB_Q8_0);
}

/* Points at blocks [from, to) of `tiles` tiles as floats: decoded into `scratch`, or where they are. */
static void place_panels(panel_place *at, const sb_linear *l, int64_t tile, int64_t tiles, int64_t from, int64_t to,
                         float *scratch) {
    const sb_type type = l->matrix.type;
    const int64_t stride = sb_tile_bytes(type, l->matrix.cols);
    const uint8_t *data = l->matrix.data + tile * stride;
    if (type == SB_F32) {
        at->panel = (const float *)data + from * SB_TILE;
        at->panel_stride = stride / (int64_t)sizeof(float);
        return;
    }
    at->panel = scratch;
    at->panel_stride = PANEL_INPUTS * SB_TILE;
    data += from * sb_block_bytes(type);
    int64_t blocks = to - from, ahead = blocks * sb_block_bytes(type);
    if (to == l->matrix.cols / SB_QBLOCK) ahead += (tiles - 1) * stride; /* the first panels of the next tiles */
    for (int64_t u = 0; u < tiles; u++, data += stride, scratch += PANEL_INPUTS * SB_TILE) {
        if (type == SB_Q4_0) decode_q4_0(scratch, data, blocks, ahead);
        if (type == SB_Q4_1) decode_q4_1(scratch, data, blocks, ahead);
        if (type == SB_Q8_0) decode_q8_0(scratch, data, blocks, ahead);
    }
}

/* Some tiles for the tokens of the groups [from, to). */
static void panel_round(const sb_linear *l, const float *inputs, int64_t tile, int64_t tiles, int64_t from, int64_t to,
                        float *scratch) {
    int64_t cols = l->matrix.cols, unit = l->matrix.type == SB_F32 ? 1 : SB_QBLOCK, blocks = cols / unit;
    int64_t parts = (cols + PANEL_INPUTS - 1) / PANEL_INPUTS, first = group_start(l->tokens, from);
    int64_t tokens = group_start(l->tokens, to) - first;
    float *sums = scratch + PANEL_TILES * PANEL_INPUTS * SB_TILE;
    panel_place at = {.sums_stride = tokens * SB_TILE};
    for (int64_t u = 0; u < tiles; u++) fetch_outputs(l, tile + u, first, tokens);
    for (int64_t p = 0; p < parts; p++) {
        int64_t begin = blocks * p / parts, end = blocks * (p + 1) / parts;
        place_panels(&at, l, tile, tiles, begin, end, scratch);
        for (int64_t g = from; g < to; g++) {
            int64_t token = group_start(l->tokens, g), count = group_start(l->tokens, g + 1) - token;
            at.sums = sums + (token - first) * SB_TILE;
            panel_functions[tiles - 1][count - 1](&at, inputs + token * cols + begin * unit * count,
                                                  (end - begin) * unit, p == 0);
        }
    }
    for (int64_t u = 0; u < tiles; u++) finish_tile(l, tile + u, first, tokens, sums + u * at.sums_stride);
}

static void panel_tiles(const sb_linear *l, const float *inputs, int64_t tile, int64_t end, float *scratch) {
    int64_t groups = num_groups(l->tokens), rounds = (groups + ROUND_GROUPS - 1) / ROUND_GROUPS;
    for (int64_t tiles; tile < end; tile += tiles) {
        tiles = tile + PANEL_TILES <= end ? PANEL_TILES : 1;
        for (int64_t r = 0; r < rounds; r++)
            panel_round(l, inputs, tile, tiles, groups * r / rounds, groups * (r + 1) / rounds, scratch);
    }
}

#endif
