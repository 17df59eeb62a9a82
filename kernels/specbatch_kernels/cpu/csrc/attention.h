/* Paged tree attention: arguments, and the plan that splits a pass into tiles.
 *
 * Token t of row token_row[t] attends to the row's positions 0 .. context_len[t] - 1 and then to
 * extra_positions[extra_offsets[t] .. extra_offsets[t + 1] - 1], in that order: its logical keys.
 * Keys are reduced in blocks of SB_BLOCK by logical index.  Each block gives (maximum, sum of
 * exponentials, weighted values), and blocks are folded from the first to the last.  Nothing else
 * (page size, slots, batch mates, tiles, threads) enters a result, so the bits depend only on the
 * sequence of keys and values.
 */
#ifndef SB_ATTENTION_H
#define SB_ATTENTION_H

#include <stdint.h>

#include "pool.h"

#define SB_BLOCK 64

typedef struct {
    const float *q;       /* [tokens, heads, head_dim], tokens q_stride floats apart */
    int64_t q_stride;
    const float *k_cache; /* [slots, kv_heads, head_dim] */
    const float *v_cache; /* [slots, kv_heads, head_dim] */
    float *out;           /* [tokens, heads, head_dim] */
    float scale;
} sb_attention_data;

typedef struct {
    const int32_t *page_table;    /* [rows, max_pages] */
    const int32_t *token_row;     /* [tokens] */
    const int32_t *context_len;   /* [tokens] */
    const int32_t *extra_offsets; /* [tokens + 1] */
    const int32_t *extra_positions;
    int64_t tokens, heads, kv_heads, head_dim;
    int64_t rows, max_pages, page_size, slots, extras;
} sb_attention_shape;

/* Consecutive tokens of one row that share the loads of their first `common` keys.  A token with fewer keys sees
 * the first of them; one with more goes on with keys of its own. */
typedef struct {
    int32_t first, count;
    int32_t common;
    int32_t longest; /* token with the most keys */
    int32_t keys;    /* of that token */
} sb_tile;

typedef struct {
    sb_attention_shape shape;
    sb_tile *tiles;
    int64_t num_tiles;
    int64_t max_blocks;
    int split;       /* blocks of one tile go to several workers, folded in a second phase */
    float *partials; /* [tokens, heads, max_blocks, record] when split */
} sb_attention_plan;

/* Checks every index of the shape and fills the plan.  Returns NULL, or what is wrong. */
const char *sb_attention_prepare(sb_attention_plan *plan, const sb_attention_shape *shape, int workers);
void sb_attention_release(sb_attention_plan *plan);

/* Number of keys of a token. */
static inline int64_t sb_num_keys(const sb_attention_shape *s, int64_t token) {
    return s->context_len[token] + (int64_t)s->extra_offsets[token + 1] - s->extra_offsets[token];
}

/* A record holds one query's result over some blocks: the maximum score, the sum of exponentials
 * relative to it, and from SB_RECORD_HEAD on the exponentially weighted sum of values. */
#define SB_RECORD_HEAD 16

/* Floats per record: values padded to whole vectors of any instruction set. */
static inline int64_t sb_record(const sb_attention_shape *s) {
    return SB_RECORD_HEAD + (s->head_dim + 15) / 16 * 16;
}

/* Most tokens that share a tile. */
int64_t sb_tile_tokens(const sb_attention_shape *shape);

#endif
