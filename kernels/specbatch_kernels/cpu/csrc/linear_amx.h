/* Quantised weights times inputs of eight bits by AMX: what linear_int8.h computes, to the bit, for many tokens.
 *
 * One instruction multiplies a block of inputs of up to 16 tokens with the same block of a tile of weights: all
 * dots of the block, exact as ever.  The vector units only scale them and add them up, in the order of linear_int8.h.
 * The two take turns, some blocks at a time: next to instructions of AMX vectors run at half their speed, so that
 * taking turns block by block takes longer.
 *
 * Weights are unpacked into the first-level cache, as signed bytes with their own zero taken off, and used by all
 * tokens.  A quad of 16 outputs, as a vector of lanes has it, is a row of the instruction's second operand; rows of
 * its first are the inputs' quads, one per token.
 */
#ifndef SB_LINEAR_AMX_H
#define SB_LINEAR_AMX_H

#include "linear_decode.h"
#include "linear_epilogue.h"
#include "linear_int8.h"
#include "linear_int8_inputs.h"

/* Blocks that are multiplied before their dots are added up: weights, dots and inputs share the first-level cache. */
#define AMX_BLOCKS 9
#define AMX_BLOCK_BYTES (SB_TILE * SB_QBLOCK)
/* More tokens than this go in several rounds, so that their sums stay near. */
#define AMX_ROUND 128

/* Dots of one block and tile, [tokens, SB_TILE]. */
typedef int32_t amx_dots[AMX_GROUP * SB_TILE];

/* Of a worker: for a pair of tiles their unpacked weights, their dots, and the sums of a round, [tokens, SB_TILE]. */
typedef struct {
    uint8_t weights[2][AMX_BLOCKS * AMX_BLOCK_BYTES];
    amx_dots dots[2][AMX_BLOCKS];
    float sums[2][AMX_ROUND * SB_TILE];
} amx_scratch;

/* The shapes of the tile registers; the layout is the processor's. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_shapes;

/* Registers 0 to 3 are dots, 4 and 5 inputs, 6 and 7 weights.  Groups differ by a token: in the smaller ones the last
 * row belongs to no token and is ignored; it reads what follows the inputs, in the same buffer. */
static void amx_start(int64_t tokens) {
    const uint8_t rows = (uint8_t)((tokens + int8_groups(tokens) - 1) / int8_groups(tokens));
    amx_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = i == 4 || i == 5 ? SB_QBLOCK : SB_TILE * sizeof(int32_t);
        shapes.rows[i] = i < 6 ? rows : QUADS;
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* GCC 12 believes that only the first eight bytes are read */
    _tile_loadconfig(&shapes);
}

/* Stores the dots of two blocks ago, if there were any, and starts those of the next block in the same registers, if
 * there is one: storing dots that are not ready yet would hold up the others. */
#define SB_NEXT_DOTS(first, second, inputs)                                                                            \
    if (block >= 2) _tile_stored(first, scratch->dots[0][block - 2], SB_TILE * sizeof(int32_t));                       \
    if (block < blocks) {                                                                                              \
        _tile_loadd(inputs, x, sizeof(sb_input_block));                                                                \
        _tile_loadd(6, scratch->weights[0] + block * AMX_BLOCK_BYTES, SB_TILE * sizeof(sb_quad));                      \
        _tile_zero(first);                                                                                             \
        _tile_dpbssd(first, inputs, 6);                                                                                \
    }                                                                                                                  \
    if (block >= 2) _tile_stored(second, scratch->dots[1][block - 2], SB_TILE * sizeof(int32_t));                      \
    if (block < blocks) {                                                                                              \
        _tile_loadd(7, scratch->weights[1] + block * AMX_BLOCK_BYTES, SB_TILE * sizeof(sb_quad));                      \
        _tile_zero(second);                                                                                            \
        _tile_dpbssd(second, inputs, 7);                                                                               \
    }                                                                                                                  \
    block++, x += tokens;

/* The dots of both tiles with some blocks of a group's inputs. */
SB_OUTLINE void amx_multiply(amx_scratch *scratch, const sb_input_block *x, int64_t blocks, int64_t tokens) {
    for (int64_t block = 0; block < blocks + 2;) {
        SB_NEXT_DOTS(0, 1, 4)
        if (block == blocks + 2) break;
        SB_NEXT_DOTS(2, 3, 5)
    }
}

/* Some blocks of one tile and a group. */
typedef struct {
    const amx_dots *dots;
    const uint8_t *packed; /* for their scales */
    const sb_input_block *x;
    float *sums; /* [tokens, SB_TILE] */
    int64_t blocks;
    int start; /* sums are not continued */
} amx_part;

/* Scales the dots and adds them to the sums; tokens and type are constants once inlined. */
SB_INLINE void amx_add(const amx_part *p, const int tokens, const sb_type type) {
    vt sum[AMX_GROUP];
    SB_FOR(16, t, tokens, sum[t] = p->start ? vt_zero() : vt_load(p->sums + SB_TILE * t);)
    const sb_input_block *x = p->x;
    const uint8_t *packed = p->packed;
    for (int64_t b = 0; b < p->blocks; b++, x += tokens, packed += sb_block_bytes(type)) {
        const uint8_t *dots = (const uint8_t *)p->dots[b];
        const vt scale = vt_load_half(packed);
        const vt minimum = type == SB_Q4_1 ? vt_load_half(packed + 32) : vt_zero();
        SB_FOR(16, t, tokens, {
            const vt y = vt_float(vtu_load(dots + t * (int)sizeof(vt)));
            sum[t] = add_dots(sum[t], y, scale, minimum, x + t, type);
        })
    }
    SB_FOR(16, t, tokens, vt_store(p->sums + SB_TILE * t, sum[t]);)
}

/* Groups of AMX_TOKENS or more are never smaller than the first of these: 33 tokens are three of 11. */
#define AMX_SMALLEST 11
#define SB_EACH_AMX(X, ...)                                                                                            \
    X(11, __VA_ARGS__) X(12, __VA_ARGS__) X(13, __VA_ARGS__) X(14, __VA_ARGS__) X(15, __VA_ARGS__) X(16, __VA_ARGS__)

#define SB_AMX_ADD(tokens, type, name)                                                                                 \
    SB_OUTLINE void amx_##name##_##tokens(const amx_part *p) { amx_add(p, tokens, type); }
SB_EACH_AMX(SB_AMX_ADD, SB_Q4_0, q4_0)
SB_EACH_AMX(SB_AMX_ADD, SB_Q4_1, q4_1)
SB_EACH_AMX(SB_AMX_ADD, SB_Q8_0, q8_0)

typedef void (*amx_function)(const amx_part *p);

#define SB_AMX_ENTRY(tokens, name) amx_##name##_##tokens,
static const amx_function amx_functions[SB_TYPES][AMX_GROUP - AMX_SMALLEST + 1] = {
    [SB_Q4_0] = {SB_EACH_AMX(SB_AMX_ENTRY, q4_0)},
    [SB_Q4_1] = {SB_EACH_AMX(SB_AMX_ENTRY, q4_1)},
    [SB_Q8_0] = {SB_EACH_AMX(SB_AMX_ENTRY, q8_0)},
};

/* Unpacks `blocks` blocks into quads of signed bytes; what lies `ahead` bytes on is fetched meanwhile. */
SB_INLINE void unpack_quads(uint8_t *to, const uint8_t *block, int64_t blocks, int64_t ahead, const sb_type type) {
    const int per_lane = type == SB_Q8_0 ? 1 : 2;
    const __m512i zero = _mm512_set1_epi8((char)(type == SB_Q8_0 ? 128 : type == SB_Q4_0 ? 8 : 0));
    for (int64_t b = 0; b < blocks; b++, block += sb_block_bytes(type)) {
        SB_FETCH(block + ahead, sb_block_bytes(type));
        const uint8_t *quants = block_quants(block, type);
        SB_FOR(8, g, QUADS / per_lane, {
            vtu lanes = vtu_load(quants + 64 * g);
            SB_FOR(2, second, per_lane, {
                _mm512_storeu_si512(to, _mm512_sub_epi8((__m512i)weight_quad(lanes, second, type), zero));
                to += 64;
            })
        })
    }
}

SB_OUTLINE void unpack_part(uint8_t *to, const uint8_t *block, int64_t blocks, int64_t ahead, sb_type type) {
    if (type == SB_Q4_0) unpack_quads(to, block, blocks, ahead, SB_Q4_0);
    if (type == SB_Q4_1) unpack_quads(to, block, blocks, ahead, SB_Q4_1);
    if (type == SB_Q8_0) unpack_quads(to, block, blocks, ahead, SB_Q8_0);
    __asm__ volatile("" : : : "memory"); /* GCC 12 does not know that loading a tile register reads memory */
}

/* What is done with one set of unpacked weights: blocks [begin, end) of one or two tiles for the tokens of the groups
 * [from, to). */
typedef struct {
    int64_t tile, tiles, from, to, begin, end;
} amx_step;

static void amx_run_step(const sb_linear *l, const sb_input_block *x, const amx_step *s, amx_scratch *scratch) {
    const sb_type type = l->matrix.type;
    const int64_t blocks = l->matrix.cols / SB_QBLOCK, stride = sb_tile_bytes(type, l->matrix.cols);
    const int64_t count = s->end - s->begin, bytes = count * sb_block_bytes(type), last = s->end == blocks;
    const uint8_t *packed = l->matrix.data + s->tile * stride + s->begin * sb_block_bytes(type);
    /* Next are the following blocks, or the first ones of the next tiles. */
    const int64_t ahead = last ? bytes + (s->tiles - 1) * stride : bytes;
    for (int64_t u = 0; u < s->tiles; u++) unpack_part(scratch->weights[u], packed + u * stride, count, ahead, type);
    for (int64_t g = s->from; g < s->to; g++) {
        const int64_t token = int8_group_start(l->tokens, g), size = int8_group_start(l->tokens, g + 1) - token;
        amx_part part = {.x = x + token * blocks + s->begin * size, .blocks = count, .start = s->begin == 0};
        for (int64_t u = 0; u < s->tiles && last; u++) fetch_outputs(l, s->tile + u, token, size);
        amx_multiply(scratch, part.x, count, size);
        for (int64_t u = 0; u < s->tiles; u++) {
            part.dots = scratch->dots[u];
            part.packed = packed + u * stride;
            part.sums = scratch->sums[u] + (token - int8_group_start(l->tokens, s->from)) * SB_TILE;
            amx_functions[type][size - AMX_SMALLEST](&part);
            if (last) finish_tile(l, s->tile + u, token, size, part.sums);
        }
    }
}

/* Tiles [tile, end) for every token, between amx_start and _tile_release. */
static void amx_tiles(const sb_linear *l, const sb_input_block *x, int64_t tile, int64_t end, amx_scratch *scratch) {
    const int64_t groups = int8_groups(l->tokens), most = AMX_ROUND / AMX_GROUP, rounds = (groups + most - 1) / most;
    const int64_t blocks = l->matrix.cols / SB_QBLOCK, parts = (blocks + AMX_BLOCKS - 1) / AMX_BLOCKS;
    for (; tile < end; tile += 2)
        for (int64_t r = 0; r < rounds; r++)
            for (int64_t p = 0; p < parts; p++) {
                amx_step step = {
                    .tile = tile, .tiles = tile + 2 <= end ? 2 : 1,
                    .from = groups * r / rounds, .to = groups * (r + 1) / rounds,
                    .begin = blocks * p / parts, .end = blocks * (p + 1) / parts,
                };
                amx_run_step(l, x, &step, scratch);
            }
}

#endif
